"""Metrics are what Prometheus can read."""

from __future__ import annotations

import pytest

from meshwright.serve.metrics import exposition

ROWS = [
    {
        "name": 'a "quoted" \\ name\nwith <b>',
        "status": "running",
        "kind": "trained",
        "model": "llama",
        "step": 7,
        "loss": 2.5,
        "num_damaged": 0,
    },
    {"name": "b", "status": "damaged"},
]


def test_the_text_is_as_the_format_says():
    lines = exposition(ROWS).splitlines()
    assert "# HELP meshwright_run_step Steps done." in lines
    assert "# TYPE meshwright_run_step gauge" in lines
    assert 'meshwright_run_step{run="a \\"quoted\\" \\\\ name\\nwith <b>"} 7.0' in lines
    assert 'meshwright_runs{status="damaged"} 1.0' in lines
    assert not any(line.startswith("meshwright_run_cost_usd") for line in lines)


def test_prometheus_own_parser_reads_it_back():
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(exposition(ROWS))}
    (step,) = families["meshwright_run_step"].samples
    assert (step.labels["run"], step.value) == (ROWS[0]["name"], 7.0)
    assert {sample.labels["status"]: sample.value for sample in families["meshwright_runs"].samples} == {"running": 1.0, "damaged": 1.0}
    assert all(family.type == "gauge" for family in families.values())


def test_no_run_is_no_line():
    assert exposition([]).strip() == ""
