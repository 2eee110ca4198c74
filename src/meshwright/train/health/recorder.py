"""The flight recorder of this rank: torch keeps the last calls of every process group, and a failure writes them into the run folder.

It must be written before communicators are aborted and before the process ends. The main thread may hang in a collective at that time, so
other threads write it: the watchdog's, or one that waits for word from the process that started the ranks. `record.flight` says what
the traces of all ranks mean.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import MeshwrightError
from meshwright.record.flight import KEPT, Call, GroupCalls, RankTrace, in_words, read_traces, trace_path, write_trace
from meshwright.train.health.watch import AXIS_NAMES
from meshwright.train.parallel.marks import Marks

BUFFER = "TORCH_FR_BUFFER_SIZE"  # calls that torch keeps
OLD_BUFFER = "TORCH_NCCL_TRACE_BUFFER_SIZE"  # its name in torch before 2.9, and that of users who set it
NUM_CALLS = "2000"
WRITING_S = 2.0  # a rank whose recorder does not answer ends without a trace
AGAIN_S = 0.5
LOOK_S = 0.02
WORLD = "default_pg"  # what torch calls the group of all ranks
WORDS = {"allreduce": "all-reduce", "all-reduce-barrier": "barrier", "allgather": "all-gather", "alltoall": "all-to-all", "send": "message"}


def keep_calls(environment: MutableMapping[str, str]) -> None:
    """Let torch record calls; set it before the first process group is made."""
    if OLD_BUFFER not in environment:
        environment.setdefault(BUFFER, NUM_CALLS)


class Recorder:
    """Writes this rank's trace, if the run folder is open. A later trace replaces an earlier one: it shows more of who waits."""

    def __init__(self, rank: int, num_ranks: int, folder: Path, is_open: threading.Event, marks: Marks) -> None:
        self.rank, self.num_ranks, self.folder, self.is_open, self.marks = rank, num_ranks, folder, is_open, marks
        self.broken: tuple[str, str, Sequence[int]] | None = None  # the wait that ended with an error: collective, axis, ranks
        self.groups: Sequence[dist.ProcessGroup] = ()  # besides the one of all ranks
        self._writing = threading.Lock()

    def write(self) -> None:
        """Write the trace; in a thread of its own, because the library may not answer."""
        if self.is_open.is_set():
            writing = threading.Thread(target=self._write, name="meshwright-flight", daemon=True)
            writing.start()
            writing.join(WRITING_S)

    def _write(self) -> None:
        with suppress(MeshwrightError, OSError, RuntimeError, ValueError), self._writing:  # the failure itself must be reported
            write_trace(self.folder, RankTrace(rank=self.rank, groups=self._calls()))

    def _calls(self) -> tuple[GroupCalls, ...]:
        members = {(str(group.group_name), group.group_desc): tuple(dist.get_process_group_ranks(group)) for group in self.groups}
        return with_broken(groups_of(dumped(), members, self.num_ranks), self.broken)

    def write_after_error(self) -> None:
        """Write the trace of a rank whose collective has ended with an error, before the process ends."""
        self.broken = self.marks.waits
        self.write()

    def write_when_asked(self, asked: Connection) -> None:
        """Write the trace once the process that started the ranks says that one of them has failed, and again until it ends this one.

        At first this rank may still compute, and wait for the failed one only later.
        """

        def wait() -> None:
            with suppress(EOFError, OSError):
                asked.recv()
                while True:
                    self.write()
                    time.sleep(AGAIN_S)

        threading.Thread(target=wait, name="meshwright-asked", daemon=True).start()

    def words(self, expected: Sequence[int], within_s: float) -> str:
        """What the traces say, once the `expected` ranks have written theirs, or after some seconds without them."""
        if not self.is_open.is_set():
            return ""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s and not all(trace_path(self.folder, rank).exists() for rank in expected):
            time.sleep(LOOK_S)
        return in_words(read_traces(self.folder))


def dumped() -> Mapping[str, Any]:
    """What torch has recorded on this rank; nothing where this build of torch cannot say."""
    name = "_dump_nccl_trace_json" if dist.get_backend() == "nccl" else "_dump_fr_trace_json"
    dump = getattr(torch._C._distributed_c10d, name, None)
    found = json.loads(dump()) if dump else {}
    return found if isinstance(found, dict) else {}


def groups_of(dump: Mapping[str, Any], members: Mapping[tuple[str, str], Sequence[int]], num_ranks: int) -> tuple[GroupCalls, ...]:
    """The last calls of every group in what torch dumped. `members` are the ranks of a group, by torch's name and our description."""
    by_group: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for entry in dump.get("entries", ()):
        name, description = entry["process_group"]
        by_group[str(name), str(description)].append(entry)
    found = []
    for (name, description), entries in by_group.items():
        ranks = tuple(range(num_ranks)) if description == WORLD else tuple(members.get((name, description), ()))
        if ranks:
            found.append(GroupCalls(name=name, label=label_of(description), ranks=ranks, calls=_calls_of(entries)[-KEPT:]))
    return tuple(found)


def with_broken(groups: Sequence[GroupCalls], broken: tuple[str, str, Sequence[int]] | None) -> tuple[GroupCalls, ...]:
    """The same calls, with the last one of the group whose wait ended with an error as not finished: gloo counts it among the finished."""
    if broken is None:
        return tuple(groups)
    _, axis, ranks = broken
    label, members = AXIS_NAMES.get(axis, ""), tuple(ranks)
    return tuple(
        replace(group, calls=(*group.calls[:-1], replace(group.calls[-1], finished=False)))
        if group.calls and group.ranks == members and group.label.partition(" (")[0] == label
        else group
        for group in groups
    )


def label_of(description: str) -> str:
    """Our description of a group in words: its axis, and what it is for if the axis has several groups; nothing for that of all ranks."""
    if description == WORLD:
        return ""
    axis, _, rest = description.partition(" ")
    return f"{AXIS_NAMES.get(axis, axis)}{f' ({rest})' if rest else ''}"


def _calls_of(entries: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    """Calls in the order in which they were begun.

    NCCL runs the calls of a group one after another, so whatever was begun before a finished call is finished too. Messages that are sent
    together are recorded one by one without a state, and then once more as `coalesced` with it.
    """
    later_finished, calls = False, list[Call]()
    for entry in reversed(entries):
        library, _, name = str(entry["profiling_name"]).partition(":")
        finished = bool(entry.get("retired")) or entry.get("state") == "completed" or later_finished
        later_finished = later_finished or (finished and library == "nccl")
        what, is_message = _what(name), bool(entry.get("is_p2p"))
        if what != "coalesced" or not is_message:
            number = int(entry["p2p_seq_id"] if is_message else entry["collective_seq_id"])
            calls.append(Call(number=number, what=what, shape=_shape(entry), finished=finished, is_message=is_message))
    return tuple(reversed(calls))


def _what(name: str) -> str:
    """The call in our words: torch says `_all_gather_base`, `allreduce` or `send 0->1`."""
    word = name.partition(" ")[0].strip("_").removesuffix("_base").removesuffix("_tensor").replace("_", "-")
    return WORDS.get("send" if word == "recv" else word, word)


def _shape(entry: Mapping[str, Any]) -> str:
    """The tensors that a rank gave, such as `float32 [4, 8]`; at most two of them."""
    sizes, dtypes = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    texts = [f"{_dtype(str(dtype))} {list(size)}" for size, dtype in zip(sizes, dtypes, strict=False)]
    return ", ".join(texts[:2]) + (f" and {len(texts) - 2} more" if len(texts) > 2 else "")


def _dtype(name: str) -> str:
    """torch names a type of numbers as C++ does."""
    known = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64", "Int": "int32", "Byte": "uint8", "Bool": "bool"}
    return known.get(name, name.lower())
