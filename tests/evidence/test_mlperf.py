"""Submissions to MLPerf as measured runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_rows import RECORD, one, reason

from meshwright.evidence import mlperf
from meshwright.units import GB


def test_the_record_run_is_expressed_whole(tmp_path: Path) -> None:
    run = one(tmp_path, RECORD)
    assert run.name == "v6.0 Azure 2048xAzure_GB200 llama31_405b"
    assert (run.model.name, run.workload.name, run.kind) == ("llama-3.1-405b", "mlperf-llama31-405b", "pretrain")
    assert (run.workload.seq_len, run.workload.global_batch, run.workload.precision) == (8192, 1024, "nvfp4")
    assert run.layout.degrees == "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1"
    assert run.layout.order == ("tp", "cp", "pp", "dp")
    assert (run.layout.overlap_tp, run.layout.overlap_pp, run.layout.overlap_dp, run.layout.cuda_graphs) == (False, True, True, True)
    assert [(tier.name, tier.num_accelerators, tier.bytes_per_s / GB) for tier in run.cluster] == [("rack", 64, 900), ("fabric", 8192, 100)]
    assert (run.measured_s, run.num_micro_batches, run.source_row, run.notes) == (1.27035, 8, 2, "hand-copied")
    assert run.assumptions == ()


def test_the_release_is_the_round_and_never_the_framework(tmp_path: Path) -> None:
    assert one(tmp_path, RECORD).release == "v6.0"
    assert one(tmp_path, RECORD, round="v6.1", framework="nonsense").family == ("gb200", "nvfp4", "v6.1")


@pytest.mark.parametrize(
    "text, precision",
    [
        ("fp8 (delayed)", "fp8"),
        ("fp8 (tensorwise)", "fp8-current"),
        ("fp8 (hybrid delayed)", "fp8"),
        ("fp8 (mxfp8)", "mxfp8"),
        ("fp4 (nvfp4)", "nvfp4"),
        ("bf16", "bf16"),
    ],
)
def test_precision_texts_are_recipes(tmp_path: Path, text: str, precision: str) -> None:
    assert one(tmp_path, RECORD, precision=text).workload.precision == precision


def test_what_is_empty_has_a_stated_default(tmp_path: Path) -> None:
    empty = dict.fromkeys(("rank_order", "cuda_graph", "tp_comm_overlap", "p2p_overlap", "activation_recompute", "precision"), "")
    run = one(tmp_path, RECORD, **empty, cp="", vp="", dp="", num_micro_batches="", layout_confidence="", vendor="")
    assert run.layout.degrees == "tp=4,cp=1,pp=8,vp=1,dp=256,mbs=1"
    assert run.layout.order == ("tp", "cp", "dp", "pp")
    assert (run.layout.overlap_tp, run.layout.overlap_pp, run.layout.cuda_graphs, run.layout.recompute) == (True, True, False, "none")
    assert (run.confidence, run.vendor) == ("not stated", "NVIDIA")
    assert run.assumptions == (
        "precision: fp8, as in most rows that state one",
        "recompute: none",
        "rank order: pp outermost, Megatron's default",
        "TP overlap: on, as in most rows of that precision",
    )


def test_columns_that_only_refine_may_be_left_out(tmp_path: Path) -> None:
    run = one(tmp_path, {column: RECORD[column] for column in mlperf.REQUIRED})
    assert run.layout.order == ("tp", "cp", "dp", "pp")


def test_fine_tuning_brings_its_adapters(tmp_path: Path) -> None:
    lora = {"benchmark": "llama2_70b_lora", "num_accelerators": "72", "global_batch_size": "9", "num_micro_batches": "1"}
    run = one(tmp_path, RECORD, **lora, tp="1", cp="8", pp="1", vp="", dp="9")
    assert (run.model.name, run.kind) == ("llama-2-70b", "lora")
    assert run.workload.adapters is not None


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"tp": "", "pp": "", "dp": "", "micro_batch_size": ""}, "the layout is not stated: tp, pp, micro_batch_size empty"),
        ({"accelerator": "Gaudi"}, "no accelerator named 'Gaudi'"),
        ({"benchmark": "bert"}, "no model for benchmark 'bert'"),
        ({"precision": "fp4 (nvfp4) or fp8 (tensorwise)"}, "the precision is ambiguous: fp4 (nvfp4) or fp8 (tensorwise)"),
        ({"precision": "fp4 (mxfp4)"}, "no recipe for precision 'fp4 (mxfp4)'"),
        ({"precision": "int3"}, "no recipe for precision 'int3'"),
        ({"accelerator": "H100"}, "h100 has no fp4 tensor cores, which precision 'nvfp4' needs"),
        ({"dp": "64"}, "tp x cp x pp x dp = 4096 is not the 8192 accelerators"),
        ({"num_micro_batches": "4"}, "dp 128 x micro-batch 1 x 4 micro-batches do not make up the global batch of 1024"),
        ({"global_batch_size": "1000", "num_micro_batches": ""}, "dp 128 x micro-batch 1 do not make up the global batch of 1000"),
        ({"tp_comm_overlap": "perhaps"}, "tp_comm_overlap is 'perhaps', neither yes nor no"),
        ({"activation_recompute": "some"}, "no kind of recompute named 'some'"),
        ({"rank_order": "tp-dp"}, "rank order tp-dp must name each of tp, cp, pp, dp once"),
        ({"pp": "1", "dp": "1024"}, "vp=8 model chunks need a pipeline, and pp is 1"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_listed_with_the_reason(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    assert reason(tmp_path, RECORD, **changes) == why
