"""The document of a simulation: steps next to their prediction, or weeks with their interruptions and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshwright.cost.checkpoints import daly_interval_s, young_interval_s
from meshwright.ledger import amount
from meshwright.predict.outcome import samples_note
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.say.document import Block, Document, Note, Pairs, Table, Text
from meshwright.simulator.outlook import Outlook, Size
from meshwright.simulator.run import OverSeeds, SimulatedRun
from meshwright.simulator.simulation import Simulation
from meshwright.units import HOUR, KWH, MINUTE, energy, per_cent, seconds, usd

FIGURE_UNITS = {"s": "s", "pct": "%"}  # by how a figure's name ends


def simulation_document(found: Simulation) -> Document:
    """The whole simulation."""
    kind = "simulation of days" if found.outlook else "simulation of steps"
    title = f"{found.plan.name}: {found.days:g} days" if found.outlook else f"{found.plan.name}, seed {found.seed}"
    values = {**(_weeks_values(found) if found.outlook else _steps_values(found)), "notes": _notes(found)}
    return Document(kind=kind.replace(" ", "-"), title=title, blocks=tuple(_blocks(found)), values=values)


def _blocks(found: Simulation) -> Iterator[Block]:
    yield from _weeks(found) if found.outlook else _steps(found)
    if found.is_cut and found.budget:
        was_done = found.outlook is not None and found.outlook.workload_done == 1
        before = " The workload was done before that: the simulated days continue after its end." if was_done else ""
        yield Text(f"The budget of {amount(found.budget.usd)} ended the simulation: the numbers are for what it paid for.{before}")
    yield from map(Note, _notes(found))
    if found.folder:
        yield Text(f"written: {found.folder}")
    if found.interrupted:
        yield Text("Interrupted: what was done until then is shown and written.")


def _notes(found: Simulation) -> list[str]:
    """Notes about the length of a workload."""
    return [note for note in (samples_note(found.plan.workload),) if note]


def _energy_kwh(found: Simulation) -> float | None:
    return None if found.energy_j is None else found.energy_j / KWH


def _energy(found: Simulation) -> list[tuple[str, str]]:
    """A line on the energy, and for a run that was written how much of what was paid for computed; none where that is unknown."""
    ledger = found.ledger
    if found.energy_j is None:
        return []
    words = f"{energy(found.energy_j)} at the wall, modelled"
    if ledger is None:
        return [("energy", words)]
    busy = ledger.gpu_seconds["compute"] / sum(ledger.gpu_seconds.values())
    return [("energy", f"{words}; {per_cent(busy, '.0f')} of paid time computes")]


def _run_values(run: SimulatedRun) -> dict[str, Any]:
    times = run.times
    return {
        "median_step_s": times.median_s,
        "mean_step_s": float(np.mean(times.steady_s)),
        "robust_std_pct": times.robust_std_pct,
        "p99_over_p50": float(np.percentile(times.steady_s, 99) / times.median_s),
        "worst_step_s": float(np.max(times.seconds)),
        "first_step_s": float(times.seconds[0]),
        "mean_exposed_s": run.mean_exposed_s,
        "mean_parts_s": run.mean_parts_s,
        "num_steps": len(run.steps),
        "num_evaluations": len(run.evaluated_after),
        "evaluation_s": run.evaluation_s,
        "simulated_s": run.simulated_s,
        "workload_steps": run.planned.plan.workload.num_steps() or None,
        "time_to_train_s": run.time_to_train_s,
        "time_to_train_is_extrapolated": None if run.time_to_train_s is None else not run.is_whole,
    }


def _steps_values(found: Simulation) -> dict[str, Any]:
    assert found.run is not None
    return {
        "plan": found.plan.name,
        "seed": found.run.seed,
        "predicted_step_s": found.plan.step_s,
        **_run_values(found.run),
        "exposed_dp_interval_s": found.exposed,
        "goodput": None,
        "interruptions": None,
        "cost_usd": found.cost_usd,
        "energy_kwh": _energy_kwh(found),
        "over_seeds": found.over_seeds,
        "without_slow_ranks": _run_values(found.without_slow) if found.without_slow else None,
        "complete": not (found.interrupted or found.is_cut),
        "over_budget": found.is_cut,
        "folder": str(found.folder) if found.folder else None,
    }


def _steps(found: Simulation) -> Iterator[Block]:
    run, plan = found.run, found.plan
    assert run is not None
    times = run.times
    pairs = [
        ("predicted step", seconds(plan.step_s)),
        ("median step", f"{seconds(times.median_s)}, robust standard deviation {times.robust_std_pct:.3f} %"),
        ("slowest step", f"{seconds(float(np.max(times.seconds)))}; 99 of 100 below {seconds(float(np.percentile(times.seconds, 99)))}"),
        ("first step", f"{seconds(float(times.seconds[0]))}; after an evaluation {_after(run)}"),
        *_times(found, run),
        (PART_NAMES["exposed_dp"], _exposed(found, run)),
        (f"cost{_of_steps(run)}", usd(found.cost_usd) if found.cost_usd is not None else "no price listed"),
        *((f"{name}{_of_steps(run)}", words) for name, words in _energy(found)),
    ]
    yield Pairs(f"{plan.name}, seed {run.seed}", tuple((name, value, "") for name, value in pairs))
    yield Table("parts of the step", ("part", "predicted>", "simulated>"), tuple(_parts(run)))
    if left_out := len(run.steps) - run.num_steady_steps:
        steps = f"{run.num_steady_steps:,} step{'' if run.num_steady_steps == 1 else 's'}"
        firsts = f"{left_out:,} that follow{'s' if left_out == 1 else ''}"
        yield Text(f"Simulated parts are means of {steps}; {firsts} a start or an evaluation {'is' if left_out == 1 else 'are'} left out.")
    if found.over_seeds:
        rows = tuple(_seed_row(name, value) for name, value in found.over_seeds.items())
        yield Table(f"over {found.seeds} seeds", ("", "mean>", "80 % between>", "", "standard error>"), rows)
    if found.without_slow:
        yield _without_slow(run, found.without_slow)


def _of_steps(run: SimulatedRun) -> str:
    """What to add after a name where only a part of a workload is meant; nothing for a whole one."""
    return "" if run.is_whole else f" of {len(run.steps):,} step{'' if len(run.steps) == 1 else 's'}"


def _times(found: Simulation, run: SimulatedRun) -> Iterator[tuple[str, str]]:
    """Time to train if the whole workload was simulated.

    Otherwise the time of the steps, and the extrapolated time of the whole workload.
    """
    count = len(run.evaluated_after)
    evaluated = f", {count:,} evaluation{'' if count == 1 else 's'}" if count else ""
    if run.is_whole:
        yield "time to train", f"{run.simulated_s / MINUTE:.3f} min: {len(run.steps):,} steps{evaluated}"
        return
    yield f"time{_of_steps(run)}", f"{seconds(run.simulated_s)}{evaluated and f'{evaluated} included'}"
    workload, mean_s = run.planned.plan.workload, float(np.mean(run.times.steady_s))
    num_steps = workload.num_steps()
    if run.time_to_train_s is None:
        yield "whole job", "has no end: the workload states neither tokens nor a target"
        return
    cost = f"; {usd(found.cost_usd * run.time_to_train_s / run.simulated_s)}" if found.cost_usd is not None else ""
    more = workload.num_evaluations(num_steps)
    how = f"{num_steps:,} steps of {seconds(mean_s)} on average" + (f", {more:,} evaluations" if more else "")
    yield "whole job", f"{seconds(run.time_to_train_s)} by extrapolation: {how}{cost}"


def _exposed(found: Simulation, run: SimulatedRun) -> str:
    text, known = f"{seconds(run.mean_exposed_s['dp'])} per step", found.exposed
    if known is None:
        return text
    behind = "constants" + (" and of the hardware profile" if run.planned.forecast.job.software.profile else "")
    predicted = f"predicted {seconds(known.seconds)}, 80 % between {seconds(known.low_s)} and {seconds(known.high_s)}"
    return f"{text} ({predicted}; this interval comes from the assumed uncertainty of the {behind})"


def _after(run: SimulatedRun) -> str:
    later = run.steps.is_first[1:]
    return seconds(float(np.median(run.times.seconds[1:][later]))) if later.any() else "-"


def _parts(run: SimulatedRun) -> Iterator[tuple[str, str, str]]:
    """The parts that anybody gives time to, predicted and of steady steps, as the report has them, and what they add up to."""
    predicted_s, simulated_s = run.planned.plan.parts_s, run.mean_parts_s
    for part in PARTS:
        if predicted_s[part] or simulated_s[part]:
            yield PART_NAMES[part], seconds(predicted_s[part]), seconds(simulated_s[part])
    yield "mean step", seconds(run.planned.plan.step_s), seconds(sum(simulated_s.values()))


def _seed_row(name: str, value: OverSeeds) -> tuple[str, ...]:
    what, unit = name.rsplit("_", 1)
    shown = PART_NAMES.get(what.removeprefix("mean_"), what.replace("_", " "))
    return f"{shown}, {FIGURE_UNITS[unit]}", f"{value.mean:.5g}", f"{value.low:.5g}", f"{value.high:.5g}", f"{value.standard_error:.2g}"


def _without_slow(run: SimulatedRun, alike: SimulatedRun) -> Table:
    lost = run.times.median_s / alike.times.median_s - 1
    rows = (
        ("as it was", seconds(run.times.median_s), f"{run.simulated_s / MINUTE:.3f} min"),
        ("without the slow rank", seconds(alike.times.median_s), f"{alike.simulated_s / MINUTE:.3f} min"),
    )
    time = "time to train>" if run.is_whole else f"time{_of_steps(run)}>"
    return Table(f"the slow rank costs {per_cent(lost, '+.2f')} per step", ("", "median step>", time), rows)


def _weeks_values(found: Simulation) -> dict[str, Any]:
    seen = found.outlook
    assert seen is not None
    campaign, between_s = seen.campaign, seen.campaign.failures.mean_time_between_s(seen.campaign.num_accelerators)
    return {
        "plan": found.plan.name,
        "seed": found.seed,
        "num_seeds": found.seeds,
        "days": found.days,
        "predicted_step_s": found.plan.step_s,
        "median_step_s": seen.step.median_s,
        "robust_std_pct": seen.step.robust_std_pct,
        "mean_step_s": seen.step.seconds,
        "mean_step_standard_error_s": seen.step.standard_error_s,
        "mean_exposed_s": {part.removeprefix("exposed_"): seen.step.parts_s[part] for part in PARTS if part.startswith("exposed_")},
        "time_to_train_s": found.time_to_train_s,
        "goodput": seen.goodput.mean,
        "interruptions": seen.interruptions.mean,
        "cost_usd": found.cost_usd,
        "energy_kwh": _energy_kwh(found),
        "waste_usd": found.waste_usd,
        "goodput_over_seeds": seen.goodput,
        "interruptions_over_seeds": seen.interruptions,
        "interruptions_by_cause": seen.by_cause,
        "steps_done": seen.num_steps,
        "workload_steps": seen.step.workload_steps or None,
        "workload_done": seen.workload_done,
        "spent_s": {name.replace(" ", "_"): value for name, value in _where(found).items()},
        "checkpoint": {
            "interval_s": campaign.interval_s,
            "young_s": float(young_interval_s(campaign.failures.checkpoint_s, between_s)),
            "daly_s": float(daly_interval_s(campaign.failures.checkpoint_s, between_s)),
            "checkpoint_s": campaign.failures.checkpoint_s,
        },
        "num_spares": campaign.num_spares,
        "chance_by": found.finish.chance_by(found.finish_by_s) if found.finish and found.finish_by_s else None,
        "chance_under": _chance_under(found),
        "finish_s": OverSeeds.of(found.finish.wall_s) if found.finish else None,
        "sizes": found.sizes,
        "complete": not (found.interrupted or found.is_cut),
        "over_budget": found.is_cut,
        "folder": str(found.folder) if found.folder else None,
    }


def _where(found: Simulation) -> dict[str, float]:
    """Mean seconds of the wall clock by where they went."""
    assert found.outlook is not None
    w = found.outlook.weeks
    named = {
        "work": w.work_s,
        "work done again": w.lost_s,
        "checkpoints": w.checkpoint_s,
        "detection and restart": w.down_s,
        "waiting for a node": w.waiting_s,
    }
    return {name: float(np.mean(value)) for name, value in named.items()}


def _chance_under(found: Simulation) -> float | None:
    budget = found.budget
    return found.finish.chance_under(float(budget.usd)) if found.finish and budget else None


def _weeks(found: Simulation) -> Iterator[Block]:
    seen = found.outlook
    assert seen is not None
    campaign, many = seen.campaign, found.seeds > 1
    between_s = campaign.failures.mean_time_between_s(campaign.num_accelerators)
    breaks = between_s < math.inf
    young, daly = (seconds(float(f(campaign.failures.checkpoint_s, between_s))) for f in (young_interval_s, daly_interval_s))
    pairs = [
        ("interruptions", _over_seeds(seen.interruptions, many, "{:.1f}".format) + (f", one every {seconds(between_s)}" if breaks else "")),
        ("effective time", _over_seeds(seen.goodput, many, lambda share: per_cent(share, ".2f"))),
        ("steps that count", _over_seeds(seen.num_steps, many, "{:,.0f}".format) + f" of {seconds(seen.step.seconds)}"),
        ("workload", _workload(seen)),
        *([("time to train", f"{seconds(found.time_to_train_s)}, mean of runs of the whole workload")] if found.time_to_train_s else []),
        ("checkpoint every", f"{seconds(campaign.interval_s)} of work" + (f" (Young {young}, Daly {daly})" if breaks else "")),
        ("spare nodes", str(campaign.num_spares)),
        ("cost", f"{usd(found.cost_usd)}, of which waste {usd(found.waste_usd or 0.0)}" if found.cost_usd else "no price listed"),
        *_energy(found),
    ]
    title = f"{found.plan.name}: {found.days:g} days, failures as {campaign.failures.name}"
    yield Pairs(title, tuple((name, value, "") for name, value in pairs))
    if seen.by_cause:
        causes = tuple((name, f"{value:.1f}") for name, value in seen.by_cause.items())
        yield Table("interruptions by cause", ("cause", "mean number>"), causes)
    whole_s = sum(_where(found).values())
    rows = tuple((name, f"{value / HOUR:.1f} h", per_cent(value / whole_s, ".2f")) for name, value in _where(found).items())
    yield Table("where the time goes", ("", "mean>", "share>"), rows)
    yield from _finish(found)
    if found.sizes:
        columns = ("accelerators>", "interrupted every>", "a day>", "checkpoint every>", "Young>", "Daly>", "spares>", "effective>")
        yield Table("the same failures at other sizes", columns, tuple(map(_size_row, found.sizes)))


def _workload(seen: Outlook) -> str:
    """How much of the workload the days complete; after its end, it is counted again."""
    if not seen.step.workload_steps:
        return "has no end"
    times = float(np.mean(seen.weeks.work_s)) / seen.step.workload_s
    whole = f"{seen.step.workload_steps:,} steps"
    return (
        f"{whole}, {per_cent(times)} done"
        if times < 1
        else f"{whole}, done {times:,.1f} times over: the simulated days continue after its end"
    )


def _over_seeds(value: OverSeeds, many: bool, shown: Callable[[float], str]) -> str:
    between = f" (80 % of runs between {shown(value.low)} and {shown(value.high)})" if many else ""
    return shown(value.mean) + between


def _finish(found: Simulation) -> Iterator[Text]:
    if found.finish is None:
        return
    whole = OverSeeds.of(found.finish.wall_s)
    yield Text(f"The whole workload takes {seconds(whole.mean)} (80 % of runs between {seconds(whole.low)} and {seconds(whole.high)}).")
    if found.finish_by_s:
        by = found.finish.chance_by(found.finish_by_s)
        yield Text(f"Done within {seconds(found.finish_by_s)}: {per_cent(by)} of runs.")
    under = _chance_under(found)
    if under is not None and found.budget:
        yield Text(f"For {amount(found.budget.usd)} or less: {per_cent(under)} of runs.")


def _size_row(size: Size) -> tuple[str, ...]:
    times = (seconds(value) if value < math.inf else "-" for value in (size.interval_s, size.young_s, size.daly_s))
    rate = f"{size.interruptions_per_day:.1f}"
    between = seconds(size.between_s) if size.between_s < math.inf else "never"
    return f"{size.num_accelerators:,}", between, rate, *times, str(size.num_spares), per_cent(size.goodput, ".2f")
