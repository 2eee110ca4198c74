"""A step whose compute is a declared wait: how long each rank waits, and what it sends. Written for `train.paced`, which runs it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.files import read_text, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The steps of all ranks."""

    num_steps: int
    wait_s: float  # of a rank in a step, instead of computing
    replica_ranks: int  # ranks of a replica; those of the same place in every replica sum their gradients
    payload_bytes: tuple[tuple[int, ...], ...]  # of each sum, for each place in a replica
    slow_ranks: tuple[int, ...] = ()
    slow_factor: float = 1.0  # by which these wait longer
    slow_from: int = 0  # from this step on

    def wait_of(self, rank: int, step: int) -> float:
        """Seconds that a rank waits in a step."""
        is_slow = rank in self.slow_ranks and step >= self.slow_from
        return self.wait_s * (self.slow_factor if is_slow else 1.0)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_whole(path, json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, path: Path) -> Pace:
        """What `write` has written."""
        values = json.loads(read_text(path))
        payload = tuple(tuple(sizes) for sizes in values.pop("payload_bytes"))
        return cls(**{**values, "payload_bytes": payload, "slow_ranks": tuple(values.pop("slow_ranks"))})
