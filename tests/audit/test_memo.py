from __future__ import annotations

import json
from pathlib import Path

from meshwright.audit import memo
from meshwright.audit.claim import claim_of, read_claim
from meshwright.audit.judge import judge

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
