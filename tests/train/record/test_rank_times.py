"""Busy times of ranks, as the live page reads them."""

from __future__ import annotations

import json

import numpy as np

from meshwright.train.record import rank_times
from meshwright.train.record.rank_times import RankTimes


def test_the_file_holds_medians_of_the_last_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_times, "EVERY_S", 0.0)
    times = RankTimes(tmp_path)
    for step, slow_s in enumerate((1.0, 9.0, 2.0), start=1):
        times.update(step, np.array([0.5, slow_s]))
    assert json.loads((tmp_path / "ranks.json").read_text()) == {"step": 3, "num_steps": 3, "busy_s": [0.5, 2.0]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ranks.json"]


def test_a_folder_that_is_gone_is_no_reason_to_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_times, "EVERY_S", 0.0)
    RankTimes(tmp_path / "nowhere").update(1, np.array([1.0]))
    assert list(tmp_path.iterdir()) == []
