from __future__ import annotations

import json
from pathlib import Path

from made_logs import lines, submission, write

from meshwright.audit import log_memo, memo
from meshwright.audit.claim import claim_of, read_claim
from meshwright.audit.judge import judge
from meshwright.audit.score import read_submissions

CLAIMS = Path(__file__).parents[2] / "examples" / "claims"


def test_a_claim_as_markdown() -> None:
    assert memo.as_markdown(judge(read_claim(CLAIMS / "llama3-faulty-gpu.toml"))) == (
        "# faulty GPU: 148 interruptions, 30.1 % (of 419 unexpected ones)\n"
        "\n"
        "**Misleading** (its own numbers, or the public logs, say something else): 148 of 419 is 35.3 %, not 30.1 %.\n"
        "Source of the claim: The Llama 3 Herd of Models, table 5, 2024.\n"
        "\n"
        "| statement | verdict | why |\n"
        "| --- | --- | --- |\n"
        "| share | misleading | 148 of 419 is 35.3 %, not 30.1 % |\n"
        "\n"
        "## Arithmetic\n"
        "\n"
        "share:\n"
        "\n"
        "- share: 148 / 419 = 35.32 %; claimed 30.1 %\n"
        "- 30.1 % would be 126.1 of 419\n"
    )


def test_what_others_wrote_cannot_break_the_memo() -> None:
    text = memo.as_markdown(judge(claim_of({"text": "<script>|x|\n# y", "part": 1, "total": 2, "share_pct": 50}, "x")))
    assert text.startswith("# \\<script\\>\\|x\\| \\# y\n")


def test_a_claim_as_json_has_the_three_keys_of_every_statement() -> None:
    found = memo.judgement_values(judge(read_claim(CLAIMS / "gpt3-cost.toml")))
    assert found["verdict"] == found["expected_verdict"] == "impossible"
    for one in found["statements"]:
        assert {"verdict", "why", "arithmetic"} <= set(one) and isinstance(one["arithmetic"], list)
    assert any("$297 per GPU-hour" in line for line in found["statements"][0]["arithmetic"])
    json.dumps(found)


def test_statements_come_with_the_worst_first() -> None:
    judgement = judge(read_claim(CLAIMS / "weak-scaling-efficiency.toml"))
    assert [one.verdict for one in judgement.statements][:2] == ["misleading", "unsupported"]
    assert judgement.why.startswith("the ratio is upside down")


def test_logs_as_markdown_and_findings(tmp_path: Path) -> None:
    submission(tmp_path)
    write(tmp_path / "result_2.txt", lines(learning_rate=9e-5, step_s=2.1)[:-3])
    one = read_submissions([tmp_path], with_compliance=False)[0]
    findings = list(log_memo.findings(one))
    assert findings[0] == "result_2.txt is truncated at line 31: it ends after eval_start, without run_stop"
    assert "the runs differ in opt_base_learning_rate: 8e-05, 9e-05" in findings
    assert "before the clock, and not scored: up to 0.5 min of initialisation" in findings
    text = log_memo.as_markdown(one)
    assert text.startswith("# llama31\\_405b, v5.1 (by its date), Example Labs, 2xEXAMPLE\n")
    assert "| result\\_2.txt | truncated, line 31 |" in text


def test_logs_as_json_say_where_they_stop_being_whole(tmp_path: Path) -> None:
    submission(tmp_path)
    write(tmp_path / "result_1.txt", [*lines()[:4], ":::MLLOG {broken", *lines()[4:]])
    found = log_memo.submission_values(read_submissions([tmp_path], with_compliance=False)[0])
    states = [(log["state"], log["is_whole"], log["line"]) for log in found["logged_runs"]]
    assert states == [("whole", True, None), ("damaged", False, 5), ("whole", True, None)]
    assert found["logged_runs"][0]["step_times"]["median_step_s"] == 2.0 and found["logged_runs"][0]["time_to_train_s"] == 22.0
