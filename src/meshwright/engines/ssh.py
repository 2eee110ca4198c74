"""Jobs on hosts that ssh reaches: one connection a host, as long as this command runs."""

from __future__ import annotations

import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING, State, read_from
from meshwright.engines.hostlist import folded
from meshwright.engines.processes import ended, started
from meshwright.engines.programs import call
from meshwright.engines.request import HOSTS_FILE, OUTPUT_FILE, Request
from meshwright.engines.ssh_files import ssh_commands
from meshwright.errors import InputError
from meshwright.files import read_text

CONNECT_S = 15
MOST_AT_ONCE = 64
GRACE_S = 60.0
LOST = 255  # how ssh itself fails


class Ssh:
    """The hosts of one job."""

    outlives = False

    def __init__(self, request: Request) -> None:
        self.request = request
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.was_cancelled = False

    def _words(self, host: str) -> list[str]:
        ssh = self.request.site.ssh
        return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", *ssh.options, f"{ssh.user}@{host}" if ssh.user else host]

    def check(self, request: Request) -> None:
        """Raise an error that names the hosts that cannot be reached, have no meshwright, or have too few GPUs."""
        site = request.site
        folder = f"cd {shlex.quote(site.workdir)} && " if site.workdir else ""
        asked = (
            f"{folder}{shlex.quote(site.python)} -c 'import meshwright, torch' && {{ nvidia-smi -L 2> /dev/null | grep -c ^GPU; true; }}"
        )
        hosts = [host for host in request.hosts if host not in request.excluded]
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            answers = dict(zip(hosts, pool.map(lambda host: call([*self._words(host), asked], "ssh"), hosts), strict=True))
        lost = [host for host, answer in answers.items() if answer.code == LOST]
        if lost:
            raise InputError(
                f"{folded(lost)} cannot be reached by ssh without a password: {answers[lost[0]].reason}",
                where="--nodes, or ssh of the site file",
                fix="check it with `ssh HOST true`; start ssh-agent, or correct ssh.user",
            )
        bad = [host for host, answer in answers.items() if answer.code]
        if bad:
            raise InputError(
                f"{folded(bad)} cannot run meshwright: {answers[bad[0]].reason}",
                where="python and workdir of the site file",
                fix="name a Python that has meshwright[train] on every host",
            )
        counts = {
            host: int(found[0]) if (found := re.findall(r"^\d+$", answer.out, re.MULTILINE)) else 0 for host, answer in answers.items()
        }
        few = [host for host, count in counts.items() if request.shape.needs_gpus and count < request.shape.ranks_per_node]
        if few:
            wanted = f"the {request.shape.ranks_per_node} {request.plan.cluster.accelerator.name} that the plan needs on a node"
            raise InputError(
                f"{folded(few)} have fewer than {wanted}: {few[0]} has {counts[few[0]]}",
                where="--nodes, or ssh.hosts of the site file",
                fix="leave these hosts out, or plan for what they have",
            )

    def submit(self, request: Request) -> str:
        """Start the ranks of every host."""
        hosts = tuple(dict.fromkeys(read_text(request.folder / HOSTS_FILE).split()))
        for host, words in zip(hosts, ssh_commands(request, hosts), strict=True):
            log = OUTPUT_FILE if host == hosts[0] else f"{host}.log"
            self.processes[host] = started(words, request.folder / log)
        return folded(hosts)

    def state(self, job: str) -> State:
        """Running until all hosts have ended, or one has failed; then the others are ended."""
        codes = {host: process.poll() for host, process in self.processes.items()}
        failed = [host for host, code in codes.items() if code]
        if self.was_cancelled:
            return State(phase=CANCELLED, reason="it was asked to stop", nodes=tuple(codes))
        if failed or all(code == 0 for code in codes.values()):
            ended(list(self.processes.values()), GRACE_S)
        if failed:
            code = codes[failed[0]]
            why = "the connection was lost" if code == LOST else f"exit status {code}"
            return State(phase=FAILED, reason=f"{failed[0]}: {why}", nodes=tuple(codes))
        if all(code == 0 for code in codes.values()):
            return State(phase=DONE, nodes=tuple(codes))
        return State(phase=RUNNING, nodes=tuple(codes))

    def cancel(self, job: str) -> None:
        """Ask the ranks of all hosts to save and stop, and wait for that."""
        self.was_cancelled = True
        ended(list(self.processes.values()), GRACE_S)

    def read(self, path: Path, offset: int) -> bytes:
        """The file, from here where the folder is shared, and otherwise from the first host."""
        if path.exists() or not self.processes:
            return read_from(path, offset)
        host = next(iter(self.processes))
        answer = call([*self._words(host), f"tail -c +{offset + 1} {shlex.quote(str(path))} 2> /dev/null"], "ssh")
        return answer.out.encode() if answer.code == 0 else b""

    def by_hand(self, job: str) -> str:
        """The command with which a user ends the job."""
        return "Ctrl-C in its terminal"
