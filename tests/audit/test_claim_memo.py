from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.audit import memo
from meshwright.audit.claim import claim_of, read_claim
from meshwright.audit.claim_memo import OUTCOMES, QUESTIONS, claim_memo, questions
from meshwright.audit.judge import Judgement, judge, with_forecast
from meshwright.audit.verdict import VERDICTS
from meshwright.say.memo import FAIL, OPEN, PASS

CLAIMS = Path(__file__).parents[2] / "examples" / "claims"


@pytest.fixture(scope="module")
def exposed() -> Judgement:
    return with_forecast(judge(read_claim(CLAIMS / "exposed-communication.toml")))


def test_the_memo_has_a_verdict_checks_a_picture_and_questions(exposed: Judgement) -> None:
    made = claim_memo(exposed)
    assert (made.outcome, made.verdict, made.title) == (OPEN, "unsupported", exposed.claim.text)
    assert made.headline.startswith("The claim is unsupported (nothing public supports it): ")
    assert "the claim, 1.271 s, is inside the interval" in made.second
    assert [one.about for one in made.findings] == [one.about for one in exposed.statements]
    [drawn] = made.ranges
    assert drawn.low < drawn.claimed < drawn.high and drawn.claimed_text == "1.271 s"
    assert "the layout that the claim states" in made.ranges_remark
    titles = [part.title for part in made.parts]
    assert titles == ["What the forecast assumes", "What to ask next", "Sources"]
    asked = made.parts[1].lines
    assert "Where is a profile of a step that shows computing and communication of a rank?" in asked
    assert any("Azure on its MLPerf Training v6.0 result" in line for line in made.parts[2].lines)


def test_a_claim_that_cannot_be_forecast_says_so_in_every_form() -> None:
    judged = with_forecast(judge(read_claim(CLAIMS / "gpt3-cost.toml")))
    made = claim_memo(judged)
    missing = "the claim does not give a benchmark or a model of the catalogue"
    assert (made.outcome, made.ranges, made.second) == (FAIL, (), "") and missing in made.ranges_remark
    values = memo.judgement_values(judged)["own_forecast"]
    assert (values["missing"], values["compared"], values["best_forecast"]) == (missing, [], None)
    assert f"None: {missing}." in memo.as_markdown(judged)


def test_the_forecast_is_in_json_and_markdown(exposed: Judgement) -> None:
    values = memo.judgement_values(exposed)["own_forecast"]
    [one] = values["compared"]
    assert (one["quantity"], one["claimed_value"], one["lies"], one["beyond_ratio"]) == ("time of a step", 1.2712, "inside", 1.0)
    assert one["forecast_low"] < one["forecast_value"] < one["forecast_high"]
    assert values["is_layout_stated"] and values["best_forecast"]["step_s"] == one["forecast_value"]
    text = memo.as_markdown(exposed)
    assert "## meshwright's own forecast" in text and "| time of a step | 1.271 s |" in text


def test_without_a_forecast_nothing_is_said_of_one() -> None:
    judged = judge(read_claim(CLAIMS / "gpt3-cost.toml"))
    made = claim_memo(judged)
    assert (made.ranges, made.ranges_remark) == ((), "")
    assert memo.judgement_values(judged)["own_forecast"] is None and "forecast" not in memo.as_markdown(judged)


def test_a_forecast_changes_no_verdict(exposed: Judgement) -> None:
    plain = judge(exposed.claim)
    assert (plain.verdict, plain.why, plain.statements) == (exposed.verdict, exposed.why, exposed.statements)


def test_every_verdict_has_an_outcome_and_every_doubt_a_question() -> None:
    assert set(OUTCOMES) == set(VERDICTS) and set(OUTCOMES.values()) == {PASS, OPEN, FAIL}
    for path in CLAIMS.glob("*.toml"):
        for one in judge(read_claim(path)).statements:
            assert any(one.about.startswith(start) for start in QUESTIONS), one.about


def test_a_claim_that_names_its_log_is_not_asked_for_one() -> None:
    facts = {"accelerator": "h100", "usd_per_gpu_hour": 3.0}
    assert len(list(questions(judge(claim_of(facts, "test"))))) == 1
    assert list(questions(judge(claim_of({**facts, "log": "https://example.org/result_0.txt"}, "test")))) == []
