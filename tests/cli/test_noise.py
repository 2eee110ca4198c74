"""`meshwright noise`: the fit and the comparison with logs, on a few of them."""

from __future__ import annotations

import json

import pytest

from meshwright.cli.main import main
from meshwright.say.vocabulary import problems


def test_noise_is_fitted_and_compared_with_logs(capsys, tmp_path, monkeypatch):
    pytest.importorskip("scipy")
    pytest.importorskip("matplotlib")
    from meshwright.simulator import logs

    few = logs.step_logs()[-2:]
    monkeypatch.setattr(logs, "step_logs", lambda: few)
    out, page = tmp_path / "noise.json", tmp_path / "page.html"
    assert main(["noise", "--fit", "--out", str(out), "--html", str(page), "--seeds", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_logs"] == document["without_machines"]["num_logs"] == 2
    written = json.loads(out.read_text())
    assert set(written["constants"]) == set(document["constants"])
    assert [entry["name"] for entry in document["noise_classes"]] == list(written["classes"]) == ["blackwell-fp4", "common", "unpipelined"]
    assert problems(document) == []
    assert document["files"] == [{"what": "constants", "path": str(out)}, {"what": "page", "path": str(page)}]
    for row in document["compared_logs"]:
        assert abs(row["median_error_pct"]) < 5
        assert row["simulated_first_step_s"] > row["simulated_median_step_s"]
    assert page.read_text().count("<figure>") == 2


def test_the_comparison_with_logs_is_a_table_too(capsys, monkeypatch):
    pytest.importorskip("scipy")
    pytest.importorskip("matplotlib")
    from meshwright.simulator import logs

    few = logs.step_logs()[-1:]
    monkeypatch.setattr(logs, "step_logs", lambda: (*few, *few))
    assert main(["noise", "--seeds", "1"]) == 0
    printed = capsys.readouterr().out
    for words in ("constants by class of runs", "v6.0_Azure_2048xAzure_GB200", "Medians are off by", "of 2 logs", "First steps are within"):
        assert words in printed
