"""Mappings that were run: what their records say, and how noise is told from difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mapped import a_mapping, a_run, a_trial

from meshwright.errors import MeshwrightError
from meshwright.lab import mapping_run, ranks
from meshwright.lab.description import Lab
from meshwright.lab.mapping_run import busy_seconds, in_measured_order, tried, try_all, try_mapping, unused_folder


def test_the_median_of_steady_steps_counts_and_its_error_is_noted(tmp_path):
    found = tried(a_mapping("pp", 2.0), a_run(tmp_path / "run", [9.0, 2.0, 2.2, 2.4, 2.0, 2.4]), 0.25)
    assert (found.measured_s, found.num_steps, found.others_share) == (2.2, 5, 0.25)
    assert found.error_s == pytest.approx(1.2533 * 0.2 / 5**0.5)
    assert found.off == pytest.approx(2.0 / 2.2 - 1)
    assert found.parts_s["compute"] == pytest.approx(2.2)


def test_a_wrong_order_is_found_where_it_is_more_than_noise():
    slow, fast = (
        a_trial("slow", predicted_s=1.0, measured_s=3.0, error_s=0.1),
        a_trial("fast", predicted_s=2.0, measured_s=2.0, error_s=0.1),
    )
    assert in_measured_order([slow, fast]) == [(slow, fast)]
    assert in_measured_order([replace(slow, error_s=0.6), fast]) == []
    assert in_measured_order([replace(slow, mapping=replace(slow.mapping, predicted_s=2.5)), fast]) == []


def test_each_mapping_is_trained_at_its_places_and_its_record_read(tmp_path, monkeypatch):
    started = []

    def run(begun, log):
        started.append(begun)
        a_run(tmp_path / "runs" / "pp", [1.0, 2.0, 2.0])
        return 0

    monkeypatch.setattr(ranks, "run", run)
    said: list[str] = []
    found = try_all([a_mapping("pp", 2.0, slots=(1, 0))], Lab(), tmp_path, 2, 10.0, said.append)
    assert found[0].measured_s == 2.0 and said == ["running pp across: 6 steps of about 2.00 s"]
    words = started[0][0].command
    assert [str(one.host) for one in started[0]] == ["r0h0", "r0h0"] and started[0][0].environment["LOCAL_RANK"] == "0"
    assert words[words.index("--steps") + 1] == "6" and Path(words[words.index("train") + 1]).is_file()


def test_a_run_that_fails_is_an_error_with_its_last_words(tmp_path, monkeypatch):
    def run(begun, log):
        log.write_text("meshwright: no corpus\n")
        return 2

    monkeypatch.setattr(ranks, "run", run)
    with pytest.raises(MeshwrightError, match="the run with pp across ended with status 2: meshwright: no corpus"):
        try_mapping(a_mapping("pp", 2.0), Lab(), tmp_path, 2, 10.0)


def test_core_time_of_the_machine_is_read_from_its_counters(tmp_path):
    path = tmp_path / "stat"
    path.write_text("cpu  100 20 30 4000 500 6 7 8 0 0\n")
    assert busy_seconds(path) == pytest.approx(1.63)
    assert mapping_run.children_seconds() >= 0.0


def test_an_earlier_mapping_is_neither_mixed_with_nor_deleted(tmp_path):
    wanted = tmp_path / "mappings"
    assert unused_folder(wanted) == wanted
    wanted.mkdir()
    assert unused_folder(wanted) == wanted
    (wanted / "runs").mkdir()
    assert unused_folder(wanted) == tmp_path / "mappings-2"
    (tmp_path / "mappings-2").write_text("a file of the user")
    assert unused_folder(wanted) == tmp_path / "mappings-3"
