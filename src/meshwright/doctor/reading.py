"""A reading: what one rank found on its node. None where a node does not have it, or where it could not be read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.frozen import FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the driver describes it while nothing of ours runs there."""

    index: int
    name: str
    driver: str | None = None
    memory_bytes: float | None = None
    used_bytes: float | None = None
    power_limit_w: float | None = None
    ecc_uncorrected: int | None = None  # errors since the driver was loaded
    rows_pending: bool | None = None  # whether rows of its memory wait for a reset to be replaced
    rows_failed: bool | None = None  # whether replacing a row failed
    clock_hz: float | None = None
    max_clock_hz: float | None = None
    slowdowns: int | None = None  # NVML's bits: why the clock is not higher


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Bytes a second that two ranks sent each other at once, each way."""

    first: int
    second: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one rank found. What a node has once, such as its disk, the node's first rank reads."""

    node: str
    rank: int = 0
    local_rank: int = 0
    num_gpus: int = 0  # of the node
    gpu: Gpu | None = None  # this rank's, before any work
    busy_gpu: Gpu | None = None  # the same under a long multiplication
    gpu_users: tuple[str, ...] = ()  # processes that hold memory of this rank's GPU
    flops_per_s: float | None = None
    copy_bytes_per_s: float | None = None  # read and written together
    memory_bytes: float | None = None  # of the host
    available_bytes: float | None = None
    ecc_uncorrected: int | None = None  # of the host's memory
    disk_folder: str = ""
    disk_write_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_free_bytes: float | None = None
    clock_ahead_s: float | None = None  # of rank 0's clock
    clock_error_s: float | None = None  # how far that may be off
    versions: Mapping[str, str] = field(default_factory=FrozenDict, hash=False)
    failed: Mapping[str, str] = field(default_factory=FrozenDict, hash=False)  # what could not be read, and why
    took_s: float = 0.0

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for its node."""
        return self.local_rank == 0

    def to_text(self) -> str:
        """The reading as JSON, to be sent to rank 0."""
        return json.dumps(dataclasses.asdict(self))


def reading_of(text: str) -> Reading:
    """The reading that another rank sent."""
    values: dict[str, Any] = json.loads(text)
    for key in ("gpu", "busy_gpu"):
        values[key] = Gpu(**values[key]) if values[key] else None
    return Reading(**{**values, "gpu_users": tuple(values["gpu_users"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The readings of all ranks, and what they found together."""

    num_ranks: int
    readings: tuple[Reading, ...]
    silent: Mapping[int, str] = field(default_factory=FrozenDict, hash=False)  # ranks that gave no reading, with their nodes
    pairs: tuple[Pair, ...] = ()
    stuck: tuple[tuple[int, int], ...] = ()  # pairs whose exchange did not end
    pairs_failed: str = ""  # why pairs were not timed, where they should have been
    notes: tuple[str, ...] = ()
    took_s: float = 0.0

    def node_of(self, rank: int) -> str:
        """The name of a rank's node."""
        return next((reading.node for reading in self.readings if reading.rank == rank), self.silent.get(rank, f"the node of rank {rank}"))

    def to_text(self) -> str:
        """All of it as JSON, from the rank that gathered it to the process that started it."""
        return json.dumps(dataclasses.asdict(self))


def gathered_of(text: str) -> Gathered:
    """What a rank has gathered and written."""
    values: dict[str, Any] = json.loads(text)
    return Gathered(
        num_ranks=values["num_ranks"],
        readings=tuple(reading_of(json.dumps(one)) for one in values["readings"]),
        silent={int(rank): node for rank, node in values["silent"].items()},
        pairs=tuple(Pair(**one) for one in values["pairs"]),
        stuck=tuple((first, second) for first, second in values["stuck"]),
        pairs_failed=values["pairs_failed"],
        notes=tuple(values["notes"]),
        took_s=values["took_s"],
    )
