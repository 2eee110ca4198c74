"""The files that `meshwright plan` writes: each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import InputError, nearest
from meshwright.plan.objective import Aim
from meshwright.plan.plan import drafted

if TYPE_CHECKING:
    from meshwright.cli.plan_answer import Answer
    from meshwright.cli.progress import Report
    from meshwright.plan.make import PricedPlan
    from meshwright.plan.sweep import Sweep
    from meshwright.report.page.curves import ParetoPoint, ScalingPoint

Exports = tuple[tuple[str, Path], ...]
PAGE_FACTORS = (0.25, 0.5, 1.0, 2.0)  # sizes on the page's curves, of the plan's own


def read_exports(texts: Iterable[str]) -> Exports:
    """KIND=FILE, each kind one that there is."""
    from meshwright.plan.export import EXPORTS

    found = []
    for text in texts:
        kind, equals, path = text.partition("=")
        if kind not in EXPORTS:
            known = f"; there are {', '.join(EXPORTS)}"
            raise InputError(f"no export named {kind!r}", where="--export", fix=nearest(kind, EXPORTS) + known)
        if not equals or not path:
            raise InputError(f"{text!r} names no file", where="--export", fix=f"write --export {kind}=FILE")
        found.append((kind, Path(path)))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is to be written, and where."""

    out: Path | None = None
    rank_map: Path | None = None
    html: Path | None = None
    trace: Path | None = None
    plot: Path | None = None
    exports: Exports = ()

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        """What each file is, and its path."""
        named = {"plan": self.out, "rank map": self.rank_map, "page": self.html, "trace": self.trace, "plot": self.plot}
        yield from ((what, path) for what, path in named.items() if path)
        yield from self.exports

    def check(self) -> None:
        """Refuse before the search what could not be written after it."""
        for what, path in self:
            if not path.parent.is_dir():
                raise InputError(f"no folder {path.parent} for the {what}", where=str(path), fix="choose a folder that exists")
            if path.is_dir():
                raise InputError(f"{path} is a folder, not a file", where=str(path), fix=f"name a file for the {what}")
        for what, wanted, endings in (("rank map", self.rank_map, (".csv", ".json")), ("plot", self.plot, (".svg",))):
            if wanted and wanted.suffix not in endings:
                raise InputError(f"the {what} is written as {' or '.join(endings)}, not {wanted.name}", where=str(wanted))

    def write(self, answer: Answer, progress: Report) -> None:
        """Write all of them for the best plan."""
        plan, stack, takes = answer.plan, answer.ask.stack, answer.best.best.outcome
        if self.out:
            plan.write(self.out)
        if self.rank_map:
            answer.ranks.write(self.rank_map)
        if self.trace:
            from meshwright.plan.trace import write_trace

            with drafted(self.trace) as draft:
                write_trace(plan, draft, stack)
        if self.plot:
            from meshwright.report.page.plot import write_plot

            with drafted(self.plot) as draft:
                write_plot(plan, draft, stack=stack, takes=takes)
        if self.html:
            _write_page(answer, self.html, progress)
        for kind, path in self.exports:
            from meshwright.plan.export import export

            export(plan, kind, path)


def _write_page(answer: Answer, path: Path, progress: Report) -> None:
    from meshwright.report.page.plan_page import write_plan_page

    scaling, pareto = _curves(answer, progress)
    with drafted(path) as draft:
        write_plan_page(
            answer.plan,
            draft,
            stack=answer.ask.stack,
            scaling=scaling,
            pareto=pareto,
            runners_up=[priced.plan for priced in answer.plans[1:]],
            takes=answer.best.best.outcome,
        )


def _curves(answer: Answer, progress: Report) -> tuple[list[ScalingPoint], list[ParetoPoint]]:
    """Points of the page's curves: sizes around the plan's, with the batch growing and with it as it is, and time against cost."""
    from meshwright.plan.sweep import MODES, sweep

    ask = replace(answer.ask, cluster=answer.plan.cluster, keep=1, aim=Aim())
    size = ask.cluster.num_accelerators
    sizes = sorted({max(int(size * factor), 1) for factor in PAGE_FACTORS})
    weak, strong = (sweep(ask, sizes, mode, base=size, progress=progress) for mode in MODES)
    points = [point.best for point in answer.front] or [point.best for point in strong.points]
    return [*_scaling(weak), *_scaling(strong)], [found for priced in points if (found := _pareto(priced))]


def _scaling(found: Sweep) -> Iterator[ScalingPoint]:
    from meshwright.report.page.curves import ScalingPoint

    for point in found.points:
        plan = point.best.plan
        yield ScalingPoint(
            num_accelerators=point.num_accelerators,
            step_time_s=plan.step_time_s,
            low_s=plan.low_s,
            high_s=plan.high_s,
            efficiency=point.efficiency,
            kind=found.mode,
            note=str(plan.layout),
        )


def _pareto(priced: PricedPlan) -> ParetoPoint | None:
    from meshwright.report.page.curves import ParetoPoint

    takes = priced.outcome
    if not takes.time_to_train_s or not takes.offer:
        return None
    return ParetoPoint(
        num_accelerators=priced.plan.cluster.num_accelerators,
        time_to_train_s=takes.time_to_train_s.value,
        cost_usd=takes.offer.cost_usd.value,
        note=str(priced.plan.layout),
    )
