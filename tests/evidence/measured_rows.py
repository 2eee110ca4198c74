"""Rows of measured runs that tests start from, and how they are written and read."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.runs import read_runs

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
