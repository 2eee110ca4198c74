"""Jobs that the tests of stacks share."""

from __future__ import annotations

from dataclasses import replace

from meshwright.describe.load import load_workload
from meshwright.job import Job


def job(
    model: str, cluster: str, gpus: int, batch: int, precision: str = "bf16", workload: str = "pretrain-1t", seq_len: int = 4096
) -> Job:
    wanted = replace(load_workload(workload), global_batch=batch, seq_len=seq_len, precision=precision)
    return Job(model, cluster, wanted, gpus=gpus)


JOBS = {
    "dense": job("llama-3.1-8b", "dgx-h100-superpod", 32, 24),
    "tight": job("llama-3.1-70b", "hgx-b200-ndr", 16, 12, "mxfp8"),
    "experts": job("qwen3-30b-a3b", "hgx-h200-ndr", 16, 12),
    "rack": job("llama-3.1-70b", "gb200-nvl72-ndr", 128, 48, "fp8-current"),
    "trained": job("llama-3.2-1b", "dgx-h100-superpod", 16, 16, workload="mlperf-llama31-8b"),
    "trained in fp8": job("llama-3.2-1b", "dgx-h100-superpod", 16, 16, "fp8-current", "mlperf-llama31-8b"),
}
