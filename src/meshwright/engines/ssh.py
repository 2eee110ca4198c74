"""Jobs on hosts that ssh reaches: one connection a host, as long as this command runs.

Where replicas may come and go, the supervisor on the first host leads the run, and its end is the end of the job. The others are started
again when they are lost, as often as the site allows.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
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
SIGNALLED = 128  # and more: a shell's word for a command that a signal ended
INTERRUPTED = 130  # by hand: Ctrl-C
REFUSED = 2  # wrong input stays wrong
PAUSE_S = 5.0  # before a supervisor is started again


class Ssh:
    """The hosts of one job."""

    outlives = False

    def __init__(self, request: Request) -> None:
        self.request = request
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.was_cancelled = False
        self._commands: dict[str, tuple[list[str], str]] = {}  # by host: the words, and the name of the log
        self._ended_s: dict[str, float] = {}  # when a supervisor that is started again had ended
        self._num_again: Counter[str] = Counter()
        self._lead: Counter[str] = Counter()  # by host: how often the first had been started again when this one was started

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
            self._commands[host] = words, log
            self.processes[host] = started(words, request.folder / log)
        return folded(hosts)

    def state(self, job: str) -> State:
        """Running until all hosts have ended, or one has failed; then the others are ended."""
        codes = {host: process.poll() for host, process in self.processes.items()}
        if self.was_cancelled:
            return State(phase=CANCELLED, reason="it was asked to stop", nodes=tuple(codes))
        if self.request.keeps_going:
            return self._state_of_supervisors(codes)
        failed = [host for host, code in codes.items() if code]
        if failed or all(code == 0 for code in codes.values()):
            ended(list(self.processes.values()), GRACE_S)
        if failed:
            code = codes[failed[0]]
            why = "the connection was lost" if code == LOST else f"exit status {code}"
            return State(phase=FAILED, reason=f"{failed[0]}: {why}", nodes=tuple(codes))
        if all(code == 0 for code in codes.values()):
            return State(phase=DONE, nodes=tuple(codes))
        return State(phase=RUNNING, nodes=tuple(codes))

    def _state_of_supervisors(self, codes: Mapping[str, int | None]) -> State:
        """The first host decides. A supervisor of another one that was lost is started again, and so is the first if a signal ended it."""
        first, code = next(iter(codes.items()))
        if code is not None and not self._is_started_again(first, is_wanted=_was_lost(code)):
            ended(list(self.processes.values()), GRACE_S)
            why = "" if code == 0 else f"{first}: {'the connection was lost' if code == LOST else f'exit status {code}'}"
            return State(phase=FAILED if code else DONE, reason=why, nodes=tuple(codes))
        for host, other in list(codes.items())[1:]:
            if other is not None:
                has_missed = other == 0 and self._lead[host] < self._num_again[first]  # it ended with a leading supervisor that was lost
                self._is_started_again(host, is_wanted=has_missed or other not in (0, REFUSED))
        return State(phase=RUNNING, nodes=tuple(codes))

    def _is_started_again(self, host: str, *, is_wanted: bool) -> bool:
        """Start the supervisor of a host again, after a pause; whether it was or will be."""
        if not is_wanted or self._num_again[host] >= self.request.site.restarts:
            return False
        if time.monotonic() - self._ended_s.setdefault(host, time.monotonic()) < PAUSE_S:
            return True
        del self._ended_s[host]
        self._num_again[host] += 1
        self._lead[host] = self._num_again[next(iter(self.processes))]
        words, log = self._commands[host]
        ended([self.processes[host]], 0.0)
        self.processes[host] = started(words, self.request.folder / log)
        return True

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


def _was_lost(code: int) -> bool:
    """Whether the connection, or a signal that nobody sent by hand, ended the leading supervisor."""
    return (code >= SIGNALLED and code != INTERRUPTED) or code < 0
