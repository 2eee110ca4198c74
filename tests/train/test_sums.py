"""The sums of a step: what the host reads of them, and the scale of the update, which a GPU computes without the host."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from meshwright.errors import InputError
from meshwright.train.parallel.marks import Marks
from meshwright.train.sums import NUM_OWN, NUM_SUMS, Check, StepResult, Sums, update_scale

NOMINAL = 64
FIRST, SECOND = (9.0, 5.0, 77.0, 1.0, 3.0, 20.0), (16.0, 7.0, 78.0, 2.0, 3.0, 30.0)


def sums(loss: float, tokens: float, squares: float, stops: float = 0.0, saves: float = 0.0, changes: float = 0.0) -> Sums:
    """What two ranks' step summed up to; the first has a gradient of norm 3 and a loss of 5, the second of 4 and 7."""
    totals = torch.tensor([loss, tokens, squares, stops, saves, changes, 0.0, *FIRST, *SECOND], dtype=torch.float64)
    assert len(totals) == NUM_SUMS + 2 * NUM_OWN
    return Sums(totals, totals, None, NOMINAL, 2, None, Marks())


def test_a_result_is_per_token_that_carries_loss() -> None:
    found = sums(96.0, 32.0, 25.0, stops=1.0).result()
    checks = (Check(77.0, 2.0, 6.0, 20.0), Check(78.0, 4.0, 6.0, 30.0))
    own = {"own_norms": (6.0, 8.0), "own_losses": (5.0, 7.0), "checks": checks}
    assert found == StepResult(loss=3.0, grad_norm=10.0, num_tokens=32, stops=True, **own)


@pytest.mark.parametrize("tokens", [0.0, math.nan])
def test_a_batch_without_labels_is_an_error(tokens: float) -> None:
    with pytest.raises(InputError, match="no token of the batch carries loss"):
        sums(1.0, tokens, 1.0).result()


@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 10.0, 20.0])
@pytest.mark.parametrize("squares", [1e-8, 25.0, 25.0 + 1e-9, 1e12])
def test_the_device_scales_by_what_the_host_would(clip_norm: float, squares: float) -> None:
    found = sums(96.0, 32.0, squares)
    halted = torch.zeros((), dtype=torch.bool)
    scale = found.scale(clip_norm, halted)
    assert scale.dtype == torch.float32 and not halted
    assert scale.item() == torch.tensor(update_scale(found.result(), NOMINAL, clip_norm), dtype=torch.float32).item()


def test_scales_by_hand() -> None:
    result = sums(96.0, 32.0, 25.0).result()  # a norm of 10
    assert [update_scale(result, NOMINAL, clip) for clip in (0.0, 10.0, 20.0, 1.0)] == [2.0, 2.0, 2.0, 0.2]


@pytest.mark.parametrize(
    "wrong", [(math.nan, 32.0, 25.0), (math.inf, 32.0, 25.0), (96.0, 0.0, 25.0), (96.0, 32.0, math.nan), (96.0, 32.0, math.inf)]
)
def test_a_step_without_numbers_stops_all_updates_that_follow(wrong: tuple[float, float, float]) -> None:
    halted = torch.zeros((), dtype=torch.bool)
    assert math.isnan(sums(*wrong).scale(1.0, halted).item()) and halted
    assert math.isnan(sums(96.0, 32.0, 25.0).scale(1.0, halted).item()) and halted


def test_what_rides_with_the_sums_arrives_once() -> None:
    arrived: list[list[list[float]]] = []

    class Guest:
        values = (1.0, 2.0, 3.0)

        def arrive(self, everyones: torch.Tensor) -> None:
            arrived.append(everyones.tolist())

    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    totals = torch.cat((sums(96.0, 32.0, 25.0).totals, torch.tensor(rows, dtype=torch.float64).flatten()))
    found = Sums(totals, totals, None, NOMINAL, 2, Guest(), Marks())
    assert found.result() == found.result() == sums(96.0, 32.0, 25.0).result()
    assert arrived == [rows]


class Arrived:
    """The event of a device, at which a copy to the host has ended."""

    def synchronize(self) -> None:
        pass


def test_sums_of_a_rank_that_was_cut_off_are_not_read() -> None:
    """A communicator that is aborted ends as if all were well, and leaves anything in its buffers."""
    arrived: Any = Arrived()
    whole = replace(sums(96.0, 32.0, 25.0), arrived=arrived)
    assert whole.result() == sums(96.0, 32.0, 25.0).result()
    with pytest.raises(RuntimeError, match="connections to other ranks were cut"):
        replace(sums(96.0, 32.0, 25.0), arrived=arrived, is_cut=lambda: True).result()
