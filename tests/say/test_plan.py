"""What a planning answer says: every plan is a forecast, under the same names and with the same numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.cli.show import show
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.plan.candidates import fixed_by
from meshwright.plan.explain import explain
from meshwright.plan.noise import plan_noise
from meshwright.plan.objective import Aim
from meshwright.plan.planned import Planned, planned
from meshwright.plan.sizes import Ask
from meshwright.say.document import VERSION, Document, Lines, Note, Pairs, Table, Text, plain
from meshwright.say.forecast import forecast_values
from meshwright.say.html import fragment
from meshwright.say.markdown import markdown
from meshwright.say.plan import _named, explanation_values, plan_document
from meshwright.units import seconds

SCRIPT = "<script>alert(1)</script>"
WORKLOAD = replace(load_workload("pretrain-1t"), seq_len=2048, global_batch=32, num_tokens=1e10)
JOB = Job("llama-3.2-1b", "dgx-h100-superpod", WORKLOAD, gpus=16)
JSON_TYPES = (str, int, float, bool, type(None), list, dict)


@pytest.fixture(scope="module")
def found() -> Planned:
    return planned(Ask(job=JOB, fixed=fixed_by("pp=2"), keep=3, aim=Aim(deadline_s=1e9)))


@pytest.fixture(scope="module")
def document(found: Planned) -> Document:
    return plan_document(found)


def assert_plain(value: object) -> None:
    assert type(value) in JSON_TYPES, value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_plain(inner)


def test_json_names_its_schema_and_has_jsons_own_types(document: Document) -> None:
    values = document.to_json()
    assert values["schema"] == f"meshwright/plan/{VERSION}"
    assert_plain(values)
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_every_plan_is_a_forecast_with_its_explanation(found: Planned, document: Document) -> None:
    plans = document.to_json()["plans"]
    assert len(plans) == 3
    for values, forecast in zip(plans, found.forecasts, strict=True):
        why = values.pop("explanation")
        assert values == plain(forecast_values(forecast))
        assert values == {key: value for key, value in forecast.to_json().items() if key != "schema"}
        assert why == plain(explanation_values(explain(forecast)))


def test_the_best_comes_first_and_is_the_plan(found: Planned, document: Document) -> None:
    values = document.to_json()
    steps = [plan["step_s"] for plan in values["plans"]]
    equal = values["num_equal"]  # these stand by preference, not by their step
    assert max(steps[:equal]) <= (1 + plan_noise()) * min(steps) and steps[equal:] == sorted(steps[equal:])
    assert steps[0] == found.forecast.step_s == found.plan.step_s
    assert values["explanation"] == values["plans"][0]["explanation"]
    assert values["fixed"] == {"pp": 2} and {plan["layout"]["pp"] for plan in values["plans"]} == {2}
    assert values["limits"][0]["what"] == "deadline" and values["notes"] == list(found.notes)


def test_without_an_explanation_there_is_none(found: Planned) -> None:
    values = plan_document(found, explained=False).to_json()
    assert values["explanation"] is None and not any("explanation" in plan for plan in values["plans"])


def test_the_terminal_shows_the_plans_their_layouts_and_the_notes(
    found: Planned, document: Document, capsys: pytest.CaptureFixture[str]
) -> None:
    show(document, as_json=False)
    printed = capsys.readouterr().out
    for one in found.forecasts:
        assert seconds(one.step_s) in printed
    assert str(found.forecast.layout) in printed  # whole, on one line
    assert "with pp=2 fixed and every other choice open" in printed and "what one change would gain" in printed
    assert all(isinstance(block, Table | Pairs | Lines | Text | Note) for block in document.blocks)


def test_the_sentence_on_the_limit_has_the_shares_of_the_best(found: Planned, document: Document) -> None:
    best = found.forecast
    first = max(best.parts, key=lambda part: best.parts[part])
    limit = explain(best).limit
    assert f"takes {100 * best.share(first):.1f} % of the step" in limit
    assert any(isinstance(block, Text) and block.text.lower() == f"{limit}.".lower() for block in document.blocks)


def test_changes_count_from_the_step_of_the_best(found: Planned, document: Document) -> None:
    (changes,) = [block for block in document.blocks if isinstance(block, Table) and block.title == "what one change would gain"]
    by_name = {change.what: change for change in explain(found.forecast).changes}
    for what, per_token, step, _ in changes.rows:
        times = 2 if what.startswith("twice the micro-batches") else 1
        assert step == seconds(by_name[what].step_s)
        assert per_token == f"{100 * (by_name[what].step_s / times / found.forecast.step_s - 1):+.1f} %"


def test_what_set_changed_is_compared_with_the_plan_without_it() -> None:
    slow = JOB.changed("fabric.GB_per_s=1")
    compared = planned(Ask(job=slow, keep=1), unchanged=Ask(job=JOB, keep=1))
    assert compared.before is not None
    values = plan_document(compared, explained=False)
    assert values.to_json()["without_set"]["step_s"] == compared.before.step_s < compared.forecast.step_s
    assert values.to_json()["change_with_set"]["what"] == "step_s"
    (answer,) = [block for block in values.blocks if isinstance(block, Pairs)]
    (line,) = [row for row in answer.rows if row[0] == "without --set"]
    assert line[1] == seconds(compared.before.step_s)
    assert line[2].startswith(f"{100 * (compared.forecast.step_s / compared.before.step_s - 1):,.1f} % longer with it")


def test_a_change_of_the_batch_is_compared_by_time_per_token() -> None:
    compared = planned(Ask(job=JOB.changed("workload.global_batch=64"), keep=1), unchanged=Ask(job=JOB, keep=1))
    before, after = compared.before, compared.forecast
    assert before is not None and before.tokens_per_s < after.tokens_per_s
    said = plan_document(compared, explained=False)
    assert said.to_json()["change_with_set"] == {
        "what": "time_per_token",
        "longer_pct": pytest.approx(100 * (before.tokens_per_s / after.tokens_per_s - 1)),
    }
    (line,) = [row for block in said.blocks if isinstance(block, Pairs) for row in block.rows if row[0] == "without --set"]
    assert line[1] == f"{seconds(before.step_s)} for 32 x 2,048 tokens"
    assert line[2].startswith(f"{100 * (1 - before.tokens_per_s / after.tokens_per_s):.1f} % less time per token with it; ")


def test_where_the_layout_fixes_everything_nothing_is_called_open(found: Planned) -> None:
    whole = plan_document(planned(Ask(job=JOB, fixed=fixed_by(str(found.forecast.layout)), keep=3)), explained=False)
    (searched,) = [row for block in whole.blocks if isinstance(block, Pairs) for row in block.rows if row[0] == "searched"]
    assert searched == ("searched", "1 layout", "--layout leaves no choice open: `meshwright predict` prices the same layout")


def test_every_name_is_escaped() -> None:
    job = Job(
        replace(load_model("llama-3.2-1b"), name=SCRIPT),
        replace(load_cluster("dgx-h100-superpod").resized(8), name=SCRIPT),
        replace(WORKLOAD, name=SCRIPT),
    )
    document = plan_document(planned(Ask(job=job, fixed=fixed_by("tp=2,pp=1,cp=1"), keep=1)))
    page, shown = fragment(document), markdown(document)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "<script" not in shown.replace("\\<script", "") and "\\<script\\>" in shown


@pytest.mark.parametrize(
    ("names", "words"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c"), (["a", "b", "c", "d"], "a, b, c and d")]
)
def test_stacks_are_listed_as_in_a_sentence(names: list[str], words: str) -> None:
    assert _named(names) == words
