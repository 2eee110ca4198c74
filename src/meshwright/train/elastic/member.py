"""One process of a replica, as it hears from the process that started it: which generation it belongs to, and that replicas will change.

A rank that waits in a collective for a rank that has gone does not always notice. So when a new generation is announced, a thread cuts
the connections of the old one, aborts its communicators on a GPU, and the main thread gets an error wherever it waits. It then meets the
others in the new generation.

What torch does by itself when a communicator fails is turned off (`KEPT_AFTER_ERRORS`): it would end the process, and with it a replica
that could go on.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

from meshwright.layout import Layout
from meshwright.train.elastic.pulse import Pulse, Stacks
from meshwright.train.launch import LOCALHOST, Place, explain_failure

ANSWER_S = 600.0  # in which the supervisor must announce a generation: a newcomer may have to start first
CUT_AGAIN_S = 0.1  # connections that are being made while the others are cut are cut as well
# The same for those to the store. Torch tries to make one again when it is cut meanwhile, and waits longer each time, up to many seconds:
# on a busy machine every attempt would be cut.
STORE_AGAIN_S = 1.0
CONNECT_S = 0.5
GLOO_NUMBER = struct.Struct("q")  # what a gloo rank sends first to one that it connects to
ABORT_S = 10.0  # in which communicators must have been aborted
LISTENERS_S = 0.5  # after which a main thread that is still not back may wait for a rank to connect, which has gone
STORE_S = 60.0
# Settings of torch's NCCL backend, and of NCCL. By default a thread of torch ends the whole process when a communicator fails; the thread
# that finds the failure first sleeps for a minute, so that others can dump traces, and holds a lock meanwhile that the main thread needs
# (four times the given milliseconds); a third thread dumps traces and then ends the process; and an error of the device that a thread of
# torch sees ends it too, before the main thread can say which error it was. Threads of NCCL that only answer questions of `ncclras` are
# left out: their connections would be cut as well.
KEPT_AFTER_ERRORS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "NCCL_RAS_ENABLE": "0",
}
GENERATION, CHANGE, LEAVE = "generation", "change", "leave"  # what the supervisor says
# What a rank says.
READY, COME, BOUNDARY, LOST, HANG, NOTICE, UNCOVERED = "ready", "come", "boundary", "lost", "hang", "notice", "uncovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A generation of the run: its number, and its replicas in order. Newcomers are last, so rank 0 has a state if any rank has one."""

    generation: int
    replicas: tuple[int, ...]
    reason: str  # start, lost, joined, scaled or planned
    incident: Mapping[str, Any] | None = None  # what broke, if anything did
    apart: int = 1  # a copy of a replica's state is at the replica so many places further, which is on another node if that can be

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Announcement:
        entry = json.loads(text)
        return Announcement(**{**entry, "replicas": tuple(entry["replicas"])})


@dataclass(slots=True, kw_only=True)
class Member:
    """This process among all of the run. `heard` and `said` are the pipes from and to the supervisor."""

    replica: int  # the number of its replica, which it keeps
    seat: int  # its position in the replica, by the layout of one replica
    num_seats: int
    port: int  # of the store
    secret: bytes
    began_s: float  # when the supervisor began, by the monotonic clock
    local_rank: int  # its number on its node
    num_sharing: int  # ranks of the plan on its node, also while there are fewer
    host: str = LOCALHOST  # of the store
    has_others: bool = False  # whether ranks of the run may be on other nodes
    is_gpu: bool = False  # whether it exchanges over NCCL
    num_ranks: int = 1  # of the generation that it is in
    heard: Connection
    said: Connection
    pulse: Pulse = field(default_factory=Pulse)  # by which the supervisor sees that this process runs
    stacks: Stacks = field(default_factory=Stacks)  # in which this process says where it is, if the supervisor asks
    current: int = -1  # the generation that it is in
    newest: int = -1  # the one that was announced last
    is_inside: bool = False  # whether it is in a generation now, so that a newer one must cut it off
    _change: threading.Event = field(default_factory=threading.Event)
    _leaving: list[int] = field(default_factory=list)
    _cutting: threading.Lock = field(default_factory=threading.Lock)
    _cut_s: float = math.nan  # since when it is being cut off, by the monotonic clock
    _store_cut_s: float = math.nan  # when connections to the store were cut last
    _announced: queue.SimpleQueue[Announcement | None] = field(default_factory=queue.SimpleQueue)

    def listen(self) -> None:
        """Begin to listen to the supervisor and to show it that this process runs; SIGUSR1 is a notice that this replica will go."""
        self.pulse.start()
        self.stacks.start()
        signal.signal(signal.SIGUSR1, lambda *_: self.say(NOTICE))
        threading.Thread(target=self._listen, name="meshwright-member", daemon=True).start()

    def say(self, what: str, detail: str = "") -> None:
        """Tell the supervisor something."""
        with suppress(OSError):
            self.said.send((what, detail))

    def wants_change(self) -> bool:
        """Whether replicas are to join or leave at the next step boundary."""
        return self._change.is_set()

    def leaving(self) -> list[int]:
        """The replicas that leave, once this process has heard of the change, of which another has told it."""
        until_s = time.monotonic() + ANSWER_S
        while not self._change.wait(CUT_AGAIN_S):
            if self.newest > self.current:
                raise RuntimeError("a fault came before the change: a newer generation was announced")
            if time.monotonic() >= until_s:
                raise RuntimeError("the supervisor did not say which replicas leave")
        return self._leaving

    def next(self, timeout_s: float | None = None) -> Announcement | None:
        """The newest generation, once it is announced; None: this process is to leave."""
        with self._cutting:
            self.is_inside = False
        found = self._announced.get(timeout=timeout_s)
        while not self._announced.empty():
            found = self._announced.get()
        if found is not None:
            with self._cutting:
                self.current, self._cut_s, self._store_cut_s = found.generation, math.nan, math.nan
        return found

    def place(self, announced: Announcement, layout: Layout) -> Place:
        """This process's place in a generation, with connections of its own to the store."""
        replica = Layout(tp=layout.tp, cp=layout.cp, pp=layout.pp, order=layout.order)
        rank = layout.rank({**replica.coordinate(self.seat), "dp": announced.replicas.index(self.replica)})
        name = f"generation {announced.generation}"
        store = dist.TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=STORE_S), wait_for_workers=False)
        with self._cutting:
            self.is_inside, self.num_ranks = True, layout.num_ranks
        if self.newest > self.current:  # it was not cut off before, because a store to which a connection is cut is tried again, and again
            raise RuntimeError("a newer generation was announced meanwhile")
        return Place(
            rank=rank,
            num_ranks=layout.num_ranks,
            local_rank=self.local_rank,
            num_local_ranks=min(self.num_sharing, layout.num_ranks) if self.has_others else layout.num_ranks,
            store=dist.PrefixStore(name, store),
            has_parent=True,
            secret=self.secret,
            name=name,
        )

    def survives(self, error: BaseException) -> bool:
        """Whether an error is only how this rank notices that others have gone, or that they change."""
        if self.newest > self.current:
            return isinstance(error, Exception)
        return isinstance(error, RuntimeError) and not explain_failure(error, 0)[0]

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                if self.heard.poll(CUT_AGAIN_S):
                    self._hear(*self.heard.recv())
                self._cut()

    def _hear(self, what: str, detail: str) -> None:
        if what == CHANGE:
            self._leaving = [int(number) for number in json.loads(detail)]
            self._change.set()
        elif what == LEAVE:
            self._announced.put(None)
        elif what == GENERATION:
            announced = Announcement.from_json(detail)
            self.newest = announced.generation
            self._change.clear()
            self._cut()
            self._announced.put(announced)

    def _cut(self) -> None:
        """Cut off a generation that is over. Connections of the next one are made only after that."""
        with self._cutting:
            if self.is_inside and self.newest > self.current:
                now_s = time.monotonic()
                self._cut_s = now_s if math.isnan(self._cut_s) else self._cut_s
                cuts_store = not now_s - self._store_cut_s < STORE_AGAIN_S
                self._store_cut_s = now_s if cuts_store else self._store_cut_s
                abort_communicators()
                may_listen = now_s - self._cut_s > LISTENERS_S
                cut_connections(listening=may_listen and self.is_gpu, spared_port=None if cuts_store else self.port)
                if may_listen and cuts_store and not self.is_gpu:
                    connect_in_place_of_others(self.num_ranks)


def abort_communicators() -> bool:
    """Abort the NCCL communicators of this process; whether it had any.

    A kernel of NCCL that waits for a rank which has gone never ends by itself, and the main thread waits for it. What such a kernel leaves
    in its buffers is not used: the host reads the sums of a step before it launches the update, and drops them if it was cut off
    meanwhile (`Sums.values`).

    All are aborted at once, in threads: to free what a communicator has, CUDA waits for all that runs on the GPU, and so for the kernels of
    another communicator, which wait for the same lost rank. (torch's own `_abort_process_group` means to do that too, but aborts one
    after the other: NCCL groups calls of one thread, and torch aborts each communicator in a thread of its own.)
    """
    try:
        if not dist.is_initialized() or dist.get_backend() != "nccl":
            return False
    except ValueError:  # the main thread has just left the groups
        return False
    from torch.distributed import distributed_c10d  # torch has no public names for this yet

    aborting = [threading.Thread(target=_abort, args=(group,), daemon=True) for group in list(distributed_c10d._world.pg_names)]
    for thread in aborting:
        thread.start()
    until_s = time.monotonic() + ABORT_S
    for thread in aborting:
        thread.join(max(until_s - time.monotonic(), 0.0))
    if not any(thread.is_alive() for thread in aborting):
        with suppress(RuntimeError, ValueError, AssertionError):  # the main thread may be leaving the groups itself
            distributed_c10d._abort_process_group()  # forgets them: they have been aborted
    return True


def _abort(group: dist.ProcessGroup) -> None:
    with suppress(RuntimeError):
        group.abort()


def cut_connections(*, listening: bool = False, spared_port: int | None = None) -> None:
    """Shut down all network connections of this process: whoever waits for one of them gets an error, here and at the other end.

    With `listening` also those at which it waits for others to connect: never with gloo, which aborts the process then. Connections to the
    `spared_port` of another process stay.
    """
    for connection in _network_sockets():
        with suppress(OSError):
            port = _port_beyond(connection)
            if port != spared_port and (port or listening):
                connection.shutdown(socket.SHUT_RDWR)


def connect_in_place_of_others(num_ranks: int) -> None:
    """Connect to whatever waits in this process for other ranks to connect.

    Two gloo ranks that make a group agree by their addresses on which of them connects to the other one. That one may have died, and the
    first would wait for it, through everything, for five times the limit of a collective. So something comes in the other's place and says
    its number in the group; the group is made, and the first exchange in it fails.
    """
    for listener in _network_sockets():
        with suppress(OSError):
            if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            for number in range(num_ranks + 1):
                with socket.create_connection(listener.getsockname()[:2], timeout=CONNECT_S) as coming:
                    coming.sendall(GLOO_NUMBER.pack(number))


def _network_sockets() -> Iterator[socket.socket]:
    """The sockets of this process; each is closed afterwards, and stays open where it is used."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError, ValueError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    yield found


def _port_beyond(connection: socket.socket) -> int:
    """The port at the other end; 0 if there is none, because it waits for others to connect."""
    try:
        return int(connection.getpeername()[1])
    except OSError:
        return 0


def wait_for_all(place: Place) -> None:
    """Return once all ranks of a generation have come; only then do they make their groups.

    The supervisor ends ranks that do not come in time, and announces another generation: this one is cut off then.
    """
    place.store.set(f"here/{place.rank}", "1")
    place.store.wait([f"here/{rank}" for rank in range(place.num_ranks)], timedelta(seconds=ANSWER_S))
