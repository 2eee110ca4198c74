"""A run small enough for tests: a corpus of made-up text, a plan for a few gloo ranks, and `meshwright train` as a process that is watched.

A command runs in a session of its own, so that what it leaves behind can be counted.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ranks import PRELOADED

from meshwright.describe.load import EMULATED, load_cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Evaluation, Training, Workload
from meshwright.job import Job
from meshwright.layout import Layout, parse_layout
from meshwright.plan.plan import Plan, plan_bytes, plan_of

PATIENCE_S = 240.0  # for a command: the machine may be busy
MODEL = Model(name="small", num_layers=4, hidden=32, ffn_hidden=64, num_heads=8, num_kv_heads=8, head_dim=4, vocab_size=512)
TRAINING = Training(learning_rate=3e-3, warmup_samples=16, decay_samples=400, most_samples=4000)
WORKLOAD = Workload(name="small", model="", seq_len=32, global_batch=8, precision="fp32", packed=True, training=TRAINING)
EVALUATION = Evaluation(num_samples=6, every_samples=16)  # 6 over two replicas of 2 each: the last round is not full
NO_RANKS = {name: None for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}


def make_corpus(folder: Path, num_documents: int = 60, num_words: int = 250, seed: int = 1, vocab_size: int = MODEL.vocab_size) -> Path:
    """A corpus of made-up text, `num_documents` of `num_words`."""
    from meshwright.train.data.corpus_build import BuildOptions, build_corpus
    from meshwright.train.data.sources import source_of

    rng = random.Random(seed)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(300)]
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for number in range(num_documents):
        (texts / f"{number:03}.txt").write_text(" ".join(rng.choices(words, k=num_words)))
    sources = [source_of(path, path.name) for path in sorted(texts.iterdir())]
    options = BuildOptions(tokenizer=f"train:{vocab_size}", seed=0, valid_fraction=0.1)
    return build_corpus(sources, folder / "corpus", options).folder


@dataclass(frozen=True, kw_only=True)
class Small:
    """The corpus that small runs share, and the plans for it."""

    corpus: Path
    cluster: str = EMULATED

    def plan(self, layout: str | Layout, *, model: Model = MODEL, training: Mapping[str, Any] | None = None, **workload: Any) -> Plan:
        """The plan of a layout; named fields of the workload and its training are other than usual."""
        layout = layout if isinstance(layout, Layout) else parse_layout(layout, Layout(micro_batch=2))
        trained = replace(TRAINING, **{"corpus": str(self.corpus), **(training or {})})
        cluster = load_cluster(self.cluster).resized(layout.num_ranks)
        return plan_of(Job(model, cluster, replace(WORKLOAD, training=trained, **workload)).forecast(layout), "small")

    def plan_file(self, path: Path, layout: str | Layout, **changes: Any) -> Path:
        """The same, as a file."""
        path.write_bytes(plan_bytes(self.plan(layout, **changes)))
        return path


@dataclass(kw_only=True)
class Command:
    """`meshwright` with some arguments, in a process of its own that leads a session."""

    process: Any
    folder: Path  # where it was started; out and err stand there
    started_s: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def out(self) -> str:
        return (self.folder / "out.txt").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err.txt").read_text()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit status; below 0: ended by that signal. Whatever it left behind is an error, and ended."""
        self.process.join(timeout_s)
        is_over = self.process.exitcode is not None
        left = {pid: words_of(pid) for pid in self.others()}
        for pid in [*left, *([] if is_over else [self.pid])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert is_over, f"not over after {timeout_s:.0f} s\n{self.out}\n{self.err}"
        assert not left, f"left behind: {left}\n{self.out}\n{self.err}"
        return int(self.process.exitcode)

    def others(self, within_s: float = 5.0) -> list[int]:
        """Processes of the session beside the command itself; those about to end may take a moment."""
        until_s = time.monotonic() + within_s
        while (found := [pid for pid in session(self.pid) if pid != self.pid]) and self.process.exitcode is not None:
            if time.monotonic() > until_s:
                break
            time.sleep(0.02)
        return found

    def ranks(self, num_ranks: int) -> list[int]:
        """The ranks' process ids by rank, once all have been started: they are forked in order."""
        return until(lambda: (found := sorted(self.others())) and len(found) == num_ranks and found)

    def step(self, run: Path, at_least: int) -> int:
        """The last step on record, once it is `at_least` that."""
        return until(lambda: (found := last_step(run)) >= at_least and found, lambda: f"{self.out}\n{self.err}", self)


def until(met: Callable[[], Any], state: Callable[[], str] = str, command: Command | None = None, timeout_s: float = PATIENCE_S) -> Any:
    """What `met` returns, once it is true."""
    until_s = time.monotonic() + timeout_s
    while not (found := met()):
        assert time.monotonic() < until_s, f"did not come about in {timeout_s:.0f} s: {state()}"
        assert command is None or command.process.exitcode is None, f"ended too early: {state()}"
        time.sleep(0.02)
    return found


def words_of(pid: int) -> str:
    """What a process was started as, its parent, and what it waits for in the kernel."""
    found = []
    for name in ("cmdline", "status", "wchan"):
        try:
            found.append((Path("/proc") / str(pid) / name).read_text().replace("\0", " "))
        except OSError:  # ended meanwhile
            return "ended meanwhile"
    command, status, waits_for = found
    told = [line for line in status.splitlines() if line.startswith(("Name", "State", "PPid", "Threads"))]
    return " ".join([command[:300], *told, waits_for])


def session(leader: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, number = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:  # ended meanwhile
                continue
            if int(number) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found


def last_step(run: Path) -> int:
    """The last step in a run's folder, 0 for none."""
    try:
        lines = (run / "steps.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    whole = [line for line in lines if line.endswith("\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def start(
    folder: Path,
    arguments: Sequence[str | Path],
    *,
    before: Callable[..., None] | None = None,
    with_: tuple[Any, ...] = (),
    environment: Mapping[str, str | None] | None = None,
    entry: Callable[[list[str]], int] | None = None,
) -> Command:
    """Start `meshwright` (or another `entry`) in `folder`; `before(*with_)` is called in its process first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("out.txt", "err.txt"):
        (folder / name).write_bytes(b"")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    given = [str(argument) for argument in arguments]
    process = context.Process(target=_command, args=(str(folder), given, before, with_, {**NO_RANKS, **(environment or {})}, entry))
    process.start()
    return Command(process=process, folder=folder)


def _command(
    folder: str,
    arguments: list[str],
    before: Callable[..., None] | None,
    with_: tuple[Any, ...],
    environment: Mapping[str, str | None],
    entry: Callable[[list[str]], int] | None,
) -> None:
    os.setsid()
    os.chdir(folder)
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.update({name: value for name, value in environment.items() if value is not None})
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if before:
        before(*with_)
    from meshwright.cli.main import main

    code = (entry or main)(arguments) or 0
    sys.stdout.flush()
    os._exit(code)


def train(folder: Path, *arguments: str | Path, before: Callable[..., None] | None = None, with_: tuple[Any, ...] = ()) -> Command:
    """Start `meshwright train` in `folder`."""
    return start(folder, ["train", *arguments], before=before, with_=with_)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def launched(
    folder: Path, rank: int, port: int, *arguments: str | Path, environment: Mapping[str, str] | None = None, **fault: Any
) -> Command:
    """One of two ranks, as torchrun starts them."""
    given = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(environment or {})}
    where = ("--runs", str(folder / "runs"), "--name", "a", "--rendezvous-timeout", "2")
    return start(folder / str(rank), ["train", *where, *arguments], environment=given, **fault)


def steps_of(run: Path) -> list[dict[str, Any]]:
    """The steps on record."""
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def events_of(run: Path, kind: str = "") -> list[dict[str, Any]]:
    """The events on record, of one kind or all."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["kind"] == (kind or event["kind"])]


def tensors_of(checkpoint: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint, whole, by name."""
    import torch

    from meshwright.train.checkpoint import Piece, load, read_manifest
    from meshwright.train.checkpoint.shard import DTYPES

    saved = read_manifest(checkpoint).tensors
    pieces = [
        Piece(name=name, shape=one.shape, start=(0,) * len(one.shape), tensor=torch.full(one.shape, torch.nan, dtype=DTYPES[one.dtype]))
        for name, one in saved.items()
    ]
    load(checkpoint, pieces, names=set(saved))
    return {piece.name: piece.tensor.numpy() for piece in pieces}
