"""Steps as columns, and what a screen gets of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.serve.steps import Steps, bucket_rows

from .conftest import record


def line(number: int, **changes: object) -> bytes:
    return json.dumps({**record(number).to_json(), **changes}).encode()


def filled(num_steps: int) -> Steps:
    steps = Steps()
    for step in range(1, num_steps + 1):
        steps.add(line(step, step_s=5.0 if step == 77 else 1.0, loss=float(step)))
    return steps


def test_a_bucket_is_the_smallest_power_of_two_that_fits():
    assert [bucket_rows(rows, 100) for rows in (0, 1, 100, 101, 200, 201, 100_000)] == [1, 1, 1, 2, 2, 4, 1024]


def test_few_steps_come_as_they_are():
    shown = filled(3).thinned()
    assert (shown["bucket"], shown["from"], shown["rows"]) == (1, 0, 3)
    assert shown["columns"]["step"] == [1, 2, 3]
    assert shown["columns"]["passed_s"] == [1, 2, 3]


def test_what_routers_did_is_shown_where_there_are_experts():
    steps = Steps()
    for step in (1, 2):
        steps.add(line(step, expert_peak=2.0 * step, router_entropy=1.5, balance_loss=1.0, expert_loads=[[0.5, 1.5]]))
    shown = steps.thinned()["columns"]
    assert (shown["expert_peak"], shown["router_entropy"], shown["balance_loss"]) == ([2.0, 4.0], [1.5, 1.5], [1.0, 1.0])
    assert "expert_peak" not in filled(2).thinned()["columns"]


def test_a_bucket_tells_mean_longest_and_shortest():
    shown = filled(100).thinned(points=25)
    assert shown["bucket"] == 4
    assert shown["columns"]["step"][19] == 80
    assert shown["columns"]["step_s"][19] == 2.0  # of 5, 1, 1 and 1
    assert (shown["columns"]["longest_s"][19], shown["columns"]["shortest_s"][19]) == (5.0, 1.0)
    assert shown["columns"]["loss"][0] == 2.5


def test_increments_build_the_same_as_a_whole_answer():
    steps, kept, known = Steps(), {}, {"rows": 0, "bucket": 0}
    for step in range(1, 501):
        steps.add(line(step))
        if step % 7 == 0:
            thinned = steps.thinned(after=known["rows"], bucket=known["bucket"], points=50)
            kept = {name: kept.get(name, [])[: thinned["from"]] + values for name, values in thinned["columns"].items()}
            known = thinned
    thinned = steps.thinned(after=known["rows"], bucket=known["bucket"], points=50)
    kept = {name: kept[name][: thinned["from"]] + values for name, values in thinned["columns"].items()}
    assert kept == steps.thinned(points=50)["columns"]


def test_an_increment_holds_what_is_new_and_no_more():
    steps = filled(1000)
    thinned = steps.thinned(after=1000, bucket=1)
    assert thinned["columns"]["step"] == []
    steps.add(line(1001))
    assert steps.thinned(after=1000, bucket=1)["columns"]["step"] == [1001]


def test_a_stretch_comes_finer_than_the_whole():
    steps = filled(1000)
    shown = steps.between(100, 149, points=50)
    assert shown["bucket"] == 1
    assert shown["columns"]["step"] == list(range(100, 150))


def test_a_loss_that_is_no_number_is_none_and_spoils_no_mean():
    steps = Steps()
    steps.add(line(1, loss=2.0))
    steps.add(line(2, loss="NaN"))
    steps.add(line(3, loss="Infinity"))
    assert steps.thinned()["columns"]["loss"] == [2.0, None, None]
    assert steps.thinned(points=1)["columns"]["loss"] == [2.0]


def test_a_column_nobody_fills_is_left_out():
    steps = Steps()
    steps.add(json.dumps({"step": 1, "samples": 8, "loss": None, "grad_norm": None, "step_s": 1.0}).encode())
    assert set(steps.thinned()["columns"]) == {"step", "samples", "step_s", "passed_s", "shortest_s", "longest_s"}


@pytest.mark.parametrize(
    "bad, why",
    [
        (b"{", "Expecting"),
        (b"[1]", "not a JSON object"),
        (b"\0", "Expecting"),
        (b"[" * 100_000, "nested too deep"),
        (line(1, step="1"), "step is '1'"),
        (line(1, step=True), "step is True"),
        (line(1, step=-1), "below 0"),
        (line(1, step=1e400), "step is"),
        (line(1, step_s=-1.0), "not a possible duration"),
        (line(1, step_s="NaN"), "not a possible duration"),
        (line(1, compute_s=-0.5), "not a possible duration"),
        (line(1, extra="<script>"), "extra is"),
        (b'{"step": 1, "samples": 1, "step_s": 1' + b"0" * 400 + b"}", "too large"),
    ],
)
def test_a_damaged_line_says_why(bad, why):
    with pytest.raises((ValueError, InputError), match=why):
        Steps().add(bad)


def test_a_step_that_does_not_follow_is_refused():
    steps = filled(3)
    with pytest.raises(ValueError, match="step 3 follows step 3"):
        steps.add(line(3))


def test_the_short_way_and_the_careful_way_read_the_same(monkeypatch):
    short = filled(50)
    monkeypatch.setattr("meshwright.serve.steps._is_plain", lambda entry: False)
    careful = filled(50)
    for name in short.columns:
        np.testing.assert_array_equal(short.column(name), careful.column(name))
