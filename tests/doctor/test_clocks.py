"""Clocks compared through a store, as NTP does it."""

from __future__ import annotations

import threading
import time

import pytest
import torch.distributed as dist

from meshwright.doctor.clocks import ask_time, tell_time, value_of


@pytest.mark.parametrize("ahead_s", [0.0, 7.5, -3600.0])
def test_how_far_a_clock_is_ahead_is_found_within_its_error(ahead_s):
    store, until_s = dist.HashStore(), time.monotonic() + 60.0
    telling = threading.Thread(target=tell_time, args=(store, [3], until_s))
    telling.start()
    found = ask_time(store, 3, until_s, lambda: time.time() + ahead_s)
    telling.join()
    assert abs(found.ahead_s - ahead_s) <= found.error_s + 1e-3
    assert 0 <= found.error_s < 10.0


def test_a_rank_that_does_not_ask_holds_nobody_for_ever():
    store, began_s = dist.HashStore(), time.monotonic()
    tell_time(store, [1, 2], began_s + 0.1)
    assert time.monotonic() - began_s < 30.0
    assert not store.check(["doctor/tell/1/0"]) and not store.check(["doctor/tell/2/0"])


def test_a_value_that_does_not_come_is_late():
    with pytest.raises(TimeoutError, match="did not come"):
        value_of(dist.HashStore(), "never", time.monotonic() + 0.05)
