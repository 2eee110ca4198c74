"""Follow a job: its place in the queue, its nodes, its steps; and see that it ends.

What is read of the run folder is kept in the job's folder where this machine does not see the run folder itself. A run at a URL is read
from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from meshwright.engines.engine import ACTIVE, CANCELLED, DONE, RUNNING, WAITING, Engine, State
from meshwright.engines.hostlist import folded
from meshwright.engines.request import OUTPUT_FILE, PLACING_FILE, Request
from meshwright.errors import InputError, MeshwrightError, printable
from meshwright.record.entries import StepRecord
from meshwright.storage import Location, Missing, Remote, StorageError
from meshwright.units import seconds

POLL_S = 2.0
MOST_LOST = 5  # answers in a row that an engine may fail to give
TAIL_LINES = 12
URL_PATIENCE_S = 5.0  # for a server that does not answer: the next poll asks again
MOST_READ_BYTES = 1 << 22  # of an object at once
MIRRORED = ("run.json", "plan.json", "events.jsonl")  # read whole, as they are small; the steps are read as they grow


@dataclass(slots=True)
class Steps:
    """The steps of a run, as far as they are read."""

    engine: Engine
    folder: Location  # of the run, as the nodes see it
    kept: Path  # where to keep what is read, if this machine does not see the folder
    offset: int = 0
    last: StepRecord | None = None
    num_steps: int | None = None
    trouble: str = ""  # why a run at a URL cannot be read now
    _rest: bytes = b""
    _is_elsewhere: bool = field(default=False)

    def read(self) -> bool:
        """Read on; whether there is a new step."""
        data = self._read("steps.jsonl", self.offset)
        if not data:
            return False
        self._keep("steps.jsonl", data, is_more=True)
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        before = self.last
        for line in lines:
            with suppress(ValueError, MeshwrightError, AttributeError, TypeError):
                self.last = StepRecord.from_json(json.loads(line))
        if self.num_steps is None:
            with suppress(ValueError, AttributeError):
                self.num_steps = json.loads(self._read("run.json", 0)).get("last_step")
        return self.last is not before

    def keep_rest(self) -> None:
        """Keep the small files of the run, where this machine does not see them."""
        for name in MIRRORED:
            if not self._is_in_reach and (data := self._read(name, 0)):
                self._keep(name, data, is_more=False)

    @property
    def _is_in_reach(self) -> bool:
        return isinstance(self.folder, Remote) or self.folder.is_dir()

    def _read(self, name: str, offset: int) -> bytes:
        """What a file of the run has from `offset` on; nothing where it is not there, or the server does not answer."""
        if isinstance(self.folder, Path):
            return self.engine.read(self.folder / name, offset)
        place, self.trouble = self.folder / name, ""
        try:
            size = place.size_bytes()
            return bytes(place.read_range(offset, min(size, offset + MOST_READ_BYTES))) if size > offset else b""
        except Missing:
            return b""
        except StorageError as error:
            self.trouble = error.what
            return b""

    def _keep(self, name: str, data: bytes, *, is_more: bool) -> None:
        if self._is_in_reach:
            return
        self.kept.mkdir(parents=True, exist_ok=True)
        with open(self.kept / name, "ab" if is_more and self.offset else "wb") as file:
            file.write(data)

    @property
    def words(self) -> str:
        """The last step in a line."""
        if self.last is None:
            return "no step yet"
        one, of = self.last, f" of {self.num_steps:,}" if self.num_steps else ""
        loss = f", loss {one.loss:.4f}" if one.loss is not None else ""
        exposed = sum(value for part, value in one.parts_s.items() if part.startswith("exposed"))
        return f"step {one.step:,}{of}{loss}, {seconds(one.step_s)} a step, {seconds(exposed)} of it exposed communication"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job ended, in words for its user."""

    phase: str
    message: str


def follow(
    engine: Engine,
    job: str,
    request: Request,
    report: Callable[[str], None],
    *,
    give_up_s: float | None = None,
    poll_s: float = POLL_S,
) -> Ending:
    """Report what happens to a job until it ends. A job that does not start within `give_up_s` is cancelled, which is an error."""
    steps = Steps(engine, _run_of(request), request.folder / "run" / request.name)
    began_s, said, lost, placing, placed, trouble = monotonic(), "", 0, b"", b"", ""
    while True:
        try:
            state, lost = engine.state(job), 0
        except InputError:  # a controller that restarts: the job goes on
            lost += 1
            if lost >= MOST_LOST:
                raise
            sleep(poll_s)
            continue
        line = _words(state)
        if line != said and state.phase in ACTIVE:
            report(line)
            said = line
        if state.phase == WAITING:
            placed, placing = placing or placed, b""  # a job that was queued again is placed again: the file still has the old nodes
        elif state.phase == RUNNING and not placing and (read := engine.read(request.folder / PLACING_FILE, 0)) not in (b"", placed):
            report(printable(read.decode(errors="replace").strip()))
            placing = read
        if state.phase != WAITING and steps.read():
            report(steps.words)
        if steps.trouble and steps.trouble != trouble:
            report(f"the records of the run cannot be read: {printable(steps.trouble)}")
        trouble = steps.trouble
        if state.phase not in ACTIVE:
            steps.keep_rest()
            return _ending(engine, state, steps, request)
        if state.phase == RUNNING:
            steps.keep_rest()
        elif give_up_s is not None and monotonic() - began_s > give_up_s:
            raise _given_up(engine, job, state, give_up_s)
        sleep(poll_s)


def _run_of(request: Request) -> Location:
    """Where the records of the run are."""
    runs = request.runs
    return runs / request.name if isinstance(runs, Path) else (runs / request.name).waiting(URL_PATIENCE_S)


def _words(state: State) -> str:
    """A state in a line."""
    if state.phase == WAITING:
        place = f"number {state.position[0]} of {state.position[1]} in the queue" if state.position else "waiting"
        return f"{place}: {printable(state.reason)}" if state.reason else place
    count = len(state.nodes)
    where = f" on {count} node{'s' if count != 1 else ''}: {folded(state.nodes)}" if state.nodes and " " not in state.nodes[0] else ""
    return f"running{where}"[:300]


def _given_up(engine: Engine, job: str, state: State, give_up_s: float) -> InputError:
    engine.cancel(job)
    return InputError(
        f"the job did not start within {give_up_s:g} s, and was cancelled",
        where=_words(state),
        fix="ask for fewer nodes, name another queue in the site file, or wait longer: --give-up-after",
    )


def _ending(engine: Engine, state: State, steps: Steps, request: Request) -> Ending:
    if state.phase == DONE:
        return Ending(phase=DONE, message=f"the job is done: {steps.words}")
    what = "the job was cancelled from outside" if state.phase == CANCELLED else "the job failed"
    reason = f": {printable(state.reason)}" if state.reason else ""
    tail = engine.read(request.folder / OUTPUT_FILE, 0).decode(errors="replace").splitlines()[-TAIL_LINES:]
    lines = [f"{what}{reason}; {steps.words}", *(f"  {printable(line)}" for line in tail)]
    return Ending(phase=state.phase, message="\n".join(lines))
