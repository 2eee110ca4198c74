"""Attention block by block and by documents, on one GPU: right against written-out attention in fp32, and how fast against the way before.

    python benchmarks/attention.py [--limit-s S] [--dry-run]

`ring` and `all-gather` are what one rank of context parallelism computes: its queries against the keys of all ranks, block by block (the
exchange is left out). The way before wrote the scores of each block out in fp32. `packed` is attention within the documents of whole
sequences; the way before was a mask of all pairs of tokens. Errors are those of the output and of the gradients of queries, keys and
values, each of its norm. Times are forward and backward together, the median of a few. A call that waits for the device is an error.

Without a GPU it says so, claims nothing and exits with 0; `--dry-run` then runs small cases on the processor, and proves nothing about a
GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.train.kernels import attention_parts, flash_attention
from meshwright.train.kernels.attention_kernels import WRITTEN
from meshwright.train.kernels.runs import runs_of
from meshwright.train.model.attention import Context, attend
from meshwright.train.parallel import context as context_parallel
from meshwright.train.parallel.context import (
    Attended,
    Block,
    Gradients,
    Plan,
    gathered_blocks,
    other_positions,
    positions_of,
    ring_blocks,
    runs_for,
)

BOUND = 2e-2  # bf16 rounds scores, weights and outputs; blocks are rounded once more each
QUERIES = 2048  # of one head at a time, for the reference
NUM_TIMES = {"cuda": 7, "cpu": 1}
Values = tuple[Tensor, Tensor, Tensor, Tensor]  # output, and gradients of queries, keys and values


@dataclass(frozen=True)
class Case:
    """Heads and a sequence; `mean` is the mean length of documents, 0 for one document."""

    kind: str  # ring, all-gather, or packed: no rank but this one
    num_queries: int
    num_keys: int
    head_dim: int
    seq_len: int
    batch: int = 1
    num_ranks: int = 1
    index: int = 0
    mean: int = 0

    def __str__(self) -> str:
        ranks = f" rank {self.index} of {self.num_ranks}" if self.num_ranks > 1 else ""
        documents = f" documents of about {self.mean}" if self.mean else " one document"
        heads = f"{self.num_queries}/{self.num_keys} heads of {self.head_dim}"
        return f"{self.kind}{ranks}, {self.batch} x {self.seq_len} tokens,{documents}, {heads}"

    @property
    def is_cut(self) -> bool:
        """Whether the rank holds only some of the tokens."""
        return self.num_ranks > 1


CASES = (
    Case("ring", 32, 8, 128, 8192, num_ranks=2, index=1),
    Case("packed", 32, 8, 128, 8192, mean=500),
    Case("packed", 32, 8, 128, 16384, mean=4000),
    Case("all-gather", 32, 8, 128, 8192, num_ranks=2, index=0),
    Case("ring", 32, 8, 128, 16384, num_ranks=4, index=1, mean=4000),
    Case("all-gather", 32, 8, 128, 16384, num_ranks=4, index=2, mean=500),
    Case("packed", 32, 8, 128, 16384, mean=500),
    Case("packed", 32, 8, 128, 8192, batch=2, mean=4000),
    Case("ring", 32, 8, 128, 16384, num_ranks=4, index=3),
    Case("packed", 32, 8, 64, 16384, mean=500),
    Case("packed", 16, 16, 64, 8192, batch=2, mean=4000),
    Case("ring", 16, 16, 64, 8192, batch=2, num_ranks=2, index=0),
    Case("all-gather", 32, 8, 64, 16384, num_ranks=4, index=3),
)


def documents_of(case: Case) -> NDArray[np.int64]:
    """Documents of every sequence, [B, S]; half of them are much shorter than the mean."""
    if not case.mean:
        return np.zeros((case.batch, case.seq_len), dtype=np.int64)
    generator, rows = np.random.default_rng(7), []
    for _ in range(case.batch):
        lengths = np.maximum(generator.exponential(case.mean, size=4 * case.seq_len // case.mean + 4), 1).astype(np.int64)
        rows.append(np.repeat(np.arange(len(lengths)), lengths)[: case.seq_len])
    assert all(len(row) == case.seq_len for row in rows), "enough documents to fill a sequence"
    return np.stack(rows)


class Trial:
    """The heads of a case, and three ways to attend: in fp32, the way before, and the way that the trainer takes."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device, self.documents = case, device, documents_of(case)
        self.mine = positions_of(case.seq_len, case.num_ranks, case.index)
        generator = torch.Generator(device).manual_seed(1)

        def random(tokens: int, heads: int) -> Tensor:
            return torch.randn(case.batch, tokens, heads, case.head_dim, generator=generator, device=device).to(torch.bfloat16)

        self.query, self.d_out = random(len(self.mine), case.num_queries), random(len(self.mine), case.num_queries)
        self.key, self.value = random(case.seq_len, case.num_keys), random(case.seq_len, case.num_keys)
        runs = runs_for(case.kind, self.documents, case.num_ranks, case.index) if case.mean else None
        runs = runs and tuple(each.moved(lambda starts: starts.to(device)) if each else None for each in runs)
        if case.is_cut:
            blocks, where = self._blocks()
            self.plan, self.where = Plan(blocks, runs=runs), [each.to(device) for each in where]
            self.held = [(self.key[:, each], self.value[:, each]) for each in self.where]  # as the exchange would have brought them

    def _blocks(self) -> tuple[list[Block], list[Tensor]]:
        """Blocks of keys of this rank, and the positions of the keys that each is a part of."""
        case = self.case
        if case.kind == "ring":
            held = [positions_of(case.seq_len, case.num_ranks, rank) for rank in range(case.num_ranks)]
            return ring_blocks(len(self.mine), case.num_ranks, case.index), held
        others = other_positions(case.seq_len, case.num_ranks, case.index)
        return gathered_blocks(len(self.mine), case.num_ranks, case.index), [self.mine, others, others]

    def reference(self) -> Values:
        """Written out in fp32, one key-value head and some queries at a time."""
        case, share = self.case, self.case.num_queries // self.case.num_keys
        mine, every = self.mine.to(self.device), torch.arange(case.seq_len, device=self.device)
        documents = torch.from_numpy(self.documents).to(self.device)
        out, d_query = torch.zeros_like(self.query, dtype=torch.float32), torch.zeros_like(self.query, dtype=torch.float32)
        d_key, d_value = torch.zeros_like(self.key, dtype=torch.float32), torch.zeros_like(self.value, dtype=torch.float32)
        for b in range(case.batch):
            for head in range(case.num_queries):
                k, v = self.key[b, :, head // share].float(), self.value[b, :, head // share].float()
                for some in torch.arange(len(mine), device=self.device).split(QUERIES):
                    q, d = self.query[b, some, head].float(), self.d_out[b, some, head].float()
                    seen = (mine[some][:, None] >= every) & (documents[b, mine[some]][:, None] == documents[b])
                    weights = (q @ k.T * case.head_dim**-0.5).masked_fill(~seen, float("-inf")).softmax(-1)
                    out[b, some, head] = weights @ v
                    d_weights = d @ v.T
                    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True)) * case.head_dim**-0.5
                    d_query[b, some, head] = d_scores @ k
                    d_key[b, :, head // share] += d_scores.T @ q
                    d_value[b, :, head // share] += weights.T @ d
        return out, d_query, d_key, d_value

    def by_blocks(self) -> Values:
        """As a rank of context parallelism attends, without the exchange."""
        blocks, where = self.plan.blocks, self.where
        order = sorted(range(len(blocks)), key=lambda number: not blocks[number].causal)  # a rank's own keys come first
        attended = Attended(self.query, self.plan)
        for number in order:
            attended.add(number, *self.held[number])
        out, log_sums = attended.result()
        found = Gradients(self.d_out, self.query, out, log_sums, self.plan)
        d_both = torch.zeros((2, *self.key.shape), dtype=torch.float32, device=self.device)
        for number in order:
            d_seen = found.of(number, *self.held[number])
            if d_seen is not None:
                d_both.index_add_(2, where[number][blocks[number].keys], d_seen)
        return out, found.d_query, d_both[0], d_both[1]

    def by_documents(self, context: Context) -> Values:
        """As a layer calls attention."""
        inputs = [x.detach().requires_grad_() for x in (self.query, self.key, self.value)]
        out = attend(*inputs, context)
        d_query, d_key, d_value = torch.autograd.grad(out, inputs, self.d_out)
        return out.detach(), d_query, d_key, d_value

    def ways(self) -> tuple[Callable[[], Values], Callable[[], Values]]:
        """The way before, and the trainer's."""
        if self.case.is_cut:
            return self.written_blocks, self.by_blocks
        masked = Context(positions=self.mine.to(self.device), documents=torch.from_numpy(self.documents).to(self.device))
        runs = runs_of(self.documents).moved(lambda starts: starts.to(self.device))
        return lambda: self.by_documents(masked), lambda: self.by_documents(replace(masked, runs=(runs,)))

    def written_blocks(self) -> Values:
        """The same blocks with scores written out in fp32."""
        kept = context_parallel.kernel_for
        context_parallel.kernel_for = lambda *_, **__: WRITTEN
        try:
            return self.by_blocks()
        finally:
            context_parallel.kernel_for = kept


def time_ms(work: Callable[[], Values], device: torch.device) -> float:
    """The median time of a call that has been made before."""
    found = []
    for _ in range(NUM_TIMES[device.type]):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end))
        else:
            started_s = time.perf_counter()
            work()
            found.append((time.perf_counter() - started_s) * 1e3)
    return statistics.median(found)


def check_no_waiting(work: Callable[[], Values], device: torch.device) -> None:
    """Raise an error where a call waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def try_case(case: Case, device: torch.device) -> str:
    """One line about a case; raises an error where it is wrong."""
    packed = case.mean > 0
    name = attention_parts.prepare(case.num_queries, case.num_keys, case.head_dim, device, packed=packed, cut=case.is_cut)
    trial = Trial(case, device)
    before, now = trial.ways()
    wanted, found = trial.reference(), now()
    errors = [float((ours.float() - theirs).norm() / theirs.norm()) for ours, theirs in zip(found, wanted, strict=True)]
    said = " ".join(f"{error:.1e}" for error in errors)
    assert max(errors) < BOUND, f"errors of output, queries, keys, values {said}; {BOUND:g} is allowed ({name})"
    check_no_waiting(now, device)
    now_ms = time_ms(now, device)
    try:
        before()
        before_ms = time_ms(before, device)
        ratio = f"{before_ms:.2f} ms before, {before_ms / now_ms:.2f} times as fast"
    except torch.OutOfMemoryError:
        ratio = "the way before runs out of memory"
    return f"errors {said}  {now_ms:.2f} ms by {name}; {ratio}"


def refused() -> list[str]:
    """Why kernels were not chosen."""
    return [
        f"refused for {heads[1]} queries a key, heads of {heads[2]}{', packed' * heads[3]}{', cut' * heads[4]}: {reason}"
        for heads, reasons in attention_parts.refusals().items()
        for reason in reasons
    ]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=170.0, help="start no case after so many seconds (default %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="small cases on the processor: the code runs, no GPU is tried")
    given = parser.parse_args(words)
    if not torch.cuda.is_available() and not given.dry_run:
        print("no GPU here: nothing was measured, and nothing is claimed")
        return 0
    device = torch.device("cpu") if given.dry_run else torch.device("cuda", 0)
    chosen = [replace(case, seq_len=case.seq_len // 64, mean=case.mean // 64, head_dim=16) for case in CASES] if given.dry_run else CASES
    where = "a processor: dry run" if given.dry_run else torch.cuda.get_device_name(device)
    print(f"{where}, torch {torch.__version__}, {flash_attention.installed() or 'without flash-attn-4'}", flush=True)
    started_s, num_failed, num_left_out = time.monotonic(), 0, 0
    for case in chosen:
        if time.monotonic() - started_s > given.limit_s:
            num_left_out += 1
            continue
        try:
            print(f"right   {case}: {try_case(case, device)}", flush=True)
        except Exception:  # one case that fails must not hide the others
            num_failed += 1
            print(f"FAILED  {case}:\n{''.join(traceback.format_exc(limit=-4))[-1500:]}", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print("\n".join(refused()) or "no kernel was refused")
    num_right = len(chosen) - num_failed - num_left_out
    print(f"{num_right} of {len(chosen)} cases right, {num_failed} failed, {num_left_out} left out for want of time")
    print(f"{time.monotonic() - started_s:.0f} s")
    return 1 if num_failed or num_left_out else 0


if __name__ == "__main__":
    sys.exit(main())
