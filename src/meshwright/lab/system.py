"""Runs commands of a lab on this machine: what they need, which namespaces there are, which processes are in them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from meshwright.errors import InputError, MeshwrightError
from meshwright.lab.description import PREFIX
from meshwright.lab.network import Command

TOOLS = {  # by the package of Debian that has them
    **dict.fromkeys(("ip", "tc"), "iproute2"),
    **dict.fromkeys(("nsenter", "unshare", "setpriv"), "util-linux"),
    **{"sysctl": "procps", "hostname": "hostname"},
}
# Where programs are looked for: an ordinary user's PATH may lack the folders of the administrator.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
PATIENCE_S = 30.0  # for one command
ENDING_S = 5.0  # for processes that were asked to end


def check_tools(tools: Mapping[str, str], what: str) -> None:
    """Raise an error that says which programs are missing, and which packages have them."""
    missing = [tool for tool in tools if shutil.which(tool, path=PATH) is None]
    if missing:
        packages = sorted({tools[tool] for tool in missing})
        fix = f"install {' and '.join(packages)}: apt-get install {' '.join(packages)}"
        raise InputError(f"{what} needs {', '.join(missing)}, which this machine does not have", where="this machine", fix=fix)


def check_able() -> None:
    """Raise an error that says what is missing on this machine."""
    check_tools(TOOLS, "a lab")
    if os.geteuid() != 0:
        raise InputError(
            f"a lab needs root, because it makes network namespaces, and this is user {os.geteuid()}",
            where="this user",
            fix="run it as root, or in a container with CAP_NET_ADMIN and CAP_SYS_ADMIN",
        )


def check_program(name: str) -> None:
    """Raise an error if there is no such program to be run on the hosts."""
    if name != "meshwright" and shutil.which(name, path=PATH) is None:
        raise InputError(f"there is no program {name!r}", where="the command", fix="correct its name, or give its whole path")


def execute(command: Command) -> str:
    """What a command printed; an error if it failed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env={**os.environ, "PATH": PATH, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeshwrightError(f"{' '.join(command)}: {error}", where="this machine") from None
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines()
        raise MeshwrightError(f"`{' '.join(command)}` failed: {why[0] if why else f'exit status {done.returncode}'}", where="this machine")
    return done.stdout


def execute_all(commands: Iterable[Command]) -> None:
    """Run commands one after another; the first that fails ends it."""
    for command in commands:
        execute(command)


def namespaces(prefix: str = f"{PREFIX}-") -> list[str]:
    """Names of all network namespaces on this machine that begin so."""
    names = (line.split()[0] for line in execute(("ip", "netns", "list")).splitlines() if line.strip())
    return sorted(name for name in names if name.startswith(prefix))


def processes(namespace: str) -> list[int]:
    """The processes in a namespace."""
    with suppress(MeshwrightError):  # a namespace that was only half made
        return [int(word) for word in execute(("ip", "netns", "pids", namespace)).split()]
    return []


def end_processes(within: Sequence[str]) -> int:
    """Kill all processes in namespaces, and return how many there were."""
    found = {pid for namespace in within for pid in processes(namespace)} - {os.getpid()}
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until_s = time.monotonic() + ENDING_S
    while time.monotonic() < until_s and any(pid in processes(namespace) for namespace in within for pid in found):
        time.sleep(0.05)
    return len(found)
