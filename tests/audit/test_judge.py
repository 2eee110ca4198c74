"""The claims that ship with the repository, copies of them with one thing changed, and every row of the table as a claim."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_logs import lines, write

from meshwright.audit import submissions as table
from meshwright.audit.checks.record import OTHER_SYSTEM
from meshwright.audit.claim import changed, claim_of
from meshwright.audit.judge import judge
from meshwright.audit.verdict import VERDICTS
from meshwright.describe.load import read_toml
from meshwright.errors import InputError
from meshwright.evidence.refit import MEASURED_CSV

CLAIMS = Path(__file__).parents[2] / "examples" / "claims"
FILES = sorted(CLAIMS.glob("*.toml"))


def verdict(name: str, **changes: Any) -> str:
    return judge(claim_of(changed(read_toml(CLAIMS / f"{name}.toml"), changes), name)).verdict


def of(facts: dict[str, Any]) -> str:
    return judge(claim_of(facts, "x")).verdict


def statement(facts: dict[str, Any], about: str) -> tuple[str, str]:
    found = {one.about: one for one in judge(claim_of(facts, "x")).statements}
    return found[about].verdict, found[about].why


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_claim_gets_the_verdict_it_expects(path: Path) -> None:
    judgement = judge(claim_of(read_toml(path), path.name))
    assert judgement.verdict == judgement.claim.expected
    assert judgement.claim.text and judgement.claim.source
    assert all(one.why and one.arithmetic for one in judgement.statements)


def test_the_shipped_claims_are_those_of_the_record() -> None:
    expected = sorted(read_toml(path)["expected"] for path in FILES)
    assert expected == sorted(["consistent"] * 3 + ["unsupported"] * 3 + ["misleading"] * 3 + ["impossible"] * 3)


CHANGED = [
    ("405b-in-7-minutes", {"minutes": 0.7}, "impossible"),  # 197 % of the fp4 peak
    ("405b-in-7-minutes", {"minutes": 3}, "implausible"),
    ("405b-in-7-minutes", {"minutes": 5.5}, "misleading"),  # the log of that submission says otherwise
    ("405b-in-7-minutes", {"minutes": 6.2}, "unknown"),  # of another system of theirs, perhaps
    ("405b-in-7-minutes", {"minutes": 70}, "misleading"),
    ("405b-in-7-minutes", {"submitter": "Somebody Else"}, "unknown"),
    ("405b-in-7-minutes", {"gpus": 64}, "impossible"),
    ("405b-in-7-minutes", {"steps": 100}, "implausible"),  # a third of the samples that the reference needs
    ("405b-in-7-minutes", {"round": "v6.1"}, "unknown"),
    ("405b-step-time", {"step_s": 0.1}, "impossible"),
    ("405b-step-time", {"step_s": 0.5}, "implausible"),
    ("405b-step-time", {"step_s": 1.6}, "misleading"),  # the logs of that submission say otherwise
    ("405b-step-time", {"step_s": 1.4}, "unsupported"),
    ("405b-step-time", {"step_s": 1.29}, "consistent"),  # within what its runs differ by
    ("step-time-at-112-racks", {"gpus": 8192}, "consistent"),
    ("step-time-at-112-racks", {"log": "https://example.org/result_0.txt"}, "consistent"),
    ("weak-scaling-efficiency", {"efficiency_pct": 100.2}, "unsupported"),  # right, but the smaller run has no log
    ("weak-scaling-efficiency", {"step_s": 1.2734, "baseline": {"step_s": 1.2712}}, "unsupported"),
    ("weak-scaling-efficiency", {"efficiency_pct": 100.2, "baseline": {"log": "https://example.org/result_0.txt"}}, "consistent"),
    ("weak-scaling-efficiency", {"efficiency_pct": 95.0}, "misleading"),
    ("exposed-communication", {"profile": "https://example.org/trace.json.gz"}, "consistent"),
    ("exposed-communication", {"exposed_pct": 5.0}, "misleading"),
    ("exposed-communication", {"exposed_ms": 2000}, "impossible"),
    ("exposed-communication", {"exposed_ms": 1250, "exposed_pct": 98.3}, "implausible"),
    ("step-time-variance", {"variation_of": "within-run"}, "misleading"),
    ("step-time-variance", {"variation_of": "within-run", "variation_pct": 0.2}, "consistent"),
    ("step-time-variance", {"variation_of": "between-runs", "variation_pct": 2}, "consistent"),
    ("step-time-variance", {"variation_of": "standard-error", "variation_pct": 0.01}, "consistent"),
    ("step-time-variance", {"variation_of": "within-run", "gpus": 7168}, "unsupported"),
    ("largest-cluster", {"largest_of": "all"}, "impossible"),  # 10,752 H100 in v3.1
    ("largest-cluster", {"gpus": 2560}, "impossible"),
    ("largest-cluster", {"gpus": 12000}, "unknown"),  # larger than any, but not on record
    ("gpt3-in-10-minutes", {"minutes": 25}, "unknown"),  # possible, and not in the table
    ("gpt3-in-10-minutes", {"minutes": 50.73, "gpus": 512}, "consistent"),
    ("gpt3-in-10-minutes", {"minutes": 15}, "implausible"),
    ("gpt3-in-10-minutes", {"gpus": 10752, "minutes": 3.71}, "consistent"),
    ("gpt3-in-10-minutes", {"precision": "bf16", "minutes": 20}, "impossible"),  # 1,000 TFLOP/s of 989
    ("gpt3-cost", {"cost_usd": 1000}, "consistent"),
    ("gpt3-cost", {"cost_usd": 5000}, "implausible"),
    ("gpt3-cost", {"cost_usd": 1}, "impossible"),
    ("gpt3-cost", {"accelerator": "gb300"}, "unknown"),  # no price in the table
    ("gpt3-over-the-record", {"minutes": 1.74}, "consistent"),
    ("gpt3-over-the-record", {"minutes": 3.71}, "misleading"),
    ("gpt3-over-the-record", {"minutes": 3.71, "speedup": 1.08}, "consistent"),
    ("gpt3-over-the-record", {"round": "v3.0"}, "unknown"),  # nothing before it
    ("h200-28-percent-faster", {"faster_pct": 6}, "consistent"),  # what throughput alone gives
    ("h200-28-percent-faster", {"speedup": 1.06, "speedup_of": "throughput"}, "consistent"),
    ("h200-28-percent-faster", {"speedup": 0.98, "speedup_of": "step"}, "consistent"),
    ("h200-28-percent-faster", {"baseline": {"samples": 7440}}, "consistent"),
    ("h200-28-percent-faster", {"faster_pct": 60}, "misleading"),
    ("h200-28-percent-faster", {"speedup": 0.78}, "misleading"),  # upside down
    ("llama3-faulty-gpu", {"share_pct": 35.3}, "consistent"),
    ("llama3-faulty-gpu", {"total": 492}, "consistent"),
    ("llama3-faulty-gpu", {"part": 500}, "impossible"),
]


@pytest.mark.parametrize("name, changes, expected", CHANGED)
def test_a_changed_claim_gets_another_verdict(name: str, changes: dict[str, Any], expected: str) -> None:
    assert verdict(name, **changes) == expected


def test_every_shipped_claim_is_also_changed() -> None:
    assert {name for name, _, _ in CHANGED} == {path.stem for path in FILES}


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    with MEASURED_CSV.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            facts: dict[str, Any] = {key: row[key] for key in ("benchmark", "round", "submitter", "accelerator")}
            facts |= {
                "gpus": int(row["num_accelerators"]),
                "global_batch": int(row["global_batch_size"]),
                "step_s": float(row["step_time_s"]),
            }
            if row["time_to_train_min"]:
                facts["minutes"] = float(row["time_to_train_min"])
            if row["samples_to_target"]:
                facts["samples"] = float(row["samples_to_target"])
            yield row["vendor"], facts


def test_every_row_on_a_known_accelerator_is_consistent() -> None:
    nvidia = [facts for vendor, facts in rows() if vendor == "NVIDIA"]
    assert len(nvidia) == 147
    assert [(facts["submitter"], of(facts)) for facts in nvidia if of(facts) != "consistent"] == []


def test_no_row_is_impossible_however_little_of_it_is_reported() -> None:
    for vendor, facts in rows():
        bare = {key: facts[key] for key in ("benchmark", "accelerator", "gpus", "minutes") if key in facts}
        if vendor == "NVIDIA" and "minutes" in bare:
            assert of(bare) == "consistent", facts


def test_a_row_that_the_table_lacks_is_never_impossible_nor_misleading(monkeypatch: pytest.MonkeyPatch) -> None:
    # A submission that is not in our table: each row is judged by a table without its round and submitter.
    whole = table.submissions()
    found = set()
    for vendor, facts in list(rows())[::4]:
        if vendor != "NVIDIA":
            continue
        rest = tuple(row for row in whole if (row.round, row.submitter) != (facts["round"], facts["submitter"]))
        monkeypatch.setattr(table, "submissions", lambda rest=rest: rest)
        table.best_rate.cache_clear()
        found.add(of({key: value for key, value in facts.items() if key != "step_s"}))
    table.best_rate.cache_clear()
    assert found <= {"consistent", "unknown", "implausible"} and "unknown" in found


def test_a_model_and_tokens_are_enough() -> None:
    facts = {
        "model": "llama-3.1-405b",
        "tokens": 15.6e12,
        "seq_len": 8192,
        "accelerator": "h100",
        "gpus": 16384,
        "days": 54,
        "precision": "bf16",
    }
    assert of(facts) == "consistent"
    # 6 x 405e9 x 15.6e12 = 3.8e25 FLOP and attention, over 16,384 x 54 days
    assert "3.9" in next(line for one in judge(claim_of(facts, "x")).statements for line in one.arithmetic if line.startswith("work"))
    assert of({**facts, "days": 20}) == "impossible"
    assert of({**facts, "days": 30}) == "implausible"


def test_parameters_and_tokens_are_enough() -> None:
    facts = {"parameters": 7e9, "tokens": 1e12, "accelerator": "h100", "gpus": 256, "hours": 120}
    assert of(facts) == "consistent"  # 4.2e22 FLOP / (256 x 432,000 s) = 380 TFLOP/s
    assert of({**facts, "hours": 20}) == "impossible"


def test_a_model_without_tokens_cannot_be_checked() -> None:
    assert statement({"model": "llama-3.1-8b", "accelerator": "h100", "gpus": 8, "hours": 1}, "compute")[0] == "unknown"


def test_a_benchmark_whose_sequences_are_not_known_cannot_be_checked() -> None:
    facts = {"benchmark": "gpt_oss_20b", "accelerator": "gb300", "gpus": 72, "minutes": 10}
    assert statement(facts, "compute") == ("unknown", "the claim does not say how much was trained: give seq_len")
    assert statement({**facts, "seq_len": 8192}, "compute")[0] == "consistent"


def test_a_number_format_that_the_accelerator_lacks_is_impossible() -> None:
    facts = {"benchmark": "gpt3", "accelerator": "a100", "gpus": 2048, "minutes": 100}
    assert statement({**facts, "precision": "fp8"}, "compute") == ("impossible", "a100-80gb has no tensor cores for fp8")
    assert of({**facts, "precision": "bf16"}) == "consistent"
    assert of({"accelerator": "h100", "precision": "nvfp4", "mfu_pct": 30}) == "impossible"


def test_a_model_that_does_not_fit_is_implausible() -> None:
    facts = {"model": "llama-3.1-405b", "tokens": 1e9, "accelerator": "h100", "gpus": 8, "days": 30}
    assert statement(facts, "memory") == ("implausible", "the training state alone takes 3.80 times the memory of the machine")


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({"mfu_pct": 45.0, "precision": "bf16"}, "consistent"),
        ({"mfu_pct": 60.0, "precision": "bf16"}, "consistent"),
        ({"mfu_pct": 75.0, "precision": "bf16"}, "implausible"),  # fp8 runs reach as many TFLOP/s, bf16 ones never did
        ({"mfu_pct": 85.0, "precision": "bf16"}, "implausible"),
        ({"mfu_pct": 105.0, "precision": "bf16"}, "impossible"),
        ({"mfu_pct": 45.0}, "unknown"),  # of which peak?
        ({"tflops_per_gpu": 450}, "consistent"),
        ({"tflops_per_gpu": 1300}, "implausible"),
        ({"tflops_per_gpu": 2500}, "impossible"),
        ({"tokens_per_s": 1e6, "model": "llama-3.1-8b", "gpus": 64, "seq_len": 8192}, "consistent"),
        ({"tokens_per_s": 1e7, "model": "llama-3.1-8b", "gpus": 64, "seq_len": 8192}, "impossible"),
        ({"tokens_per_s": 1e7, "model": "llama-3.1-8b"}, "unknown"),  # of how many?
        ({"tokens_per_s": 1e7, "gpus": 64}, "unknown"),  # of what?
        ({"tokens_per_s_per_gpu": 100, "model": "llama-3.1-405b", "precision": "bf16"}, "consistent"),
        ({"tokens_per_s_per_gpu": 1000, "model": "llama-3.1-405b", "precision": "bf16"}, "impossible"),
    ],
)
def test_a_rate_that_is_claimed_outright(facts: dict[str, Any], expected: str) -> None:
    assert of({"accelerator": "h100", **facts}) == expected


def test_a_share_may_be_of_large_numbers() -> None:
    assert of({"part": 3e9, "total": 12e9, "share_pct": 25}) == "consistent"
    assert of({"part": 3e9, "total": 12e9, "share_pct": 30}) == "misleading"


def test_a_run_on_an_unnamed_accelerator_may_still_be_impossible() -> None:
    facts = {"benchmark": "gpt3", "gpus": 1024}
    assert of({**facts, "minutes": 9.87}) == "unknown"
    assert of({**facts, "minutes": 0.5}) == "impossible"


def test_a_step_time_is_not_held_against_another_model() -> None:
    machine = {"accelerator": "gb200", "gpus": 8192, "step_s": 1.2712}
    assert statement({**machine, "model": "llama-3.1-405b"}, "step time")[0] == "consistent"
    assert statement({**machine, "model": "llama-3.1-70b"}, "step time")[0] == "unsupported"
    assert statement({**machine, "parameters": 7e9}, "step time")[0] == "unsupported"
    assert statement({"accelerator": "h100", "gpus": 512, "step_s": 0.56, "model": "llama-2-70b"}, "step time")[0] == "unsupported"  # LoRA


def test_a_step_of_nobody_knows_what_is_never_impossible() -> None:
    assert of({"accelerator": "h100", "gpus": 1024, "step_s": 0.01}) == "unsupported"  # the table's run on 1,024 of them takes 0.67 s
    assert of({"accelerator": "gb200", "gpus": 8192, "step_s": 1.2712}) == "consistent"


def test_a_contradicted_step_time_is_reported_against_the_log() -> None:
    facts = read_toml(CLAIMS / "405b-step-time.toml") | {"step_s": 2.0}
    verdict, why = statement(facts, "step time")
    assert verdict == "misleading" and why.endswith("say 1.27035 s; the claim is 57.4 % above that")


@pytest.mark.parametrize(
    "name, begins",
    [
        ("largest-cluster", "our table has no larger machine of gb200"),
        ("405b-step-time", "the logs of v6.0 Azure"),
        ("405b-in-7-minutes", "the log of v6.0 Azure"),
    ],
)
def test_the_reason_of_a_claim_is_the_one_that_it_is_about(name: str, begins: str) -> None:
    assert judge(claim_of(read_toml(CLAIMS / f"{name}.toml"), name)).why.startswith(begins)


def test_a_rate_must_follow_from_the_claims_own_numbers() -> None:
    facts = {"model": "llama-3.1-8b", "seq_len": 8192, "global_batch": 1024, "accelerator": "h100", "gpus": 256, "step_s": 1.5}
    # 1024 x 8192 tokens x 5.16e10 FLOP / (256 x 1.5 s) = 1,126 TFLOP/s; 6 x 7.5e9 of it are products
    for rate, expected in ((1126, "consistent"), (983, "consistent"), (900, "misleading"), (1500, "misleading")):
        assert statement({**facts, "tflops_per_gpu": rate}, "TFLOP/s by its own numbers")[0] == expected


def test_steps_must_fit_into_the_time() -> None:
    facts = {"samples": 331776, "global_batch": 1024, "step_s": 1.27, "minutes": 7.07}
    assert of({**facts, "accelerator": "gb200", "gpus": 8192}) == "consistent"
    assert statement({**facts, "minutes": 5}, "time by its own numbers")[0] == "misleading"
    assert statement({**facts, "minutes": 60}, "time by its own numbers")[0] == "misleading"


@pytest.mark.parametrize(
    "price, expected", [(3, "consistent"), (12, "consistent"), (30, "implausible"), (297, "impossible"), (0.01, "impossible")]
)
def test_a_price_of_a_gpu_hour(price: float, expected: str) -> None:
    assert of({"accelerator": "h100", "usd_per_gpu_hour": price}) == expected


def test_a_price_needs_its_accelerator_and_its_hours() -> None:
    assert of({"cost_usd": 100.0}) == "unknown"
    assert of({"usd_per_gpu_hour": 100.0}) == "unknown"


def test_a_price_of_one_provider_is_held_against_its_own_list() -> None:
    assert of({"accelerator": "h100", "usd_per_gpu_hour": 12.29, "provider": "azure"}) == "consistent"
    assert of({"accelerator": "h100", "usd_per_gpu_hour": 2.15, "provider": "azure"}) == "implausible"
    with pytest.raises(InputError, match="no provider named"):
        of({"accelerator": "h100", "usd_per_gpu_hour": 2.15, "provider": "moon"})


def test_hours_times_price_must_give_the_cost() -> None:
    facts = {"accelerator": "h100", "gpus": 100, "hours": 10, "usd_per_gpu_hour": 4.0}
    assert of({**facts, "cost_usd": 4000}) == "consistent"
    assert of({**facts, "cost_usd": 2000}) == "misleading"


def test_a_strong_scaling_efficiency_counts_the_gpus() -> None:
    facts = {"gpus": 1024, "step_s": 1.25, "efficiency_pct": 80.0, "scaling": "strong", "baseline": {"gpus": 512, "step_s": 2.0}}
    assert statement(facts, "efficiency")[0] == "consistent"  # 2.0 / 1.25 x 512 / 1024
    assert statement({**facts, "efficiency_pct": 160.0}, "efficiency")[0] == "misleading"
    assert statement({**facts, "gpus": 512}, "efficiency")[0] == "misleading"


def test_an_efficiency_without_two_times_is_unsupported() -> None:
    assert of({"efficiency_pct": 99.0}) == "unsupported"
    assert of({"efficiency_pct": 99.0, "baseline": {"gpus": 8}}) == "unsupported"


def test_round_times_do_not_hide_an_efficiency_that_is_upside_down() -> None:
    facts = {"step_s": 1.1, "baseline": {"step_s": 1.0}}
    assert statement({**facts, "efficiency_pct": 110}, "efficiency")[0] == "misleading"
    assert statement({**facts, "efficiency_pct": 90.9}, "efficiency")[0] == "consistent"
    whole = {"minutes": 5, "speedup": 2.0, "baseline": {"minutes": 10}}
    assert statement(whole, "speed-up")[0] == "consistent"
    found = statement({**whole, "minutes": 10, "baseline": {"minutes": 5}}, "speed-up")
    assert found[0] == "misleading" and "upside down" in found[1]
    assert "upside down" not in statement({**whole, "minutes": 10, "baseline": {"minutes": 5}, "speedup": 2.3}, "speed-up")[1]


def test_an_inverse_strong_scaling_shows_the_work_it_divides_by() -> None:
    facts = {"gpus": 1024, "minutes": 10.31, "efficiency_pct": 103.1, "scaling": "strong", "baseline": {"gpus": 512, "minutes": 20}}
    found = {one.about: one for one in judge(claim_of(facts, "x")).statements}["efficiency"]
    assert found.arithmetic[-1] == "upside down: 618.6 s / 1200 s / 0.5000 = 103.10 %"


def test_an_efficiency_is_from_the_smaller_machine_to_the_larger() -> None:
    facts = {"gpus": 512, "step_s": 1.1, "baseline": {"gpus": 1024, "step_s": 1.25}}  # grown: 1.1 / 1.25 = 88 %
    assert statement({**facts, "efficiency_pct": 88.0}, "efficiency")[0] == "consistent"
    assert statement({**facts, "efficiency_pct": 113.6}, "efficiency")[0] == "misleading"


def test_faster_may_mean_less_time() -> None:
    facts = {"minutes": 72.0, "baseline": {"minutes": 100.0}}  # 1.389 times as fast, in 28 % less time
    for faster, expected in ((39, "consistent"), (28, "consistent"), (33, "misleading")):
        assert statement({**facts, "faster_pct": faster}, "speed-up")[0] == expected
    assert statement({**facts, "speedup": 1.28}, "speed-up")[0] == "misleading"


def test_an_efficiency_far_above_one_is_implausible() -> None:
    assert of({"efficiency_pct": 150}) == "implausible"
    assert statement({"efficiency_pct": 150, "step_s": 1.0, "baseline": {"step_s": 1.5}}, "efficiency")[0] == "implausible"


def test_a_speed_up_below_the_noise_says_nothing() -> None:
    assert of({"speedup": 1.001, "minutes": 10.0, "baseline": {"minutes": 10.01}}) == "misleading"
    assert of({"speedup": 1.5, "minutes": 10.0, "baseline": {"minutes": 15.0}}) == "consistent"


def test_a_speed_up_needs_its_baseline() -> None:
    assert of({"speedup": 1.5, "minutes": 10.0}) == "unsupported"
    assert of({"speedup": 1.5, "minutes": 10.0, "baseline": {"gpus": 8}}) == "unsupported"


def test_a_speed_up_by_more_gpus_is_not_one_of_the_gpu() -> None:
    facts = {"speedup": 1.8, "minutes": 10.0, "gpus": 128, "accelerator": "h200"}
    assert of({**facts, "baseline": {"minutes": 18.0, "gpus": 64, "accelerator": "h100"}}) == "misleading"
    assert of({**facts, "baseline": {"minutes": 18.0, "gpus": 128, "accelerator": "h100"}}) == "consistent"


def test_a_speed_up_between_two_benchmarks_is_none() -> None:
    facts = {"speedup": 2, "minutes": 10.0, "benchmark": "gpt3", "baseline": {"minutes": 20.0, "benchmark": "llama31_405b"}}
    assert statement(facts, "speed-up")[0] == "misleading"


def test_a_baseline_of_an_earlier_round_is_reported() -> None:
    # 8 H100 took 28.1 min and more in v4.0, and 27.0 in v4.1
    new = {"benchmark": "llama2_70b_lora", "accelerator": "h200", "gpus": 8, "round": "v4.1", "minutes": 22.6}
    old = {"accelerator": "h100", "gpus": 8, "round": "v4.0", "minutes": 29.4}
    facts = {**new, "speedup": 1.3, "baseline": old}
    assert statement(facts, "speed-up")[0] == "consistent"
    assert statement(facts, "age of the baseline")[0] == "misleading"  # 27.03 / 22.6 = 1.196
    assert "age of the baseline" not in {
        one.about for one in judge(claim_of({**facts, "baseline": {**old, "round": "v4.1"}}, "x")).statements
    }


def test_step_times_alone_give_a_speed_up_of_sequences_a_second() -> None:
    facts = {"speedup": 4, "step_s": 1.0, "global_batch": 64, "baseline": {"step_s": 2.0, "global_batch": 32}}
    assert statement(facts, "speed-up")[0] == "consistent"


def test_a_speed_up_over_a_record_may_be_of_any_round_that_is_not_given() -> None:
    facts = {"benchmark": "gpt3", "baseline": {"record": True}}
    assert of({**facts, "minutes": 4.0, "speedup": 2.7}) == "consistent"  # v3.1, over 10.94 min of v3.0
    assert of({**facts, "minutes": 9.87, "speedup": 2.3}) == "impossible"
    assert of({"benchmark": "gpt_oss_20b", "baseline": {"record": True}, "minutes": 5, "speedup": 2.3}) == "unknown"  # none on record


def test_a_record_that_was_beaten_is_impossible() -> None:
    facts = {"benchmark": "gpt3", "round": "v4.0", "record": True}
    assert of({**facts, "minutes": 3.7085}) == "consistent"
    assert of({**facts, "minutes": 9.87}) == "impossible"
    assert of({**facts, "minutes": 4.0, "round": "v3.0"}) == "unknown"  # faster than all that we know of
    assert of({**facts, "minutes": 0.01}) == "unknown"
    assert of({**facts, "minutes": 3.6}) == "consistent"  # a score may be below the table's time


def test_machines_that_the_table_lacks_count_among_the_largest() -> None:
    facts = {"gpus": 10752, "largest_of": "all"}
    assert of(facts) == of({**facts, "largest_of": "h100"}) == "impossible"
    assert statement({**facts, "round": "v3.1"}, "largest")[0] == "consistent"  # the larger one may have come later
    assert of({**facts, "gpus": 11616}) == "consistent"


def test_a_log_that_missed_its_target_confirms_no_time(tmp_path: Path) -> None:
    facts = {"benchmark": "llama31_405b", "seconds": 22.0}
    for name, options, expected, why in (
        ("good", {}, "consistent", "the log that it names says the same"),
        ("missed", {"quality": 5.9}, "misleading", "ends at 5.9, and the target is 5.6"),
        ("aborted", {"status": "aborted"}, "misleading", "aborted at line"),
    ):
        log = write(tmp_path / f"{name}.txt", lines(**options))
        found = statement({**facts, "log": str(log)}, "time to train")
        assert found[0] == expected and why in found[1]
        assert statement({"benchmark": "llama31_405b", "log": str(log)}, "log")[0] == ("consistent" if name == "good" else "unsupported")


def test_less_work_is_no_speed_up() -> None:
    facts = {"model": "llama-3.1-8b", "accelerator": "h100", "gpus": 64, "minutes": 10, "speedup": 10}
    base = {"minutes": 100, "gpus": 64}
    found = statement({**facts, "tokens": 1e9, "baseline": {**base, "tokens": 1e10}}, "throughput or convergence")
    assert found == ("misleading", "10.000 = 1.000 throughput x 10.000 fewer tokens: not a faster machine")
    assert statement({**facts, "tokens": 1e10, "baseline": {**base, "tokens": 1e10}}, "throughput or convergence")[0] == "consistent"
    assert statement({**facts, "baseline": {**base, "model": "llama-3.1-405b"}}, "speed-up")[1].startswith(
        "the two runs are of different models"
    )
    step = {"speedup": 2, "speedup_of": "step", "step_s": 1.0, "global_batch": 16, "baseline": {"step_s": 2.0, "global_batch": 32}}
    assert statement(step, "work of a step") == (
        "misleading",
        "a step has 16 sequences and had 32: in sequences per second it is 1.00 times",
    )
    assert statement({**step, "baseline": {"step_s": 2.0, "global_batch": 8}}, "work of a step")[0] == "consistent"


def test_the_batches_must_be_those_of_the_scaling_that_is_named() -> None:
    facts = {"efficiency_pct": 100, "gpus": 64, "step_s": 1.0, "baseline": {"gpus": 32, "step_s": 1.0, "global_batch": 512}}
    assert statement({**facts, "scaling": "strong", "global_batch": 1024}, "kind of scaling") == (
        "misleading",
        "the batches are not those of strong scaling, but of weak",
    )
    assert statement({**facts, "scaling": "weak", "global_batch": 1024}, "kind of scaling")[0] == "consistent"
    half = {**facts, "efficiency_pct": 50, "global_batch": 512}
    assert statement({**half, "scaling": "weak"}, "kind of scaling")[0] == "misleading"
    assert statement({**half, "scaling": "strong"}, "kind of scaling")[0] == "consistent"
    assert "kind of scaling" not in {one.about for one in judge(claim_of({**half}, "x")).statements}  # no statement about it


def test_a_profile_that_lies_beside_the_claim_is_looked_into(tmp_path: Path) -> None:
    facts = {"exposed_ms": 20, "step_s": 1.2712}
    trace, other = tmp_path / "trace.json.gz", tmp_path / "other.json"
    trace.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": []}'))
    other.write_bytes(b"\x1f\x8b\x00 nothing of the kind")
    assert statement({**facts, "profile": str(trace)}, "profile")[0] == "consistent"
    assert statement({**facts, "profile": str(other)}, "profile")[0] == "unsupported"
    assert statement({**facts, "profile": "https://example.org/trace.json"}, "profile")[0] == "consistent"
    with pytest.raises(InputError, match=r"no profile at nofile\.json"):
        of({**facts, "profile": "nofile.json"})


def test_traffic_that_hides_takes_no_longer_than_what_it_hides_behind() -> None:
    facts = {
        "benchmark": "llama31_405b",
        "cluster": "azure-gb200-128",
        "layout": "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1",
        "exposed_ms": 1,
        "step_s": 0.3,
    }
    why = statement(facts, "bytes over bandwidth")[1]
    assert "0.2486 s of traffic, where a domain adds up first, can hide behind 0.3 s" in why


def test_two_systems_of_a_submitter_never_differ_by_as_much_as_a_contradiction() -> None:
    groups: dict[tuple[object, ...], list[float]] = {}
    for row in table.submissions():
        if row.minutes > 0:
            groups.setdefault((row.round, row.submitter, row.benchmark, row.accelerator, row.gpus), []).append(row.minutes)
    assert 1.1 < max(max(times) / min(times) for times in groups.values()) < OTHER_SYSTEM


def test_a_score_that_mlperf_scaled_is_the_submissions() -> None:
    # v5.0: 104.95 min times 1.1538, the published score
    facts = {"benchmark": "llama31_405b", "round": "v5.0", "submitter": "IBM+CoreWeave+NVIDIA", "accelerator": "gb200", "gpus": 512}
    assert of({**facts, "minutes": 121.09}) == "consistent"
    assert of({**facts, "minutes": 150}) == "misleading"


def test_traffic_that_cannot_hide_is_found() -> None:
    # One micro-batch a step on a slow step claim: 0.25 s of traffic at the least cannot hide behind 0.1 s
    facts = read_toml(CLAIMS / "exposed-communication.toml") | {"step_s": 0.2, "exposed_ms": 1, "exposed_pct": 0.5}
    found = statement(facts, "bytes over bandwidth")
    assert found[0] == "impossible" and "cannot hide" in found[1]


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({"exposed_ms": 1, "step_s": 1.27}, "consistent"),  # 0.25 s hide behind 1.27 s
        ({"exposed_ms": 1, "step_s": 0.1}, "impossible"),  # 0.15 s cannot
        ({"exposed_ms": 150, "step_s": 0.1, "exposed_pct": 60}, "consistent"),
        ({"exposed_ms": 600, "step_s": 1.27}, "implausible"),
        ({"exposed_ms": 1}, "unknown"),
    ],
)
def test_bytes_and_bandwidth_of_a_claim_are_held_against_what_is_exposed(facts: dict[str, Any], expected: str) -> None:
    assert statement({"traffic_gb": 25, "traffic_gb_per_s": 100, **facts}, "traffic by its own numbers")[0] == expected


def test_a_layout_must_fit_the_claim() -> None:
    facts = read_toml(CLAIMS / "exposed-communication.toml")
    with pytest.raises(InputError, match="the layout has 4096 ranks, and the claim 8192 gpus"):
        of(facts | {"layout": "tp=4,cp=2,pp=8,vp=8,dp=64,mbs=1"})
    with pytest.raises(InputError, match="layout"):
        of(facts | {"layout": "nonsense"})


def test_a_log_beside_the_claim_is_opened() -> None:
    log = Path(__file__).parents[1] / "fixtures" / "timer_every_step.log"
    facts = {"log": str(log), "seconds": 23.88, "step_s": 2.0}
    assert of(facts) == "consistent"
    assert of({**facts, "step_s": 1.5}) == "misleading"
    assert of({**facts, "seconds": 10}) == "misleading"
    with pytest.raises(InputError, match=r"no log at nowhere\.txt"):
        of({**facts, "log": "nowhere.txt"})


def test_a_claim_of_words_alone_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"nothing in the claim can be checked(.|\n)*benchmark \(or model and tokens\)"):
        of({"text": "the best ever"})


NUMBERS = st.one_of(st.floats(1e-12, 1e30), st.integers(1, 10**9))
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "benchmark": st.sampled_from(["gpt3", "llama31_405b", "llama31_8b", "llama2_70b_lora", "deepseekv3_671b", "gpt_oss_20b"]),
        "accelerator": st.sampled_from(["h100", "gb200", "mi300x", "tpu-v5p", "gaudi2", "a100-80gb"]),
        "round": st.sampled_from(["v3.0", "v4.1", "v6.0", "v9.9"]),
        "gpus": st.integers(1, 10**6),
        "global_batch": st.integers(1, 10**5),
        "precision": st.sampled_from(["bf16", "fp32"]),
        "record": st.booleans(),
        "largest_of": st.sampled_from(["all", "h100", "rtx-4090"]),
        **{
            key: NUMBERS
            for key in (
                "minutes",
                "step_s",
                "tokens",
                "cost_usd",
                "usd_per_gpu_hour",
                "tflops_per_gpu",
                "tokens_per_s",
                "speedup",
                "tokens_per_s_per_gpu",
                "traffic_gb",
                "traffic_gb_per_s",
            )
        },
        **{key: st.floats(0.0, 1e5) for key in ("mfu_pct", "exposed_ms", "exposed_pct", "part", "share_pct")},
        **{key: st.floats(3.0, 1e5) for key in ("efficiency_pct", "variation_pct", "total")},
    },
)


@settings(deadline=None, max_examples=60)
@given(facts=PARTS, base=PARTS)
def test_any_claim_gets_a_verdict_or_an_input_error(facts: dict[str, Any], base: dict[str, Any]) -> None:
    kept = {key: value for key, value in base.items() if key in ("gpus", "minutes", "step_s", "round", "accelerator", "record")}
    try:
        judgement = judge(claim_of({**facts, "baseline": kept}, "x"))
    except InputError:
        return
    assert judgement.verdict in VERDICTS
    assert all(one.arithmetic and one.why and "nan" not in one.why for one in judgement.statements)
