"""`meshwright audit claim`: memos, JSON and Markdown, claims by options, exit codes and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli.audit_claim import _changes, _set
from meshwright.errors import InputError
from meshwright.say.vocabulary import problems

CLAIMS = Path(__file__).parents[2] / "examples" / "claims"


@pytest.fixture
def verb():
    return "audit"


@pytest.fixture
def judged(answer):
    """The only claim of an answer."""

    def judged_claim(*arguments):
        found = answer(*arguments, "--no-forecast")
        assert problems(found) == []
        [one] = found["claims"]
        return one

    return judged_claim


def test_a_claim_as_a_memo(run):
    code, out, err = run("claim", str(CLAIMS / "gpt3-cost.toml"))
    assert (code, err) == (0, "")
    assert out == (
        "GPT-3 175B in 9.87 minutes on 1,024 H100 at a cost of $50,000\n"
        "impossible: $297 per GPU-hour is 24.15 times the highest list price\n"
        "source: a vendor's page\n"
        f"file: {CLAIMS / 'gpt3-cost.toml'}\n"
        "expected: impossible (as found)\n"
        "\n"
        "  impossible  price: $297 per GPU-hour is 24.15 times the highest list price\n"
        "      time: 1,024 GPUs x 592.2 s / 3,600 = 168.4 GPU-hours\n"
        "      price: $50,000 / 168.4 GPU-hours = $297 per GPU-hour\n"
        "      list prices of h100: $2.15 (nebius spot, 2026-07-22) to $12.29 (azure on-demand, 2026-11-09)\n"
        "      $297 is 24.15 times the highest list price\n"
        "\n"
        "no forecast of meshwright's own: the claim does not give a benchmark or a model of the catalogue\n"
    )


def test_a_claim_as_json(judged):
    found = judged("claim", str(CLAIMS / "weak-scaling-efficiency.toml"))
    assert found["verdict"] == "misleading"
    assert {"verdict", "why", "arithmetic"} <= set(found["statements"][0])


def test_several_claims_are_a_list(answer):
    found = answer("claim", *(str(path) for path in sorted(CLAIMS.glob("*.toml"))), "--no-forecast")
    assert problems(found) == []
    assert [one["verdict"] for one in found["claims"]] == [one["expected_verdict"] for one in found["claims"]]


def test_flags_make_a_claim(judged):
    facts = ("--benchmark", "gpt3", "--accelerator", "h100", "--gpus", "1024", "--minutes")
    assert judged("claim", *facts, "9.87", "--round", "v4.0")["verdict"] == "impossible"
    assert judged("claim", *facts, "25")["verdict"] == "consistent"
    assert judged("claim", *facts, "25", "--round", "v4.0")["verdict"] == "unknown"


@pytest.mark.parametrize(
    "flags, verdict",
    [
        ("--model llama-3.1-8b --tokens 15e12 --seq-len 8192 --accelerator h100 --gpus 1024 --days 60", "consistent"),
        ("--model llama-3.1-8b --tokens 15e12 --seq-len 8192 --accelerator h100 --gpus 1024 --days 4", "impossible"),
        ("--accelerator h100 --price 3", "consistent"),
        ("--accelerator h100 --price 297", "impossible"),
        ("--accelerator h100 --gpus 8 --minutes 60 --cost 32", "consistent"),
        ("--efficiency 99.8 --step-s 1.2712 --baseline-step-s 1.2734", "misleading"),
        ("--speedup 2 --minutes 10 --baseline-minutes 20", "consistent"),
        ("--speed-up 2 --minutes 20 --baseline-minutes 10", "misleading"),
        ("--speedup 2.3 --minutes 9.87 --benchmark gpt3 --round v4.0 --over-record", "impossible"),
        ("--record --minutes 3.7085 --benchmark gpt3 --round v4.0", "consistent"),
        ("--largest-of gb200 --gpus 8192 --accelerator gb200", "consistent"),
        ("--largest-of all --gpus 8192 --accelerator gb200", "impossible"),
        ("--mfu 120 --accelerator h100 --precision bf16", "impossible"),
        ("--tflops-per-gpu 400 --accelerator h100", "consistent"),
        ("--set part=148 --set total=419 --set share_pct=35.3", "consistent"),
        ("--set exposed_ms=20 --set exposed_pct=1.6 --step-s 1.2712 --set profile=https://example.org/x", "unsupported"),  # no log
        ("--set variation_pct=[0.04,0.05] --accelerator gb200 --gpus 8192", "unsupported"),
        ("--speedup 2 --minutes 10 --set baseline.minutes=10 --set baseline.minutes=20 --baseline-gpus 8", "consistent"),
    ],
)
def test_a_verdict_by_flags(judged, flags, verdict):
    assert judged("claim", *flags.split())["verdict"] == verdict


def test_a_flag_changes_a_file(judged):
    assert judged("claim", str(CLAIMS / "gpt3-cost.toml"), "--cost", "1000")["verdict"] == "consistent"
    assert judged("claim", str(CLAIMS / "weak-scaling-efficiency.toml"), "--efficiency", "100.2")["verdict"] == "unsupported"
    path = str(CLAIMS / "h200-28-percent-faster.toml")
    assert judged("claim", path, "--baseline-samples", "7440")["verdict"] == "consistent"


def test_a_claim_as_markdown(run):
    code, out, _ = run("claim", str(CLAIMS / "llama3-faulty-gpu.toml"), "--markdown")
    assert code == 0 and out.startswith("# faulty GPU: 148 interruptions") and "| share | misleading |" in out


def test_a_claim_as_a_page_with_its_forecast(run, tmp_path):
    page = tmp_path / "memo.html"
    code, out, err = run("claim", str(CLAIMS / "exposed-communication.toml"), "--html", str(page))
    assert (code, err) == (0, "") and "the layout that the claim states" in " ".join(out.split())
    assert "wrote the page:" in out
    assert "inside the interval" in page.read_text() and "1.6 % of a step" in page.read_text()


@pytest.mark.parametrize("word, code", [("unsupported", 1), ("misleading", 1), ("implausible", 0), ("impossible", 0)])
def test_the_exit_status_follows_fail_on(run, word, code):
    assert run("claim", str(CLAIMS / "llama3-faulty-gpu.toml"), "--fail-on", word)[0] == code


def test_a_record_in_another_precision_is_reported(judged):
    claimed = ("claim", "--benchmark", "llama31_405b", "--accelerator", "gb200", "--gpus", "8192", "--round", "v6.0", "--step-s", "4")
    for precision, is_noted in (("bf16", True), ("nvfp4", False)):
        found = judged(*claimed, "--precision", precision)
        notes = [any("not like with like: on record is fp4 (nvfp4)" in line for line in one["arithmetic"]) for one in found["statements"]]
        assert any(notes) == is_noted, precision


def test_the_shipped_claims_are_listed(run):
    found = json.loads(run("claim", "--examples", "--json")[1])
    assert problems(found) == []
    listed = found["examples"]
    assert [Path(one["path"]) for one in listed] == sorted(CLAIMS.glob("*.toml")) and all(
        one["expected_verdict"] and one["claim"] for one in listed
    )
    code, out, _ = run("claim", "--examples")
    assert out.startswith(f"claims in {CLAIMS}\n")
    assert code == 0 and "gpt3-cost.toml" in out and len(out.splitlines()) == len(list(CLAIMS.glob("*.toml"))) + 3


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "no claim is given"),
        (["nowhere.toml"], "cannot read nowhere.toml"),
        (["--gpus", "0"], "gpus is 0"),
        (["--gpus", "many"], "--gpus is 'many'"),
        (["--minutes", "-3"], "minutes is -3"),
        (["--minutes", "nan"], "minutes is nan"),
        (["--accelerator", "h101", "--price", "3"], "no accelerator named 'h101'"),
        (["--benchmark", "bert"], "no benchmark named 'bert'"),
        (["--gpus", "8"], "nothing in the claim can be checked"),
        (["--round", "soon", "--minutes", "3"], "'soon' is not a round"),
        (["--accelerator", "h100", "--price", "3", "--fail-on", "bad"], "no verdict named 'bad'"),
        (["--efficiency", "0.998"], "it is in per cent"),
        (["--gpu", "8"], "no option --gpu\n"),
        (["--scaling", "up", "--efficiency", "90"], "scaling is 'up'"),
        (["--minutes", "3", "--days", "3"], "minutes and days are both given"),
        (["--set", "gpus"], "'gpus' is not KEY=VALUE"),
        (["--set", "gpus=many"], "gpus is 'many'"),
        (["--set", "gpu=8"], "unknown key 'gpu'"),
        (["--set", "speed.up=8"], "unknown key 'speed'"),
    ],
)
def test_a_bad_claim_is_one_message(run, arguments, complaint):
    code, out, err = run("claim", *arguments)
    assert code == 2 and out == ""
    assert err.startswith("meshwright: ") and complaint in err and "Traceback" not in err


def test_an_unknown_key_lists_the_nearest_and_all(run, tmp_path):
    (tmp_path / "claim.toml").write_text("gpu = 8\n")
    code, _, err = run("claim", str(tmp_path / "claim.toml"))
    assert code == 2
    assert "unknown key 'gpu'" in err and "did you mean gpus?" in err and "known keys: benchmark, model" in err


def test_options_become_the_keys_of_a_claim_file():
    given = {"files": None, "gpus": 8, "round_name": "v4.0", "price": 3.0, "record": False, "over_record": True, "minutes": None}
    assert _changes(given | {"as_json": True, "set_keys": ["x=1"]}) == {
        "gpus": 8,
        "round": "v4.0",
        "usd_per_gpu_hour": 3.0,
        "baseline": {"record": True},
    }
    assert _changes({"baseline_gpus": 4, "baseline_step_s": 1.5}) == {"baseline": {"gpus": 4, "step_s": 1.5}} and _changes({}) == {}


@pytest.mark.parametrize(
    "items, table",
    [
        (["gpus=8"], {"gpus": 8}),
        (["gpus = 8", "gpus=16"], {"gpus": 16}),
        (["text=in a word"], {"text": "in a word"}),
        (['text="quoted = sign"'], {"text": "quoted = sign"}),
        (["baseline.minutes=3", "baseline.gpus=8"], {"baseline": {"minutes": 3, "gpus": 8}}),
        (["baseline.text=free words"], {"baseline": {"text": "free words"}}),
        (["variation_pct=[0.04,0.05]"], {"variation_pct": [0.04, 0.05]}),
        (["hours=3", "minutes=5"], {"minutes": 5}),
        ([], {}),
    ],
)
def test_keys_and_values_are_read_as_a_file_has_them(items, table):
    assert _set(items) == table


@pytest.mark.parametrize("item", ["", "=", "gpus", "gpus=", "=8", "  = 8", "gpus= "])
def test_what_is_no_key_and_value_is_refused(item):
    with pytest.raises(InputError) as caught:
        _set([item])
    assert caught.value.what == f"{item!r} is not KEY=VALUE" and caught.value.where == "--set"


def test_examples_that_are_not_installed_are_missed_in_words(run, monkeypatch, tmp_path):
    from meshwright.cli import audit_claim

    monkeypatch.setattr(audit_claim, "__file__", str(tmp_path / "a" / "b" / "c" / "audit_claim.py"))
    code, out, err = run("claim", "--examples")
    assert (code, out) == (2, "") and "there are no examples here" in err and "in the repository" in err
