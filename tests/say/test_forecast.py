"""What a forecast says: the numbers that it holds, in words and as JSON; the same for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.cli.show import show
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.predict.forecast import Forecast
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.say.document import VERSION, Document, Note, Pairs, Table, Text
from meshwright.say.forecast import BAR_WIDTH, bar, forecast_document, mfu_text, part_rows
from meshwright.say.html import fragment
from meshwright.say.markdown import markdown
from meshwright.units import gib, seconds, usd

SCRIPT = "<script>alert(1)</script>"
JOB = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
RECORD = JOB.forecast("tp=4,cp=2,pp=8,vp=8,mbs=1")
JSON_TYPES = (str, int, float, bool, type(None), list, dict)


def pairs(document: Document, title: str) -> dict[str, tuple[str, str]]:
    """The named lines of a block: value and remark."""
    (block,) = [block for block in document.blocks if isinstance(block, Pairs) and block.title == title]
    return {name: (value, remark) for name, value, remark in block.rows if name}


def table(document: Document, title: str) -> Table:
    (block,) = [block for block in document.blocks if isinstance(block, Table) and block.title.startswith(title)]
    return block


def test_the_answer_is_the_forecasts() -> None:
    answer = pairs(forecast_document(RECORD), "answer")
    low_s, high_s = RECORD.interval
    assert answer["step time"] == (seconds(RECORD.step_s), f"80 % interval {seconds(low_s)} to {seconds(high_s)}")
    assert answer["MFU"][0] == mfu_text(RECORD.mfu)
    assert answer["throughput"][1] == f"{RECORD.tokens_per_s_per_gpu:,.0f} tokens/s per accelerator"
    assert RECORD.time_to_train is not None and RECORD.cost is not None
    assert answer["time to train"][0] == seconds(RECORD.time_to_train.value)
    assert answer["cost"][0] == usd(RECORD.cost.value) and "per accelerator-hour" in answer["cost"][1]


def test_text_and_markdown_say_who_can_run_the_layout_as_the_json_does() -> None:
    nobody = JOB.forecast("tp=4,cp=2,pp=8,vp=1,mbs=1,schedule=zero-bubble")
    for forecast, words in ((RECORD, "megatron, bridge"), (nobody, "none known")):
        document = forecast_document(forecast)
        value, remark = pairs(document, document.title)["runs on"]
        assert value == words and (", ".join(document.values["runs_on"]) or "none known") == words
        assert bool(remark) == (not document.values["runs_on"])
        assert f"| runs on | {words} |" in markdown(document)


def test_shares_are_of_the_step_that_is_shown() -> None:
    rows = list(part_rows(RECORD))
    assert rows[-1][:3] == ("step", seconds(RECORD.step_s), "100.0 %")
    assert [row[0] for row in rows[:-1]] == [PART_NAMES[part] for part in PARTS if RECORD.parts[part] > 0]
    shares = {row[0]: row[2] for row in rows[:-1]}
    assert shares == {PART_NAMES[part]: f"{100 * RECORD.share(part):.1f} %" for part in PARTS if RECORD.parts[part] > 0}
    assert sum(float(share.removesuffix(" %")) for share in shares.values()) == pytest.approx(100, abs=0.05 * len(shares))


def test_a_bar_is_as_long_as_its_share() -> None:
    assert bar(1.0) == "\u2588" * BAR_WIDTH and bar(0.0) == "" and bar(0.5) == "\u2588" * (BAR_WIDTH // 2)
    assert bar(1 / 8 / BAR_WIDTH) == "\u258f"


def test_memory_shows_the_first_the_fullest_and_the_last_stage() -> None:
    fullest = max(RECORD.memory, key=lambda stage: stage.peak_bytes)
    rows = {row[0]: row for row in table(forecast_document(RECORD), "memory of gb200").rows}
    assert {name.split(" ")[0] for name in rows} == {"0", str(fullest.stage), "7"}
    (shown,) = [row for name, row in rows.items() if "fullest" in name]
    assert gib(RECORD.peak_memory_bytes) in shown


def test_every_axis_says_what_it_crosses() -> None:
    axes = {row[0]: row[1:] for row in table(forecast_document(RECORD), "axes").rows}
    assert {name: row[:2] for name, row in axes.items()} == {
        "tp": ("4", "rack"),
        "cp": ("2", "rack"),
        "pp": ("8", "rack"),
        "dp x cp": ("128 x 2", "rack + fabric"),
    }
    assert axes["tp"][2] == seconds(RECORD.parts["exposed_tp"])


def test_notes_and_evidence_are_reported_once() -> None:
    forecast = JOB.changed("workload.global_batch=16384").forecast("tp=4,cp=2,pp=8,vp=8,mbs=1")
    document = forecast_document(forecast)
    assert tuple(block.text for block in document.blocks if isinstance(block, Note)) == forecast.notes != ()
    (evidence,) = [block.text for block in document.blocks if isinstance(block, Text)]
    assert evidence.startswith(f"evidence: compared with {forecast.evidence.num_runs} runs")
    assert pairs(document, "answer")["time to train"][0].startswith("at least ")


def test_a_long_run_says_what_its_goodput_is_made_of_and_what_it_would_be_without() -> None:
    job = Job("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", gpus=512)
    forecast, ideal = (job.forecast("tp=8,pp=8,mbs=1", ideal=ideal) for ideal in (False, True))
    answer, values = pairs(forecast_document(forecast), "answer"), forecast_document(forecast).to_json()
    assert ideal.time_to_train is not None and ideal.goodput is None and "goodput" not in pairs(forecast_document(ideal), "answer")
    expected = values["interrupted"]
    assert answer["goodput"] == (
        f"{100 * values['goodput']:.1f} %",
        f"interrupted every {seconds(expected['between_s'])}, a checkpoint every {seconds(expected['interval_s'])}, "
        "1 spare node paid for, failures as llama3",
    )
    assert values["ideal_time_to_train_s"] == ideal.time_to_train.value
    assert values["time_to_train_s"] == pytest.approx(ideal.time_to_train.value * (1 + expected["stalls"]) / values["goodput"])
    assert expected["num_interruptions"] == pytest.approx(values["time_to_train_s"] / expected["between_s"])
    assert sum(expected["time_shares"].values()) == pytest.approx(1) and expected["time_shares"]["work"] == values["goodput"]
    values_ideal = forecast_document(ideal).to_json()
    assert (values_ideal["interrupted"], values_ideal["goodput"]) == (None, None)


def test_what_is_unknown_comes_with_its_reason() -> None:
    endless = replace(load_workload("mlperf-llama31-405b"), convergence=None, evaluation=None)
    answer = pairs(forecast_document(replace(JOB, workload=endless).forecast(RECORD.layout)), "answer")
    assert answer["time to train"] == ("unknown", "mlperf-llama31-405b states neither tokens nor a target")
    assert answer["cost"][0] == answer["energy"][0] == "unknown"


def test_the_terminal_and_the_json_have_the_same_step(capsys: pytest.CaptureFixture[str]) -> None:
    show(forecast_document(RECORD), as_json=False)
    printed = capsys.readouterr().out
    show(forecast_document(RECORD), as_json=True)
    assert seconds(json.loads(capsys.readouterr().out)["step_s"]) in printed
    assert f"({JOB.num_accelerators:,} gb200), mlperf-llama31-405b" in printed


def named(name: str) -> Forecast:
    """A forecast whose model, cluster, workload and software have one name."""
    job = Job(
        replace(load_model("llama-3.1-8b"), name=name),
        replace(load_cluster("dgx-h100-superpod").resized(64), name=name),
        replace(load_workload("mlperf-llama31-8b"), name=name, precision="bf16"),
    )
    return replace(job, software=replace(job.software, name=name, note=f"made by {name}")).forecast("tp=2")


def test_a_page_and_a_notebook_escape_every_name() -> None:
    forecast = named(SCRIPT)
    page = fragment(forecast_document(forecast))
    assert "<script" not in page and "&lt;script&gt;" in page
    assert forecast._repr_html_() == page


def test_markdown_escapes_every_name() -> None:
    shown = markdown(forecast_document(named(SCRIPT)))
    assert "<script" not in shown.replace("\\<script", "") and "\\<script\\>" in shown


def test_the_terminal_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show(forecast_document(named("[bold]x[/bold]")), as_json=False)
    assert "[bold]x[/bold] on [bold]x[/bold] (64 h100), [bold]x[/bold]" in capsys.readouterr().out


def assert_plain(value: object) -> None:
    assert type(value) in JSON_TYPES, value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_plain(inner)


def test_json_names_its_schema_and_has_jsons_own_types() -> None:
    values = RECORD.to_json()
    assert values["schema"] == f"meshwright/forecast/{VERSION}"
    assert_plain(values)
    assert json.loads(json.dumps(values, allow_nan=False)) == values == forecast_document(RECORD).to_json()


def test_json_has_the_numbers_of_the_forecast() -> None:
    values = RECORD.to_json()
    assert (values["step_s"], values["low_s"], values["high_s"]) == (RECORD.step_s, *RECORD.interval)
    assert values["parts_s"] == RECORD.parts and sum(values["parts_s"].values()) == pytest.approx(values["step_s"], rel=1e-12)
    assert values["peak_memory_bytes"] == max(stage["peak_bytes"] for stage in values["memory"]) == RECORD.peak_memory_bytes
    assert (values["tokens_per_s"], values["mfu"], values["num_accelerators"]) == (RECORD.tokens_per_s, RECORD.mfu, 8192)
    assert values["notes"] == list(RECORD.notes)


def test_the_layout_in_json_is_read_back_whole() -> None:
    values = RECORD.to_json()["layout"]
    assert parse_layout(values["text"]) == RECORD.layout
    assert (values["tp"], values["mbs"], values["zero"], values["order"]) == (4, 1, 1, "tp-cp-pp-dp")


def test_a_bound_without_a_far_end_is_null() -> None:
    values = JOB.changed("workload.global_batch=16384").forecast("tp=4,cp=2,pp=8,vp=8,mbs=1").to_json()
    assert values["is_lower_bound"] is True and values["time_to_train_high_s"] is None and values["time_to_train_s"] > 0


def test_a_pipeline_of_single_chunks_names_who_runs_it_without_overlap() -> None:
    job = Job("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b", gpus=64)
    found = {name: (value, words) for name, value, words in forecast_document(job.forecast("pp=2,mbs=1")).blocks[0].rows}  # type: ignore[union-attr]
    assert found["runs on"][0] == "megatron, bridge" and found["runs on"][1].startswith("with overlap_pp=no")
