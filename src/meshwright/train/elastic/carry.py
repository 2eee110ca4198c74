"""What a process keeps in memory from one generation of a run to the next, and how all ranks agree on the state that they go on from.

The update of a step is all or nothing: a rank applies it once it has the sums of the step over all ranks, and a rank that was cut off
before it received these sums has all summed gradients. So a rank that is a step behind another receives the sums from it, and applies the
same update. If no rank has the sums, no rank has applied the update, and the step is taken again by the replicas that are left.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import MeshwrightError
from meshwright.layout import Layout
from meshwright.record.writer import RunWriter
from meshwright.train.checkpoint import Piece
from meshwright.train.elastic.copies import Copies, whole_groups
from meshwright.train.elastic.handover import HandedOver, hand_over, moved
from meshwright.train.membership import layout_with
from meshwright.train.parallel.collectives import everyones_whole_texts
from meshwright.train.record.logbook import Step
from meshwright.train.replica import Replica
from meshwright.train.sums import NUM_SUMS, result_of


class Uncovered(MeshwrightError):
    """A part of the state that no remaining rank has in memory."""


class Counts(Protocol):
    """How far a run has come."""

    step: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """What is left of a replica once its state is in host memory."""

    pieces: Sequence[Piece]
    totals: Tensor | None  # the sums of its last step

    @classmethod
    def of(cls, replica: Replica) -> Self:
        """The state of a replica, copied."""
        pieces = [replace(piece, tensor=piece.tensor.to("cpu", copy=True)) for piece in replica.state()]
        return cls(pieces=pieces, totals=replica.sums.totals[:NUM_SUMS].cpu() if replica.sums else None)


@dataclass(slots=True, kw_only=True)
class Holding:
    """The state of one generation, as one rank has it in memory."""

    generation: int
    replica: Replica | Resting
    progress: Counts
    dp: int  # replicas in that generation, and the position of this rank's
    index: int
    copies: Copies | None = None
    adopted: dict[int, list[Piece]] = field(default_factory=dict)  # pieces of replicas that leave, by their position on dp
    given: Tensor | None = None  # the sums of the last step, if another rank gave them after the generation had ended

    @classmethod
    def of(cls, generation: int, replica: Replica, progress: Counts, copies: Copies | None) -> Self:
        """What a rank holds in a generation that begins."""
        dp = replica.mesh.dp
        return cls(generation=generation, replica=replica, progress=progress, dp=dp.size, index=dp.index, copies=copies)

    def rest(self) -> None:
        """Move the state to host memory, and free that of the device."""
        if not isinstance(self.replica, Resting):
            self.replica = Resting.of(self.replica)
        self.adopted = {index: [replace(piece, tensor=piece.tensor.cpu()) for piece in pieces] for index, pieces in self.adopted.items()}
        if self.copies:
            self.copies.end()

    def pieces(self) -> Iterable[Piece]:
        """The state of this rank."""
        return self.replica.pieces if isinstance(self.replica, Resting) else self.replica.state()

    def totals(self) -> Tensor | None:
        """The sums of the last step."""
        if self.given is not None:
            return self.given
        if isinstance(self.replica, Resting):
            return self.replica.totals
        return self.replica.sums.totals if self.replica.sums else None

    def count(self) -> None:
        """Count a step whose update was applied just before this rank was cut off."""
        if isinstance(self.replica, Resting):  # it was counted before
            return
        if self.replica.is_uncounted:
            self.replica.is_uncounted = False
            self.progress.step += 1
            self.progress.samples += self.replica.workload.global_batch

    def said(self) -> dict[str, Any]:
        """What the other ranks must know of it."""
        steps = [[copy.step, copy.samples] for copy in self.copies.kept] if self.copies else []
        return {
            "generation": self.generation,
            "dp": self.dp,
            "index": self.index,
            "step": self.progress.step,
            "samples": self.progress.samples,
            "copies": steps,
            "apart": self.copies.apart if self.copies else 1,
            "adopted": sorted(self.adopted),
        }

    def adopt(self, leaving: Sequence[int]) -> None:
        """Hand the state of replicas that leave to those that stay, while all of them are there. All ranks must call it.

        `leaving` are positions on dp. Without ZeRO all replicas hold the same, and nothing is sent.
        """
        assert not isinstance(self.replica, Resting), "the generation has not ended yet"
        mesh = self.replica.mesh
        staying = [index for index in range(mesh.dp.size) if index not in leaving]
        if mesh.layout.zero_stage == 0 or not leaving:
            return
        heirs = {index: staying[number % len(staying)] for number, index in enumerate(leaving)}
        to = [mesh.dp.ranks[heirs[mesh.dp.index]]] if mesh.dp.index in heirs else []
        sources = {mesh.dp.ranks[index]: index for index, heir in heirs.items() if heir == mesh.dp.index}
        self.replica.ready()
        found = moved(list(self.replica.state()) if to else [], to, list(sources), mesh.device)
        if self.replica.is_cut():  # communicators that are aborted end as if all were well, and leave anything in their buffers
            raise RuntimeError("the state of replicas that leave may not have arrived: the connections to other ranks were cut")
        self.adopted = {sources[rank]: pieces for rank, pieces in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The state that all ranks go on from."""

    generation: int
    dp: int  # replicas that it had
    step: int
    samples: int
    from_copies: bool
    apart: int = 1  # the copy of a replica's state is at the replica so many places further
    holders: Mapping[int, int]  # rank now -> its replica's position then
    adopted: Mapping[int, Sequence[int]] = field(default_factory=dict)  # rank now -> positions of replicas whose state it was given


def choose(said: Sequence[Sequence[Mapping[str, Any]]], layout: Layout) -> Choice | None:
    """The newest state that the ranks have completely, from what every rank says about its holdings; None if no rank has any.

    `Uncovered` if there are states, and none is complete.
    """
    generations = sorted({int(one["generation"]) for holdings in said for one in holdings}, reverse=True)
    for generation in generations:
        held = {rank: one for rank, holdings in enumerate(said) for one in holdings if one["generation"] == generation}
        found = _live(generation, held, layout) or _copied(generation, held)
        if found is not None:
            return found
    if generations:
        raise Uncovered(
            "a part of the state was lost with its replica, and no other rank has a copy of it in memory",
            where="the replicas that are left",
            fix="continue from the newest checkpoint; zero_ranks, or checkpoints in memory, keep a second copy",
        )
    return None


def _live(generation: int, held: Mapping[int, Mapping[str, Any]], layout: Layout) -> Choice | None:
    """The state as it is on the ranks, if they hold all of it."""
    dp = int(next(iter(held.values()))["dp"])
    step = max(int(one["step"]) for one in held.values())
    samples = max(int(one["samples"]) for one in held.values())
    holders = {rank: int(one["index"]) for rank, one in held.items()}
    adopted = {rank: [int(index) for index in one["adopted"]] for rank, one in held.items()}
    present = {*holders.values(), *(index for indices in adopted.values() for index in indices)}
    if not whole_groups(layout_with(layout, dp), present):
        return None
    return Choice(generation=generation, dp=dp, step=step, samples=samples, from_copies=False, holders=holders, adopted=adopted)


def _copied(generation: int, held: Mapping[int, Mapping[str, Any]]) -> Choice | None:
    """The newest step of which all ranks have copies, if these cover the replicas that are lost."""
    dp = int(next(iter(held.values()))["dp"])
    apart = int(next(iter(held.values())).get("apart", 1))
    present = {int(one["index"]) for one in held.values()}
    common = set.intersection(*({(int(step), int(samples)) for step, samples in one["copies"]} for one in held.values()))
    if not common or any((index + apart) % dp not in present for index in range(dp) if index not in present):
        return None
    step, samples = max(common)
    holders = {rank: int(one["index"]) for rank, one in held.items()}
    return Choice(generation=generation, dp=dp, step=step, samples=samples, from_copies=True, apart=apart, holders=holders)


@dataclass(slots=True)
class Used:
    """What one rank uses of its GPU's memory: for the state and all else that stays, and in a step besides."""

    held_bytes: int = 0
    step_bytes: int = 0
    is_alone: bool = True  # whether one generation alone has been there since this was noted

    def needed(self, before: Layout, now: Layout, state_bytes: int) -> int:
        """What another generation needs, where the layout was `before` and will be `now`, and this rank's part of the state had this size.

        With fewer ranks to share it, each rank's part is larger. ZeRO 3 divides the weights as well.
        """
        if not now.zero_stage:
            return self.held_bytes + self.step_bytes
        growth = before.sharing_ranks / now.sharing_ranks - 1
        grows_bytes = max(self.held_bytes, state_bytes) if now.zero_stage == 3 else state_bytes
        return self.held_bytes + round(growth * grows_bytes) + self.step_bytes


@dataclass(slots=True)
class Carry:
    """The holdings of this process, the newest first."""

    holdings: list[Holding] = field(default_factory=list)
    left_s: float = math.nan  # when the last generation ended at a step boundary, by the monotonic clock
    unwritten: Step | None = None  # done in a generation that was cut off; the rank that writes the records may be lost
    writer: RunWriter | None = None  # of the records, still open, if the last generation ended there and this process wrote them
    used: Used = field(default_factory=Used)  # of the memory of a GPU

    def hold(self, holding: Holding, source: int | None = None) -> None:
        """Keep the state of a new generation; that of the generation it was filled from, `source`, is kept until `settled`."""
        self.holdings = [holding, *(one for one in self.holdings if one.generation == source)]

    def settled(self) -> None:
        """All ranks have the newest state, since a sum over all of them has ended: earlier ones are dropped."""
        del self.holdings[1:]

    def agree(self, layout: Layout, device: torch.device, ranks_per_gpu: int = 1) -> Choice | None:
        """The state that the ranks go on from, of which each has its part of the chosen step then; None if no rank has any.

        `layout` is the plan's. All ranks must call it.
        """
        for holding in self.holdings:
            holding.count()
        texts = everyones_whole_texts(json.dumps([one.said() for one in self.holdings]), device)
        choice = choose([json.loads(text) for text in texts], layout)
        if choice is not None and not choice.from_copies:
            _level(choice, self._chosen(choice), [json.loads(text) for text in texts], device)
        if device.type == "cuda" and choice is not None:
            self.measure(device)
            now = layout_with(layout, dist.get_world_size() * layout.dp // layout.num_ranks)
            needed = self.used.needed(layout_with(layout, choice.dp), now, self._state_bytes(choice))
            if not has_room(device, needed, ranks_per_gpu):
                self.make_room()
        return choice

    def measure(self, device: torch.device) -> None:
        """Note what this rank has used of a GPU's memory. Nothing is noted while one generation takes over from another: both are there."""
        if self.holdings and self.used.is_alone:
            self.used.held_bytes = self.used.held_bytes or torch.cuda.memory_allocated(device)
            self.used.step_bytes = max(self.used.step_bytes, torch.cuda.max_memory_allocated(device) - self.used.held_bytes)
        self.used.is_alone = False

    def settle(self, device: torch.device) -> None:
        """Nothing but one generation is left in memory, and nothing more is compiled: measure what steps use from now on."""
        if device.type == "cuda":
            self.used.held_bytes, self.used.is_alone = torch.cuda.memory_allocated(device), True
            torch.cuda.reset_peak_memory_stats(device)

    def _state_bytes(self, choice: Choice) -> int:
        """The size of this rank's part of the chosen state."""
        mine = self._chosen(choice)
        return sum(piece.tensor.numel() * piece.tensor.element_size() for piece in mine.pieces()) if mine else 0

    def make_room(self) -> None:
        """Move what this rank holds to host memory: a device may have no room for two states and the activations of a step."""
        for holding in self.holdings:
            holding.rest()
        gc.collect()  # a replica refers to itself
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def fill(self, replica: Replica, choice: Choice, layout: Layout) -> HandedOver:
        """Fill a new replica with the chosen state; what that cost. All ranks must call it. `layout` is the plan's."""
        mesh = replica.mesh
        held = _pieces(choice, self._chosen(choice))
        column = sorted(rank for rank in range(mesh.layout.num_ranks) if _column(mesh.layout, rank) == _column(mesh.layout, mesh.rank))
        cost = hand_over(held, list(replica.state()), column, _sources(choice, column, mesh.layout, layout), mesh.device)
        if replica.is_cut():  # as in `Holding.adopt`
            raise RuntimeError("the state may not have arrived: the connections to other ranks were cut")
        replica.set_num_updates(choice.step)
        replica.publish()
        return cost

    def _chosen(self, choice: Choice) -> Holding | None:
        return next((one for one in self.holdings if one.generation == choice.generation), None)


def has_room(device: torch.device, needed_bytes: int, num_sharing: int = 1) -> bool:
    """Whether a GPU has room for another generation beside what it holds, if that needs so much on each rank.

    `num_sharing` ranks use this GPU, and each sees all that is free.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free > num_sharing * needed_bytes


def _column(layout: Layout, rank: int) -> tuple[int, int]:
    place = layout.coordinate(rank)
    return place["pp"], place["tp"]


def _level(choice: Choice, mine: Holding | None, said: Sequence[Sequence[Mapping[str, Any]]], device: torch.device) -> None:
    """Bring ranks that are a step behind to the step of the others: a rank that has its sums sends them to all."""
    steps = {rank: int(one["step"]) for rank, held in enumerate(said) for one in held if one["generation"] == choice.generation}
    if min(steps.values()) == choice.step:
        return
    giver = min(rank for rank, step in steps.items() if step == choice.step)
    sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=device)
    if dist.get_rank() == giver:
        assert mine is not None, "it has taken the step"
        totals = mine.totals()
        assert totals is not None, "it has taken the step"
        sums.copy_(totals[:NUM_SUMS])
    dist.broadcast(sums, giver)
    if mine is not None and mine.progress.step < choice.step:
        assert not isinstance(mine.replica, Resting), "a state rests once it is as far as the others"
        values = sums.tolist()
        if mine.replica.is_cut():  # as in `Holding.adopt`
            raise RuntimeError("the sums of the last step may not have arrived: the connections to other ranks were cut")
        mine.given = sums  # after another fault this rank may be the one that gives them
        mine.replica.update_shards(result_of(values, mine.replica.workload.tokens_per_step), mine.replica.rate)
        mine.count()


def _pieces(choice: Choice, mine: Holding | None) -> list[Piece]:
    """The pieces of the chosen state that this rank has."""
    if mine is None:
        return []
    if not choice.from_copies:
        return [*mine.pieces(), *(piece for pieces in mine.adopted.values() for piece in pieces)]
    assert mine.copies is not None, "every rank has a copy of this step"
    index = mine.index
    lost = (index - choice.apart) % choice.dp not in choice.holders.values()
    return [*mine.copies.own_pieces(choice.step), *(mine.copies.neighbours_pieces(choice.step) if lost else ())]


def _sources(choice: Choice, column: Sequence[int], now: Layout, planned: Layout) -> list[list[int]]:
    """Groups of ranks of the column that each hold the whole state once."""
    holders = {index * now.cp + now.coordinate(rank)["cp"]: rank for rank, index in choice.holders.items() if rank in column}
    if choice.from_copies:
        return [sorted(holders.values())]
    for rank, indices in choice.adopted.items():
        holders |= {index * now.cp + now.coordinate(rank)["cp"]: rank for index in indices if rank in column}
    groups = whole_groups(layout_with(planned, choice.dp), {position // now.cp for position in holders})
    return [sorted({holders[position] for position in group}) for group in groups]


@dataclass(slots=True, kw_only=True)
class Keeping:
    """What the loop does after every step so that the loss of a replica does not end the run."""

    carry: Carry
    copies: Copies | None = None
    wants_change: Callable[[], bool] = bool  # whether this process was told that replicas join or leave
    changes_after: frozenset[int] = frozenset()  # steps after which a list of memberships changes them
    leaving: Callable[[int], Sequence[int]] = lambda step: ()  # positions of the replicas that leave after a step

    def hand_in(self, progress: Counts) -> None:
        """Give the state of replicas that leave to those that stay, at the step boundary at which a generation ends."""
        self.carry.left_s = time.monotonic()
        self.carry.holdings[0].adopt(self.leaving(progress.step))

    def settle(self, device: torch.device) -> None:
        """Nothing of the generation before is left in memory, and nothing more is compiled."""
        self.carry.settle(device)

    def after_step(self, progress: Counts) -> float:
        """Drop what all ranks no longer need, and copy the state if it is due; return the seconds of the copy."""
        if self.copies is None:
            self.carry.settled()
            return 0.0
        is_covered = self.copies.num_taken > 0  # and all ranks have the copies, because a sum over all of them has ended since
        if is_covered:
            self.carry.settled()
            self.copies.confirmed()
        return self.copies.take(progress.step, progress.samples) if self.copies.is_due(progress.step) or not is_covered else 0.0
