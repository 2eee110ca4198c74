"""Work that hangs does not hold anybody; errors come through."""

from __future__ import annotations

import threading

import pytest

from meshwright.doctor.limit import is_hung, within


def test_results_and_errors_come_through():
    assert within(10.0, lambda: 7) == 7
    assert within(10.0, lambda: None) is None
    with pytest.raises(OSError, match="no disk"):
        within(10.0, lambda: (_ for _ in ()).throw(OSError("no disk")))
    assert not is_hung()


def test_work_that_hangs_is_left_behind():
    release = threading.Event()
    with pytest.raises(TimeoutError, match="longer than 0 s"):
        within(0.05, release.wait)
    assert is_hung()
    release.set()
    for thread in threading.enumerate():
        if thread.name == "meshwright-doctor":
            thread.join(10.0)
    assert not is_hung()
