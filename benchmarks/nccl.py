"""Every layout over NCCL on one GPU, whose ranks share it: the same losses and gradients as one rank's.

    python benchmarks/nccl.py [layouts] [precisions] [checkpoints] [faults] [groups] [steady] [rehearsed] [--ranks N]... [--out FILE]

Ranks are processes that start once for each number of ranks and then run one layout after another. `layouts` is every
factorisation of 2, 4 and 8 ranks in fp32; schedules, ZeRO stages and kinds of context parallelism take turns. `precisions` is a set of
layouts of four ranks in which every two choices appear together, in fp32, bf16 and fp8, with compiled layers and FlashAttention where a
layout has them. `checkpoints` are written over gloo and read over NCCL, and the other way round, and must be equal bit for bit.
`faults` are runs that are stopped, killed, halted or given a NaN: they must end soon, name the cause and leave nothing on the GPU. `groups`
measures what a communicator costs in memory and time, `steady` what the host waits for in a step and how much of the exchanges is hidden
(`--traces DIR` keeps the profiles, for `benchmarks/trace_against_hta.py`). `rehearsed` runs a TP rank with the other one and alone, as
`meshwright rehearse` does: kernels, shapes and counts must be the same, and the peak of memory within 1 %.

Needs NCCL 2.30 and MPS, as `meshwright train --ranks-per-gpu` does (docs/gpus.md says how to get both). Without a GPU it says so, claims
nothing and exits with 0; `--dry-run` then runs the same code over gloo, and proves nothing about NCCL.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))

import numpy as np
from h200_parts.child import Results, say
from nccl_parts import cases
from nccl_parts.bodies import facts, full_steps, plain_steps
from parity import Steps, differences, joined
from ranks import Pools, RankPool

from meshwright.describe.model import Model
from meshwright.describe.this_machine import gpu_names
from meshwright.describe.workload import Workload
from meshwright.errors import MeshwrightError
from meshwright.layout import Layout, parse_layout
from meshwright.train.shared_gpu import allow_sharing, check_sharing, loaded_nccl

PARTS = ("layouts", "precisions", "checkpoints", "faults", "groups", "steady", "rehearsed")
NUM_STEPS = 3
RESHARDED = (("dp=2,zero=1", "tp=2,pp=2"), ("tp=2,pp=2", "dp=4,zero=3,mbs=1"), ("pp=2,vp=2,cp=2", "tp=4"), ("dp=2,zero=3", "pp=4,mbs=1"))
NOTHING = "nothing was measured, and nothing is claimed"


@dataclass
class Bench:
    """The ranks, the references of one rank, and what was found so far."""

    pools: Pools
    results: Results
    until_s: float
    only: str = ""
    references: dict[str, Steps] = field(default_factory=dict)
    num_failed: int = 0
    num_left_out: int = 0

    def reference(self, model: Model, workload: Workload) -> Steps:
        """What one rank finds in fp32, computed once for each model and workload."""
        key = f"{asdict(model)} {asdict(workload)}"
        if key not in self.references:
            layout = Layout(micro_batch=workload.global_batch)
            self.references[key] = joined(self.pools.of(1).run(plain_steps, model, replace(workload, precision="fp32"), layout, NUM_STEPS))
        return self.references[key]

    def try_case(self, kind: str, name: str, num_ranks: int, check: Callable[[], dict[str, Any]]) -> None:
        """Run one case, keep what it gave, and say it; `faults` of its row say what was wrong."""
        if self.only not in name:
            return
        if time.monotonic() > self.until_s:
            self.num_left_out += 1
            return
        started_s = time.monotonic()
        try:
            row = check()
        except (AssertionError, TimeoutError, OSError, EOFError) as error:
            row = {"faults": [str(error)[-1500:]]}
        row = {"name": name, "num_ranks": num_ranks, "seconds": round(time.monotonic() - started_s, 2), **row}
        self.results.add(kind, row)
        self.num_failed += bool(row["faults"])
        said = "  ".join(f"{key} {value}" for key, value in row.items() if key not in ("name", "num_ranks", "faults"))
        say(f"{'FAILED' if row['faults'] else 'equal '}  {num_ranks} ranks  {name}  {said}")
        for fault in row["faults"][:3]:
            say(f"        {fault}")


def layouts(bench: Bench, world_sizes: tuple[int, ...], *, whole: bool = False) -> None:
    """The matrix of the tests, in fp32."""
    for case in cases.fp32_cases(world_sizes, whole=whole):

        def check(case: Any = case) -> dict[str, Any]:
            model, workload = case.shapes, case.workload
            wanted = bench.reference(model, workload)
            found = joined(bench.pools.of(case.layout.num_ranks).run(plain_steps, model, workload, case.layout, NUM_STEPS))
            return {"loss": largest(found.losses, wanted.losses), "faults": differences(found, wanted)}

        bench.try_case("layouts", str(case), case.layout.num_ranks, check)


def precisions(bench: Bench, world_sizes: tuple[int, ...]) -> None:
    """Every pair of choices, in three precisions."""
    if 4 not in world_sizes:
        return
    for choice in cases.pairwise():

        def check(choice: cases.Choice = choice) -> dict[str, Any]:
            workload, precision = cases.workload_of(choice), choice["precision"]
            wanted = bench.reference(cases.MODEL, replace(workload, precision="fp32"))
            answers = bench.pools.of(4).run(full_steps, cases.MODEL, workload, cases.layout_of(choice), NUM_STEPS)
            found = joined([steps for steps, _ in answers])
            loss, gradient = largest(found.losses, wanted.losses), apart(found, wanted)
            bounds = cases.LOSS_BOUND[precision], cases.GRADIENT_BOUND[precision]
            faults = [
                f"{what} {value:.1e} of it from fp32 on one rank, and {bound:g} is allowed"
                for what, value, bound in zip(("the loss is", "gradients are"), (loss, gradient), bounds, strict=True)
                if not value <= bound
            ]
            return {"loss": loss, "gradient": gradient, **answers[0][1], "faults": faults}

        bench.try_case("precisions", " ".join(cases.words(choice)), 4, check)


def checkpoints(bench: Bench, world_sizes: tuple[int, ...]) -> None:
    """Written over one backend, read over the other, in other layouts."""
    import resharding
    from small_run import Small, make_corpus

    here = bench.pools.backend
    with tempfile.TemporaryDirectory() as folder:
        small = Small(corpus=make_corpus(Path(folder) / "corpus"))

        def check(one: str, two: str, writes: str, reads: str) -> dict[str, Any]:
            saves, loads = small.plan(one), small.plan(two)
            path = Path(tempfile.mkdtemp(dir=folder)) / "run"
            before = in_pool(bench, writes, saves.layout.num_ranks, resharding.save_at, saves, small.corpus, path)
            saved = max((path / "checkpoints").iterdir())
            after = in_pool(bench, reads, loads.layout.num_ranks, resharding.load_at, loads, small.corpus, [saved])
            return {"faults": unequal(whole_state(before), whole_state([each[0] for each in after]))}

        for one, two in RESHARDED:
            for writes, reads in (("gloo", here), (here, "gloo")):
                bench.try_case("checkpoints", f"{writes} {one} -> {reads} {two}", 4, partial(check, one, two, writes, reads))


def faults(bench: Bench, world_sizes: tuple[int, ...]) -> None:
    """Runs of `meshwright train` that something befalls."""
    from nccl_parts.faults import FAULTS, RANKS, check

    bench.pools.close()  # their memory would be counted
    for fault in FAULTS:
        bench.try_case("faults", fault.name, RANKS, partial(check, fault, bench.pools.backend == "nccl"))


def groups(bench: Bench, world_sizes: tuple[int, ...]) -> None:
    """How many communicators a rank has, what memory each takes and how long it takes to make, by size."""
    from nccl_parts.bodies import cost_of_groups

    for size in sorted(world_sizes):
        bench.try_case("groups", f"communicators of {size} ranks", size, lambda size=size: bench.pools.of(size).run(cost_of_groups)[0])


def steady(bench: Bench, world_sizes: tuple[int, ...], *, traces: Path | None = None) -> None:
    """What a step waits for, and how much of its exchanges is hidden, under the profiler."""
    from nccl_parts.bodies import steady_step

    if bench.pools.backend != "nccl":
        say("steady: only a GPU's profile shows it")
        return
    model, workload = cases.WIDE, replace(cases.WORKLOAD, seq_len=1024, precision="bf16")
    for text in ("dp=4,zero=1,mbs=1", "dp=4,zero=0,mbs=1", "dp=4,zero=3,mbs=1", "pp=2,dp=2,mbs=1", "tp=2,dp=2,mbs=1", "cp=2,dp=2,mbs=1"):
        layout = parse_layout(text)
        bench.try_case("steady", text, 4, lambda layout=layout: bench.pools.of(4).run(steady_step, model, workload, layout, traces)[0])


def rehearsed(bench: Bench, world_sizes: tuple[int, ...]) -> None:
    """A TP rank among others and alone."""
    from nccl_parts.bodies import Ran, rank_alone, rank_among_others

    from meshwright.train.rehearse.rank import Part

    if bench.pools.backend != "nccl":
        say("rehearsed: only a GPU has kernels to compare")
        return

    def check(text: str) -> dict[str, Any]:
        workload = replace(cases.WORKLOAD, seq_len=2048, precision="bf16")
        part = Part(model=cases.WIDE, workload=workload, layout=parse_layout(text), rank=0, num_steps=1)
        real: Ran = bench.pools.of(2).run(rank_among_others, part)[0]
        alone: Ran = in_process(rank_alone, part)
        off = alone.peak_bytes / real.peak_bytes - 1
        more, fewer = alone.kernels - real.kernels, real.kernels - alone.kernels
        copies = {name: count for name, count in more.items() if "direct_copy_kernel" in name}  # what stand-ins do
        faults = [f"{count} more of {name[:160]} alone" for name, count in more.items() if name not in copies]
        if sum(copies.values()) > alone.num_stand_ins:
            faults.append(f"{sum(copies.values())} more copies alone, for {alone.num_stand_ins} exchanges")
        faults += [f"{count} fewer of {name[:160]} alone" for name, count in fewer.items()]
        faults += [f"shapes differ: {name}" for name in (alone.products - real.products) + (real.products - alone.products)]
        if abs(off) > 0.01:
            faults.append(f"the peak is {off:+.2%} off: {alone.parts_bytes} alone, {real.parts_bytes} among others")
        counts = {"kernels": real.kernels.total(), "products": real.products.total(), "peak_mib": round(real.peak_bytes / 2**20, 1)}
        counts |= {"copies_of_stand_ins": sum(copies.values())}
        return {**counts, "peak_off": round(off, 5), "faults": faults}

    for text in ("tp=2,mbs=1", "tp=2,mbs=1,recompute=full"):
        bench.try_case("rehearsed", text, 2, partial(check, text))


def in_process(body: Callable[..., Any], *args: Any) -> Any:
    """What a function gives in a process of its own, which has no process group."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=sys.path.extend, initargs=(sys.path,)) as pool:
        return pool.submit(body, *args).result()


def in_pool(bench: Bench, backend: str, num_ranks: int, body: Callable[..., Any], *args: Any) -> list[Any]:
    """What a function gives on so many ranks of a backend."""
    if backend == bench.pools.backend:
        return bench.pools.of(num_ranks).run(body, *args)
    pool = RankPool(num_ranks, backend)
    try:
        return pool.run(body, *args)
    finally:
        pool.close()


def whole_state(of_ranks: Sequence[Any]) -> dict[str, bytes]:
    """A run's state as bytes, tensor by tensor, from the pieces of all ranks."""
    pieces: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
    for rank in of_ranks:
        for name, start, values in rank.pieces:
            pieces.setdefault(name, []).append((start, values))
    whole = {}
    for name, held in pieces.items():
        ends = np.array([np.add(start, values.shape) for start, values in held])
        tensor = np.zeros(ends.max(axis=0), dtype=held[0][1].dtype)
        for start, values in held:
            tensor[tuple(slice(a, a + n) for a, n in zip(start, values.shape, strict=True))] = values
        whole[name] = tensor.tobytes()
    return whole


def unequal(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Tensors that differ in a bit, or are not there."""
    return [f"{name} differs" for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def largest(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The largest relative difference of losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


def apart(found: Steps, wanted: Steps) -> float:
    """How far all gradients together are from those wanted, of their norm."""
    apart = sum(float(np.square(found.gradients[name] - gradient).sum()) for name, gradient in wanted.gradients.items())
    return float(np.sqrt(apart / sum(float(np.square(gradient).sum()) for gradient in wanted.gradients.values())))


def table(results: Results, seconds: float) -> str:
    """What was found, kind by kind."""
    lines = ["| part | cases | right | largest difference of a loss | seconds |", "| --- | --- | --- | --- | --- |"]
    for part in PARTS:
        rows = results.rows(part)
        if rows:
            losses = [row["loss"] for row in rows if "loss" in row]
            equal, time_s = sum(not row["faults"] for row in rows), sum(row["seconds"] for row in rows)
            lines.append(f"| {part} | {len(rows)} | {equal} | {f'{max(losses):.1e}' if losses else '-'} | {time_s:.0f} |")
    return "\n".join([*lines, f"{seconds:.0f} s in all, with the start of the ranks"])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"{', '.join(PARTS)}; default: all of them")
    parser.add_argument("--ranks", type=int, action="append", choices=(2, 4, 8), help="numbers of ranks (default: 2, 4 and 8)")
    parser.add_argument("--whole", action="store_true", help="layouts: the tests' whole matrix, about 250 layouts and ten minutes")
    parser.add_argument("--out", type=Path, help="write results here as they come, as JSON")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases that have this in their name")
    parser.add_argument("--traces", type=Path, help="steady: a folder for the profiles of rank 0")
    parser.add_argument("--limit-s", type=float, default=570.0, help="start no case after so many seconds (default %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="over gloo on the processor: the code runs, NCCL is not tried")
    given = parser.parse_args(words)
    if not gpu_names() and not given.dry_run:
        say(f"no GPU here: {NOTHING}")
        return 0
    try:
        if not given.dry_run:
            import torch  # noqa: F401 - brings the NCCL library that is asked for its version

            check_sharing(loaded_nccl(), os.environ)
            allow_sharing(os.environ)
    except MeshwrightError as error:
        print(f"nccl: {error}", file=sys.stderr)
        return 2
    started_s = time.monotonic()
    pools = Pools("gloo" if given.dry_run else "nccl")
    try:
        machine = {"gpu": "none: dry run over gloo"} if given.dry_run else pools.of(1).run(facts)[0]
        results = Results(given.out, {"command": "nccl", "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", **machine})
        bench = Bench(pools, results, started_s + given.limit_s, given.only)
        for part in given.parts or PARTS:
            {
                "layouts": partial(layouts, whole=given.whole),
                "precisions": precisions,
                "checkpoints": checkpoints,
                "faults": faults,
                "groups": groups,
                "steady": partial(steady, traces=given.traces),
                "rehearsed": rehearsed,
            }[part](bench, tuple(given.ranks or (2, 4, 8)))
    finally:
        pools.close()
    say(f"\n{results.content['date']}, {', '.join(map(str, machine.values()))}\n\n{table(results, time.monotonic() - started_s)}")
    if bench.num_left_out:
        say(f"{bench.num_left_out} cases were left out for want of time (--limit-s)")
    return 1 if bench.num_failed or bench.num_left_out else 0


if __name__ == "__main__":
    sys.exit(main())
