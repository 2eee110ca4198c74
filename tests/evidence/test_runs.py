"""Rows of measured runs become the nouns, or are listed with the reason; a bad cell refuses the file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.evidence import mlperf, published
from meshwright.evidence.runs import MeasuredRun, Runs, high_confidence_nvidia, read_runs
from meshwright.units import GB, GIB

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the measured runs are not beside the repository")

RECORD = {
    "round": "v6.0",
    "submitter": "Azure",
    "system": "2048xAzure_GB200",
    "benchmark": "llama31_405b",
    "vendor": "NVIDIA",
    "accelerator": "GB200",
    "num_accelerators": "8192",
    "accelerators_per_node": "4",
    "host_network": "4x ConnectX-8 800 Gb/s Ethernet MRC",
    "scaleup_interconnect": "NVLINK Gen5 1800 GB/s + NVSWITCH Gen5 (NVL72)",
    "framework": "NVIDIA NeMo Framework Release 25.09",
    "seq_len": "8192",
    "global_batch_size": "1024",
    "micro_batch_size": "1",
    "num_micro_batches": "8",
    "tp": "4",
    "cp": "2",
    "pp": "8",
    "vp": "8",
    "dp": "128",
    "ep": "",
    "precision": "fp4 (nvfp4)",
    "step_time_s": "1.27035",
    "activation_recompute": "none",
    "tp_comm_overlap": "no",
    "dp_overlap_grad_reduce": "yes",
    "dp_overlap_param_gather": "yes",
    "distributed_optimizer": "yes",
    "p2p_overlap": "yes",
    "cuda_graph": "full-iteration",
    "rank_order": "tp-cp-pp-dp (dp outermost)",
    "fp8_attention": "",
    "layout_confidence": "high",
    "notes": "hand-copied",
}

BRIDGE = {
    "source": "NVIDIA Megatron-Bridge docs/performance-summary.md",
    "section": "26.04 NeMo Container / Pre-Training Performance",
    "model": "LLAMA3_70B",
    "params_b": "70.6",
    "seq": "8192",
    "gpu": "GB200",
    "n_gpus": "64",
    "gbs": "256",
    "mbs": "2",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "vp": "1",
    "ep": "1",
    "dp": "64",
    "precision": "FP8-CS (FP8-MX)",
    "recompute": "",
    "step_time_s": "",
    "tokens_s_gpu": "4096",
    "memory_gib": "",
    "note": "FSDP=64",
}


PIPELINED = {"seq": "4096", "n_gpus": "256", "gbs": "2048", "mbs": "1", "pp": "4", "vp": "4", "ep": "64", "note": ""}  # as DeepSeek-V3


def write(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def one(folder: Path, row: dict[str, str], **changes: str) -> MeasuredRun:
    runs = read_runs(write(folder, row | changes))
    assert not runs.skipped, runs.skipped
    return runs.rows[0]


def reason(folder: Path, row: dict[str, str], **changes: str) -> str:
    runs = read_runs(write(folder, row | changes))
    assert not runs.rows
    return runs.skipped[0].reason


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as error:
        read_runs(path)
    assert str(path) in error.value.where
    assert error.value.fix
    return error.value


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


def test_a_skipped_row_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    runs = read_runs(write(tmp_path, RECORD, RECORD | {"system": "other", "tp": ""}, RECORD))
    assert [run.source_row for run in runs.rows] == [2, 4]
    (skipped,) = runs.skipped
    assert (skipped.name, skipped.source_row) == ("v6.0 Azure other llama31_405b", 3)
    assert runs.num_skipped_by_reason() == {"the layout is not stated: tp empty": 1}


def test_runs_for_fitting_are_clean_nvidia_and_of_high_confidence(tmp_path: Path) -> None:
    oracle = {"round": "v4.1", "submitter": "Oracle", "num_accelerators": "3072", "dp": "48", "global_batch_size": "384"}
    runs = read_runs(write(tmp_path, RECORD, RECORD | {"layout_confidence": "medium"}, RECORD | {"vendor": "AMD"}, RECORD | oracle))
    assert [run.source_row for run in high_confidence_nvidia(runs.rows)] == [2]
    assert [run.is_clean for run in runs.rows] == [True, True, True, False]


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
        ({"model": "Nemotron-8B"}, "no model named 'Nemotron-8B' in the catalogue"),
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


@pytest.mark.parametrize("column", mlperf.REQUIRED)
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    path = write(tmp_path, {name: cell for name, cell in RECORD.items() if name != column})
    assert refusal(path).what == f"column {column} is missing"


@pytest.mark.parametrize("column", published.REQUIRED)
def test_a_missing_column_of_the_other_format_is_named(tmp_path: Path, column: str) -> None:
    path = write(tmp_path, {name: cell for name, cell in BRIDGE.items() if name != column})
    assert refusal(path).what == f"column {column} is missing"


@pytest.mark.parametrize(
    "column, cell, what",
    [
        ("tp", "four", "tp is 'four', not a number"),
        ("tp", "-4", "tp is '-4', not a whole number of at least 1"),
        ("tp", "0", "tp is '0', not a whole number of at least 1"),
        ("pp", "1.5", "pp is '1.5', not a whole number of at least 1"),
        ("dp", "1_28", "dp is '1_28', not a number"),
        ("num_accelerators", "", "num_accelerators is empty"),
        ("num_accelerators", "9" * 400, "num_accelerators is '" + "9" * 37 + "...', not a number"),
        ("seq_len", "8k", "seq_len is '8k', not a number"),
        ("step_time_s", "nan", "step_time_s is 'nan', not a number"),
        ("step_time_s", "inf", "step_time_s is 'inf', not a number"),
        ("step_time_s", "-1.27", "step_time_s is '-1.27', and must be above 0"),
        ("step_time_s", "", "step_time_s is empty"),
        ("benchmark", " ", "benchmark is empty"),
    ],
)
def test_a_bad_cell_is_named_with_its_line_and_column(tmp_path: Path, column: str, cell: str, what: str) -> None:
    path = write(tmp_path, RECORD, RECORD | {column: cell})
    error = refusal(path)
    assert error.what == what
    assert error.where == f"{path}, line 3, column {column}"


@pytest.mark.parametrize("changes", [{"gbs": ""}, {"model": "unknown"}, {"gpu": "unknown"}])
def test_a_bad_cell_refuses_the_file_even_in_a_row_that_would_be_skipped(tmp_path: Path, changes: dict[str, str]) -> None:
    assert refusal(write(tmp_path, BRIDGE | changes | {"ep": "x"})).what == "ep is 'x', not a number"


def test_whole_numbers_may_be_written_as_spreadsheets_do(tmp_path: Path) -> None:
    assert one(tmp_path, RECORD, tp="4.0", num_accelerators=" 8192 ").layout.tp == 4


@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"\xff\xfe\x00r", "byte 0 (0xff) is not UTF-8"),
        (b'round,"system\n1,2', "the file is not a CSV: unexpected end of data"),
        (b"a;b\n1;2\n", "the first line is not the header of a file of runs"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert refusal(path).what == what


@pytest.mark.parametrize("extra, num_cells", [(-3, len(RECORD) - 3), (1, len(RECORD) + 1)])
def test_a_row_with_too_few_or_too_many_cells_is_refused(tmp_path: Path, extra: int, num_cells: int) -> None:
    cells = [*RECORD.values(), "x"][: len(RECORD) + extra]
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(RECORD)}\n{','.join(cells)}\n", encoding="utf-8")
    assert refusal(path).what == f"the row has {num_cells} cells, and the header {len(RECORD)}"


def test_a_column_that_stands_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(RECORD)},tp\n", encoding="utf-8")
    assert refusal(path).what == "column tp stands twice in the header"


def test_a_file_without_a_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(",".join(RECORD.values()) + "\n", encoding="utf-8")
    assert refusal(path).what == "the first line is not the header of a file of runs"


def test_folders_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).what == "cannot read the file: Is a directory"
    assert refusal(tmp_path / "none.csv").what == "cannot read the file: No such file or directory"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, RECORD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_runs(path).rows[0].measured_s == 1.27035


def test_a_header_alone_holds_no_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(",".join(RECORD) + "\n", encoding="utf-8")
    assert read_runs(path) == Runs(rows=(), skipped=())


fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
cells = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["0", "-1", "1e308", "1e-320", "nan", "8x 400Gb/s", "9999x 99999Gb/s", "GB300", "gpt3", "fp8", "h=0 l=0 heads=0"]),
    st.integers().map(str),
    st.floats().map(str),
)


def survives(path: Path, num_rows: int) -> bool:
    """A file is read whole, every row expressed or listed, or refused in words."""
    try:
        runs = read_runs(path)
    except InputError as error:
        return bool(error.what and error.where)
    return len(runs.rows) + len(runs.skipped) == num_rows


@fuzz
@given(row=st.sampled_from([RECORD, BRIDGE]), data=st.data())
def test_no_cell_brings_a_traceback(tmp_path: Path, row: dict[str, str], data: st.DataObject) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(row)), cells, min_size=1, max_size=3))
    assert survives(write(tmp_path, row, row | changes), 2)


@fuzz
@given(content=st.binary(max_size=400))
def test_no_file_brings_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_runs(path)


@needs_data
def test_every_submission_is_expressed_or_listed() -> None:
    runs = read_runs(DATA / "measured_runs.csv")
    assert (len(runs.rows), len(runs.skipped)) == (158, 27)
    assert all(run.measured_s > 0 and run.layout.num_ranks == run.num_accelerators for run in runs.rows)
    fitting = high_confidence_nvidia(runs.rows)
    by_benchmark = {
        name: sum(run.benchmark == name for run in fitting) for name in ("gpt3", "llama31_405b", "llama31_8b", "llama2_70b_lora")
    }
    assert by_benchmark == {"gpt3": 15, "llama31_405b": 15, "llama31_8b": 18, "llama2_70b_lora": 81}


@needs_data
def test_every_published_row_is_expressed_or_listed() -> None:
    runs = read_runs(DATA / "published_runs.csv")
    assert (len(runs.rows), len(runs.skipped)) == (1792, 84)
    llama = [run for run in runs.rows if run.release.startswith("nemo") and run.model.name.startswith("llama") and run.kind == "pretrain"]
    assert len(llama) == 66
    assert sum(run.peak_memory_bytes > 0 and run.release == "megatron-2025" for run in runs.rows) == 43
