"""Declared steps: written, read, and slowed."""

from __future__ import annotations

from meshwright.record.pace import Pace

PACE = Pace(num_steps=4, wait_s=0.1, replica_ranks=2, payload_bytes=((400,), (80, 40)), slow_ranks=(1,), slow_factor=1.5, slow_from=3)


def test_what_is_written_is_read(tmp_path):
    PACE.write(tmp_path / "pace.json")
    assert Pace.read(tmp_path / "pace.json") == PACE


def test_slow_ranks_wait_longer_from_their_step_on():
    assert [PACE.wait_of(1, step) for step in (1, 2, 3, 4)] == [0.1, 0.1, 0.1 * 1.5, 0.1 * 1.5]
    assert PACE.wait_of(0, 4) == 0.1
