"""The files that `meshwright plan` writes, each completely or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import InputError, argument
from meshwright.files import check_ending, write_whole
from meshwright.plan.objective import Aim
from meshwright.plan.plan import Plan
from meshwright.say.document import Document, Text

if TYPE_CHECKING:
    from meshwright.plan.planned import Planned
    from meshwright.plan.sizes import Progress
    from meshwright.plan.stack.rule import Stack
    from meshwright.plan.sweep import Sweep
    from meshwright.predict.forecast import Forecast
    from meshwright.report.page.curves import ParetoPoint, ScalingPoint

Exports = tuple[tuple[str, Path], ...]
PAGE_FACTORS = (0.25, 0.5, 1.0, 2.0)  # sizes on the curves of the page, relative to the plan's own


ENDINGS = {
    "plan": (".json",),
    "rank map": (".csv", ".json"),
    "page": (".html", ".htm"),
    "trace": (".json",),
    "plot": (".svg",),
}
EXPORT_ENDINGS = (".txt", ".sh", ".py", ".toml", ".yaml", ".yml", ".json")


def read_exports(texts: Iterable[str]) -> Exports:
    """Kinds and paths from texts KIND=FILE; an error for an unknown kind."""
    from meshwright.plan.export import EXPORTS

    found = []
    for text in texts:
        kind, equals, path = text.partition("=")
        if kind not in EXPORTS:
            raise InputError(f"no export named {kind!r}", where=argument("export"), fix=f"use one of {', '.join(EXPORTS)}")
        if not equals or not path:
            raise InputError(f"{text!r} names no file", where=argument("export"), fix=f"write {argument('export', f'{kind}=FILE')}")
        found.append((kind, Path(path)))
    return tuple(found)


def stacks_of(exports: Exports) -> tuple[Stack, ...]:
    """The stacks that files are exported for: all of them must run the plan."""
    from meshwright.plan.stack import stack_of_export

    return tuple(stack for kind, _ in exports if (stack := stack_of_export(kind)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written, and what was not, with the reason."""

    files: tuple[tuple[str, Path], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()  # kinds of --export-dir whose stack cannot run the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is to be written, and where."""

    out: Path | None = None
    rank_map: Path | None = None
    html: Path | None = None
    trace: Path | None = None
    plot: Path | None = None
    exports: Exports = ()
    export_dir: Path | None = None

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        """Each file's kind and path, without those in the folder of exports."""
        named = {"plan": self.out, "rank map": self.rank_map, "page": self.html, "trace": self.trace, "plot": self.plot}
        yield from ((what, path) for what, path in named.items() if path)
        yield from ((f"{kind} export", path) for kind, path in self.exports)

    def check(self) -> None:
        """Raise an error before the search if a file could not be written after it."""
        seen: dict[Path, str] = {}
        for what, path in self:
            if not path.parent.is_dir():
                raise InputError(f"no folder {path.parent} for the {what}", where=str(path), fix="choose a folder that exists")
            if path.is_dir():
                raise InputError(f"{path} is a folder, not a file", where=str(path), fix=f"name a file for the {what}")
            if path.resolve() in seen:
                other = seen[path.resolve()]
                raise InputError(f"{path} is named for both the {other} and the {what}", where=str(path), fix="name two files")
            seen[path.resolve()] = what
        for what, path in self:
            check_ending(path, f"the {what}", *ENDINGS.get(what, EXPORT_ENDINGS))
        for what, wanted, endings in (("rank map", self.rank_map, (".csv", ".json")), ("plot", self.plot, (".svg",))):
            if wanted and wanted.suffix not in endings:
                fix = f"name it {wanted.with_suffix(endings[0])}"
                raise InputError(f"the {what} is written as {' or '.join(endings)}, not {wanted.name}", where=str(wanted), fix=fix)
        if self.export_dir and ((self.export_dir.exists() and not self.export_dir.is_dir()) or not self.export_dir.parent.is_dir()):
            raise InputError(
                f"{self.export_dir} cannot be a folder",
                where=argument("export_dir"),
                fix="name a folder, or a new one in a folder that exists",
            )
        self._check_folder(seen)

    def _check_folder(self, seen: Mapping[Path, str]) -> None:
        """Raise an error for a file that has the same path as an export in the folder: it would be overwritten."""
        from meshwright.plan.export import FILE_NAMES

        for kind, name in FILE_NAMES.items() if self.export_dir else ():
            path = Path(self.export_dir or ".") / name
            if path.resolve() in seen:
                both = f"both the {seen[path.resolve()]} and the {kind} export"
                raise InputError(f"{path} is named for {both} of --export-dir", where=str(path), fix="name another file")

    def write(self, found: Planned, progress: Progress) -> Written:
        """Write all files for the best plan; if a stack cannot run the plan, an error is raised before anything is written."""
        from meshwright.plan.export import exported

        plan, forecast = found.plan, found.forecast
        texts = [(path, exported(plan, kind)) for kind, path in self.exports]
        in_folder, refused = _for_all_stacks(plan, self.export_dir)
        if self.out:
            plan.write(self.out)
        if self.rank_map:
            found.ranks.write(self.rank_map)
        if self.trace:
            from meshwright.plan.trace import write_trace

            write_trace(forecast, self.trace)
        if self.plot:
            from meshwright.report.page.plot import write_plot

            write_plot(forecast, self.plot)
        if self.html:
            _write_page(found, self.html, progress)
        if self.export_dir:
            self.export_dir.mkdir(exist_ok=True)
        for path, text in (*texts, *((path, text) for _, path, text in in_folder)):
            write_whole(path, text)
        files = (*self, *((f"{kind} export", path) for kind, path, _ in in_folder))
        return Written(files=files, refused=refused)


def _for_all_stacks(plan: Plan, folder: Path | None) -> tuple[list[tuple[str, Path, str]], tuple[tuple[str, str], ...]]:
    """Kind, path and text of every export that is possible for the plan, and the other kinds with the reason."""
    from meshwright.plan.export import FILE_NAMES, exported

    made: list[tuple[str, Path, str]] = []
    refused: list[tuple[str, str]] = []
    for kind, name in FILE_NAMES.items() if folder else ():
        try:
            made.append((kind, Path(folder or ".") / name, exported(plan, kind)))
        except InputError as error:
            refused.append((kind, f"{error.what}; {error.fix}"))
    return made, tuple(refused)


def with_files(document: Document, written: Written) -> Document:
    """A planning document with what was written and what was not."""
    texts = [f"wrote the {what}: {path}" for what, path in written.files]
    texts += [f"not written, {kind}: {why}" for kind, why in written.refused]
    values = {
        "files": [{"what": what, "path": str(path)} for what, path in written.files],
        "not_exported": dict(written.refused),
    }
    return replace(document, blocks=(*document.blocks, *map(Text, texts)), values={**document.values, **values})


def _write_page(found: Planned, path: Path, progress: Progress) -> None:
    from meshwright.report.page.plan_page import write_plan_page

    scaling, pareto = _curves(found, progress)
    write_plan_page(found.forecast, path, scaling=scaling, pareto=pareto, runners_up=found.forecasts[1:])


def _curves(found: Planned, progress: Progress) -> tuple[list[ScalingPoint], list[ParetoPoint]]:
    """Points of the page's curves: sizes around the plan's, with a growing batch and with the same batch, and time against cost."""
    from meshwright.plan.sweep import MODES, sweep

    ask = replace(found.ask, job=found.forecast.job, keep=1, aim=Aim())
    size = ask.job.num_accelerators
    sizes = sorted({max(int(size * factor), 1) for factor in PAGE_FACTORS})
    weak, strong = (sweep(ask, sizes, mode, base=size, progress=progress) for mode in MODES)
    points = [point.best for point in found.front] or [point.best for point in strong.points]
    return [*_scaling(weak), *_scaling(strong)], [point for one in points if (point := _pareto(one))]


def _scaling(found: Sweep) -> Iterator[ScalingPoint]:
    from meshwright.report.page.curves import ScalingPoint

    for point in found.points:
        yield ScalingPoint(
            num_accelerators=point.num_accelerators,
            step_s=point.best.step_s,
            low_s=point.best.interval.low_s,
            high_s=point.best.interval.high_s,
            efficiency=point.efficiency,
            kind=found.mode,
            note=str(point.best.layout),
        )


def _pareto(forecast: Forecast) -> ParetoPoint | None:
    from meshwright.report.page.curves import ParetoPoint

    if not forecast.time_to_train or not forecast.cost:
        return None
    return ParetoPoint(
        num_accelerators=forecast.job.num_accelerators,
        time_to_train_s=forecast.time_to_train.value,
        cost_usd=forecast.cost.value,
        note=str(forecast.layout),
    )
