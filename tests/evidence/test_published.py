"""Rows of papers and vendors' tables as measured runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_rows import BRIDGE, PIPELINED, one, reason, write

from meshwright.describe.load import left_out, load_model
from meshwright.evidence import published
from meshwright.evidence.runs import read_runs
from meshwright.units import GIB


def test_a_vendor_table_row_gives_a_step_time_from_tokens(tmp_path: Path) -> None:
    run = one(tmp_path, BRIDGE)
    assert run.measured_s == pytest.approx(256 * 8192 / (64 * 4096))  # 8 s
    assert (run.release, run.round, run.kind, run.confidence) == ("nemo-26.04", "nemo-26.04", "pretrain", "published")
    assert (run.model.name, run.workload.precision, run.layout.zero_stage) == ("llama-3.1-70b", "fp8-current", 3)
    assert run.layout.order == ("tp", "cp", "dp", "pp")
    assert run.name.endswith("26.04 NeMo Container / Pre-Training Performance, 64 x GB200, FP8-CS (FP8-MX) LLAMA3_70B")


def test_a_stated_step_time_wins_and_a_missing_dp_column_is_derived(tmp_path: Path) -> None:
    row = {column: cell for column, cell in BRIDGE.items() if column not in ("dp", "vp", "cp", "ep", "note", "recompute", "memory_gib")}
    run = one(tmp_path, row, step_time_s="7.5")
    assert (run.measured_s, run.layout.dp, run.layout.zero_stage) == (7.5, 64, 3)
    assert "ZeRO stage 3 and recompute act_fp8+offload: nothing less fits" in run.assumptions


@pytest.mark.parametrize(
    "source, section, release",
    [
        ("NVIDIA Megatron-Bridge docs", "26.04.01 NeMo Container / Pre-Training Performance", "nemo-26.04.01"),
        ("NVIDIA NeMo 24.12 docs performance_summary", "pretraining", "nemo-24.12"),
        ("torchtitan benchmarks/llama3_h100_202412_torchtitan.md", "benchmark page", "torchtitan-2024.12"),
        ("torchtitan benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md", "benchmark page", "torchtitan-2025.06"),
        ("SimuMax v1.2 docs/b200", "B200 8-GPU node", "megatron-2025"),
        ("A blog (2027)", "page", "a-blog"),
    ],
)
def test_the_release_comes_from_the_container_or_the_source(source: str, section: str, release: str) -> None:
    assert published.software(source, section).release == release


@pytest.mark.parametrize("section, kind", [("SFT", "sft"), ("LoRA", "lora"), ("Pre-Training", "pretrain")])
def test_fine_tuning_sections_are_flagged(tmp_path: Path, section: str, kind: str) -> None:
    run = one(tmp_path, BRIDGE, section=f"26.06 NeMo Container / {section} Performance")
    assert run.kind == kind
    assert (run.workload.adapters is not None) == (kind == "lora") == ("adapters: rank 16 on qkv" in run.assumptions)


@pytest.mark.parametrize(
    "text, name",
    [
        ("LLAMA3.1_405B", "llama-3.1-405b"),
        ("LLAMA3_8B", "llama-3.1-8b"),
        ("Llama 3.1 70B", "llama-3.1-70b"),
        ("LLAMA2-7B", "llama-2-7b"),
        ("LLAMA2-13B", "llama-2-13b"),
        ("LLAMA2-70B", "llama-2-70b"),
        ("GPT3-175B", "gpt-3-175b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("Qwen3_30B_a3B (tokendrop)", "qwen3-30b-a3b"),
        ("Qwen3_235B_a22B", "qwen3-235b-a22b"),
        ("Mixtral 8x7B", "mixtral-8x7b"),
        ("DeepSeekV3 (dropless)", "deepseek-v3"),
    ],
)
def test_the_names_of_tables_lead_to_the_catalogue(tmp_path: Path, text: str, name: str) -> None:
    assert one(tmp_path, BRIDGE, model=text, **(PIPELINED if name.startswith("deepseek") else {})).model.name == name


def test_deepseek_without_multi_token_prediction_has_no_such_layer(tmp_path: Path) -> None:
    assert one(tmp_path, BRIDGE, **PIPELINED | {"model": "DeepSeekV3 (w/o MTP)"}).model.num_prediction_layers == 0
    assert one(tmp_path, BRIDGE, **PIPELINED | {"model": "DeepSeekV3 (w/ MTP)"}).model.num_prediction_layers == 1


def test_experts_are_spread_over_a_domain_where_a_row_does_not_say(tmp_path: Path) -> None:
    run = one(tmp_path, BRIDGE, **PIPELINED | {"model": "DeepSeekV3 (w/o MTP)", "ep": ""})
    assert run.layout.ep == 64 and "ep: 64, as many as a scale-up domain holds" in run.assumptions


def test_a_row_that_predict_would_refuse_is_listed_with_the_reason(tmp_path: Path) -> None:
    read = read_runs(write(tmp_path, BRIDGE | {"model": "DeepSeekV3 (w/o MTP)", "ep": "1"}))
    assert not read.rows and "more memory than" in read.skipped[0].reason
    read = read_runs(write(tmp_path, BRIDGE | {"tp": "3", "n_gpus": "192", "gpu": "H100"}))
    assert not read.rows and "attention heads" in read.skipped[0].reason


def test_a_cut_down_model_keeps_its_shape_and_states_its_memory(tmp_path: Path) -> None:
    simumax = {"source": "SimuMax v1.2 docs", "section": "B200 8-GPU node", "gpu": "B200-SXM", "n_gpus": "8", "precision": "BF16"}
    simumax |= {"gbs": "16", "mbs": "1", "pp": "2", "dp": "4", "recompute": "none", "step_time_s": "0.843", "memory_gib": "66.55"}
    run = one(tmp_path, BRIDGE | simumax, model="llama3_70b_l12_tp1_pp2_dp4_mbc4_cef", note="layers cut to 12; predicted -1.69%")
    assert (run.model.name, run.model.num_layers, run.model.hidden) == ("llama-3.1-70b-l12", 12, 8192)
    assert run.peak_memory_bytes == 66.55 * GIB
    deepseek = one(tmp_path, BRIDGE | simumax, model="deepseekv3_l4_tp1_ep4_pp2_dp4_mbc4_cef", ep="4", note="layers cut to 4")
    assert deepseek.model.experts is not None
    assert (deepseek.model.num_layers, deepseek.model.num_dense_layers, deepseek.model.num_prediction_layers) == (4, 1, 0)


def test_a_gpt_is_built_from_the_shape_in_its_note(tmp_path: Path) -> None:
    vtrain = {"source": "vTrain (MICRO'24)", "section": "single node", "model": "GPT", "seq": "1024", "gpu": "A100", "n_gpus": "4"}
    vtrain |= {"gbs": "16", "mbs": "4", "pp": "2", "dp": "2", "precision": "FP16", "recompute": "full", "step_time_s": "0.41049"}
    run = one(tmp_path, BRIDGE | vtrain, note="h=2048 l=24 heads=16; Megatron-DeepSpeed")
    assert run.model.num_parameters == pytest.approx(1.31e9, rel=0.01)
    assert (run.workload.precision, run.layout.recompute, run.layout.zero_stage) == ("bf16", "full", 0)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"mbs": ""}, "the layout is not stated: mbs empty"),
        ({"gbs": ""}, "the global batch is not stated: gbs empty"),
        ({"tokens_s_gpu": ""}, "neither a step time nor tokens per second are stated"),
        ({"dp": "32"}, "tp x cp x pp x dp = 32 is not the 64 accelerators"),
        ({"model": "Nemotron-9B"}, "no model named 'Nemotron-9B' in the catalogue"),
        ({"model": "Nemotron_3_Nano"}, f"Nemotron_3_Nano is left out of the catalogue: {left_out()['nemotron-3-nano']}"),
        ({"model": "DeepSeekV4 Flash"}, f"DeepSeekV4 Flash is left out of the catalogue: {left_out()['deepseekv4-flash']}"),
        ({"model": "../secret.toml"}, "no model named '../secret.toml' in the catalogue"),
        ({"gpu": "TX-9"}, "no accelerator named 'TX-9'"),
        ({"pp": "2", "dp": "32", "note": "'mbs' is the local batch"}, "the micro-batch is not stated: mbs is a replica's whole batch"),
        ({"model": "llama3_70b_l99_tp1", "note": ""}, "llama-3.1-70b has 80 layers and cannot be cut to 99"),
        ({"model": "GPT", "note": "h=100 l=2 heads=3"}, "hidden size 100 does not divide into 3 heads"),
        ({"recompute": "some"}, "no kind of recompute named 'some'"),
    ],
)
def test_a_published_row_that_cannot_be_expressed_is_listed_with_the_reason(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    assert reason(tmp_path, BRIDGE, **changes) == why


@pytest.mark.parametrize("model, tflops, tokens", [("gpt-3-5b", 765, 23406), ("nemotron-8b", 643, 12507), ("nemotron-22b", 562, 4312)])
def test_the_flops_of_a_token_are_those_of_the_vendors_own_table(model: str, tflops: float, tokens: float) -> None:
    # NeMo 24.12 counts causal attention whole, as products of full matrices; ours counts it once, which is half of that.
    found, seq_len = load_model(model), 2048 if model == "gpt-3-5b" else 4096
    stated = found.flops_per_token(seq_len) + 3 * found.num_layers * found.attention_flops_per_token(seq_len)
    assert stated == pytest.approx(tflops * 1e12 / tokens, rel=0.002)
