"""The MPS daemon that ranks on one GPU need: the one that runs, or one that is started here and ended with the benchmark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
USUAL_PIPE, USUAL_LOG = "/tmp/nvidia-mps", "/var/log/nvidia-mps"
START_S = END_S = 5.0


@dataclass
class Mps:
    """An MPS daemon: where it listens and writes its log, and whether it was started here."""

    pipe: Path
    log: Path
    is_ours: bool

    @classmethod
    def here(cls, folder: Path) -> Mps:
        """The daemon that runs, or a new one in a folder."""
        pipe, log = Path(os.environ.get(PIPE) or USUAL_PIPE), Path(os.environ.get(LOG) or USUAL_LOG)
        if (pipe / "control").exists() or not shutil.which(CONTROL):
            return cls(pipe, log, is_ours=False)
        (folder / "mps").mkdir()
        found = cls(folder / "mps", folder / "mps", is_ours=True)
        subprocess.run([CONTROL, "-d"], env={**os.environ, **found.environment}, timeout=START_S, check=False, capture_output=True)
        until_s = time.monotonic() + START_S
        while not (found.pipe / "control").exists() and time.monotonic() < until_s:
            time.sleep(0.05)
        return found

    @property
    def environment(self) -> dict[str, str]:
        """With which a process uses it."""
        return {PIPE: str(self.pipe), LOG: str(self.log)}

    def end(self) -> None:
        """End the daemon, if it was started here; it does not end by itself while it believes that it has clients."""
        if not self.is_ours:
            return
        with suppress(OSError, subprocess.SubprocessError):
            asked = {"input": "quit\n", "text": True, "timeout": END_S, "capture_output": True}
            subprocess.run([CONTROL], env={**os.environ, **self.environment}, check=False, **asked)  # type: ignore[call-overload]
        for entry in Path("/proc").iterdir():  # the daemon, and the server that it started, if they did not end
            with suppress(OSError):
                is_mps = entry.name.isdigit() and (entry / "comm").read_text().startswith("nvidia-cuda-mps")
                if is_mps and str(self.pipe) in (entry / "environ").read_text(errors="replace"):
                    os.kill(int(entry.name), signal.SIGKILL)
