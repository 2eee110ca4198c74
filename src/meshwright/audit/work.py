"""The FLOPs that a claimed run must have done, counted as everywhere in meshwright, and always in favour of the claim."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from meshwright.audit.claim import Run
from meshwright.audit.figures import count, figure
from meshwright.audit.rules import benchmarks
from meshwright.audit.submissions import Submission, find, flops_per_sample, submissions
from meshwright.describe.load import load_model, load_workload, names
from meshwright.evidence.mlperf import BENCHMARKS


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs of a run or a step, a line that shows how they are computed, and what submissions usually need if the claim does not say."""

    flops: float
    line: str
    usual_flops: float = 0.0


def run_work(run: Run) -> Work | None:
    """FLOPs of the whole run; None if the claim does not contain enough to count them."""
    if run.tokens and (run.model or run.benchmark or run.parameters):
        return _of_tokens(run, run.tokens)
    if run.benchmark and seq_len_of(run):
        return _of_samples(run)
    return None


def step_work(run: Run) -> Work | None:
    """FLOPs of one step; None if model, sequence length or batch are not known."""
    if not run.global_batch or not seq_len_of(run) or not (run.model or run.benchmark or run.parameters):
        return None
    return _of_tokens(run, float(run.global_batch * seq_len_of(run)))


def seq_len_of(run: Run) -> int:
    """Tokens of a sequence: as claimed, or as in the benchmark; 0 if neither is known."""
    if run.seq_len or not run.benchmark:
        return run.seq_len
    workload = BENCHMARKS[run.benchmark][1]
    if workload in names("workloads"):
        return load_workload(workload).seq_len
    return next((row.seq_len for row in submissions() if row.benchmark == run.benchmark), 0)


def attention_range(run: Run) -> tuple[float, float]:
    """The range of what others might count for a token, relative to our count: without attention, and with attention in full."""
    name = BENCHMARKS[run.benchmark][0] if run.benchmark else run.model
    seq_len = seq_len_of(run)
    if not (name and seq_len):
        return 1.0, 1.0
    model = load_model(name)
    ours, products = model.flops_per_token(seq_len), model.flops_per_token(1)
    return products / ours, 2 - products / ours


def samples_of(run: Run) -> float:
    """Samples to the target: as claimed, or 0."""
    if run.samples:
        return run.samples
    seq_len = seq_len_of(run)
    return run.tokens / seq_len if run.tokens and seq_len else 0.0


def alike(run: Run) -> list[Submission]:
    """The submissions on the run's machine that trained the same; if the claim does not say what, those of the only benchmark there."""
    if not (run.gpus and run.accelerator):
        return []
    rows = find(**run.lookup)
    if run.benchmark:
        return rows
    if run.model:
        return [row for row in rows if is_trained_whole(row.benchmark) and BENCHMARKS[row.benchmark][0] == load_model(run.model).name]
    return rows if not run.parameters and len({row.benchmark for row in rows}) == 1 else []


def is_trained_whole(benchmark: str) -> bool:
    """Whether a benchmark trains its whole model, and not adapters on a frozen one."""
    workload = BENCHMARKS[benchmark][1]
    return workload not in names("workloads") or load_workload(workload).adapters is None


def fewest_samples(benchmark: str) -> float:
    """The fewest samples that MLPerf's reference or any submission needed for the target of a benchmark."""
    rows = [row.samples for row in submissions() if row.benchmark == benchmark and row.samples > 0]
    return min([*rows, *benchmarks()[benchmark].reference.values()])


def usual_samples(benchmark: str) -> float:
    """The median of the samples that submissions needed for the target of a benchmark; 0 if none states them."""
    rows = [row.samples for row in submissions() if row.benchmark == benchmark and row.samples > 0]
    return median(rows) if rows else 0.0


def _of_samples(run: Run) -> Work:
    """If no samples are claimed, the fewest that anyone needed: a run cannot have done less."""
    samples = run.samples or fewest_samples(run.benchmark)
    origin = "claimed" if run.samples else "the fewest on record"
    seq_len = seq_len_of(run)
    flops = samples * flops_per_sample(run.benchmark, seq_len)
    per_token = flops_per_sample(run.benchmark, seq_len) / seq_len
    line = f"work: {count(samples)} samples ({origin}) x {count(seq_len)} tokens x {figure(per_token)} FLOP = {figure(flops)} FLOP"
    return Work(flops, line, 0.0 if run.samples else usual_samples(run.benchmark) * per_token * seq_len)


def _of_tokens(run: Run, tokens: float) -> Work:
    per_token, how = _flops_per_token(run)
    return Work(tokens * per_token, f"work: {figure(tokens)} tokens x {figure(per_token)} FLOP ({how}) = {figure(tokens * per_token)} FLOP")


def _flops_per_token(run: Run) -> tuple[float, str]:
    """FLOPs of one token, and how they were counted: without a sequence length, attention is left out."""
    seq_len = seq_len_of(run)
    if run.benchmark:
        return flops_per_sample(run.benchmark, seq_len) / seq_len, run.benchmark
    if run.model:
        model = load_model(run.model)
        assumed = f"sequences of {count(seq_len)}" if seq_len else "attention left out: no seq_len"
        return model.flops_per_token(seq_len or 1), f"{model.name}, {assumed}"
    return 6 * run.parameters, f"6 x {figure(run.parameters)} parameters"
