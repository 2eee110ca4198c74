"""How `meshwright simulate` prints its answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.cli.show import show_json, show_pairs, show_table, show_text
from meshwright.cli.simulate_answer import Answer
from meshwright.cost.checkpoints import daly_interval_s, young_interval_s
from meshwright.ledger import amount
from meshwright.predict.outcome import samples_note
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.simulate.outlook import Outlook, Size
from meshwright.simulate.run import OverSeeds, SimulatedRun
from meshwright.units import DAY, HOUR, KWH, MINUTE, seconds, si, usd

FIGURE_UNITS = {"s": "s", "pct": "%", "min": "min"}  # by how a figure's name ends


def show_as_json(answer: Answer) -> None:
    """Print all as JSON."""
    show_json({**(_weeks_json(answer) if answer.outlook else _steps_json(answer)), "notes": _notes(answer)})


def show_tables(answer: Answer) -> None:
    """Print all for people."""
    if answer.outlook:
        _show_weeks(answer)
    else:
        _show_steps(answer)
    if answer.is_cut and answer.ask.budget:
        was_done = answer.outlook is not None and answer.outlook.workload_done == 1
        before = " The workload was done before: the days went on behind its end." if was_done else ""
        show_text(f"The budget of {amount(answer.ask.budget.usd)} ended it: what is told of is what it paid for.{before}")
    for note in _notes(answer):
        show_text(f"note: {note}")
    show_text(f"written: {answer.folder}")
    if answer.interrupted:
        show_text("Broken off: what was done until then is what you see and what was written.")


def _notes(answer: Answer) -> list[str]:
    """What is to be known of a workload's length."""
    return [note for note in (samples_note(answer.ask.plan.workload),) if note]


def _energy_kwh(answer: Answer) -> float | None:
    """Of the run that was written."""
    return answer.took.energy_j / KWH if answer.took and answer.took.energy_j is not None else None


def _energy(answer: Answer) -> list[tuple[str, str]]:
    """A line on the written run's energy, and how much of what was paid for computed; none where that is unknown."""
    took = answer.took
    if took is None or took.energy_j is None:
        return []
    busy = took.gpu_seconds["compute"] / sum(took.gpu_seconds.values())
    return [("energy", f"{si(took.energy_j / KWH * 1e3, 'Wh')} at the wall, {took.energy_source}; {busy:.0%} of paid time computes")]


# -- steps ----------------------------------------------------------------------------------------------


def _run_json(run: SimulatedRun) -> dict[str, Any]:
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
        "time_to_train_min": run.time_to_train_s / MINUTE,
    }


def _steps_json(answer: Answer) -> dict[str, Any]:
    assert answer.run is not None
    return {
        "plan": answer.ask.plan.name,
        "seed": answer.run.seed,
        "predicted_step_s": answer.ask.plan.step_time_s,
        **_run_json(answer.run),
        "exposed_dp_interval_s": answer.exposed,
        "goodput": None,
        "interruptions": None,
        "cost_usd": answer.cost_usd,
        "energy_kwh": _energy_kwh(answer),
        "over_seeds": answer.over_seeds,
        "without_slow_ranks": _run_json(answer.without_slow) if answer.without_slow else None,
        "complete": not (answer.interrupted or answer.is_cut),
        "over_budget": answer.is_cut,
        "folder": str(answer.folder),
    }


def _show_steps(answer: Answer) -> None:
    run, plan = answer.run, answer.ask.plan
    assert run is not None
    times = run.times
    pairs = [
        ("predicted step", seconds(plan.step_time_s)),
        ("median step", f"{seconds(times.median_s)}, robust standard deviation {times.robust_std_pct:.3f} %"),
        ("slowest step", f"{seconds(float(np.max(times.seconds)))}; 99 of 100 below {seconds(float(np.percentile(times.seconds, 99)))}"),
        ("first step", f"{seconds(float(times.seconds[0]))}; after an evaluation {_after(run)}"),
        ("whole run", f"{run.time_to_train_s / MINUTE:.3f} min: {len(run.steps)} steps, {len(run.evaluated_after)} evaluations"),
        (PART_NAMES["exposed_dp"], _exposed(answer, run)),
        ("cost", usd(answer.cost_usd) if answer.cost_usd is not None else "no price listed"),
        *_energy(answer),
    ]
    show_pairs(f"{plan.name}, seed {run.seed}", pairs)
    show_table("parts of the step", ("part", "predicted>", "simulated>"), _parts(run))
    if left_out := len(run.steps) - run.num_steady_steps:
        steps = f"{run.num_steady_steps:,} step{'' if run.num_steady_steps == 1 else 's'}"
        firsts = f"{left_out:,} that follow{'s' if left_out == 1 else ''}"
        show_text(f"Simulated parts are means of {steps}; {firsts} a start or an evaluation {'is' if left_out == 1 else 'are'} left out.")
        print()
    if answer.over_seeds:
        show_table(
            f"over {answer.ask.wishes.seeds} seeds", ("", "mean>", "80 % between>", "", "standard error>"),
            [_seed_row(name, value) for name, value in answer.over_seeds.items()],
        )  # fmt: skip
    if answer.without_slow:
        _show_without_slow(run, answer.without_slow)


def _exposed(answer: Answer, run: SimulatedRun) -> str:
    told, known = f"{seconds(run.mean_exposed_s['dp'])} a step", answer.exposed
    if known is None:
        return told
    sure = "its constants were before the fit" + (" and its profile is" if run.job.stack.profile else "")
    predicted = f"predicted {seconds(known.seconds)}, 80 % between {seconds(known.low_s)} and {seconds(known.high_s)}"
    return f"{told} ({predicted}, by how sure {sure})"


def _after(run: SimulatedRun) -> str:
    later = run.steps.is_first[1:]
    return seconds(float(np.median(run.times.seconds[1:][later]))) if later.any() else "-"


def _parts(run: SimulatedRun) -> Iterator[tuple[str, str, str]]:
    """The parts that anybody gives time to, predicted and of steady steps, as the report has them, and what they add up to."""
    predicted_s, simulated_s = run.job.plan.parts_s, run.mean_parts_s
    for part in PARTS:
        predicted, simulated = predicted_s.get(part, 0.0), simulated_s.get(part, 0.0)
        if predicted or simulated:
            yield PART_NAMES[part], seconds(predicted), seconds(simulated)
    yield "step", seconds(run.job.plan.step_time_s), seconds(sum(simulated_s.values()))


def _seed_row(name: str, value: OverSeeds) -> tuple[str, ...]:
    what, unit = name.rsplit("_", 1)
    shown = PART_NAMES.get(what.removeprefix("mean_"), what.replace("_", " "))
    return f"{shown}, {FIGURE_UNITS[unit]}", f"{value.mean:.5g}", f"{value.low:.5g}", f"{value.high:.5g}", f"{value.standard_error:.2g}"


def _show_without_slow(run: SimulatedRun, alike: SimulatedRun) -> None:
    lost = run.times.median_s / alike.times.median_s - 1
    rows = [
        ("as it was", seconds(run.times.median_s), f"{run.time_to_train_s / MINUTE:.3f} min"),
        ("without the slow rank", seconds(alike.times.median_s), f"{alike.time_to_train_s / MINUTE:.3f} min"),
    ]
    show_table(f"the slow rank costs {lost:+.2%} a step", ("", "median step>", "whole run>"), rows)


# -- weeks ----------------------------------------------------------------------------------------------


def _weeks_json(answer: Answer) -> dict[str, Any]:
    seen = answer.outlook
    assert seen is not None
    campaign, between_s = seen.campaign, seen.campaign.failures.mean_time_between_s(seen.campaign.num_accelerators)
    return {
        "plan": answer.ask.plan.name,
        "seed": answer.ask.wishes.seed,
        "seeds": answer.ask.wishes.seeds,
        "days": answer.ask.wishes.days,
        "predicted_step_s": answer.ask.plan.step_time_s,
        "median_step_s": seen.step.median_s,
        "robust_std_pct": seen.step.robust_std_pct,
        "mean_step_s": seen.step.seconds,
        "mean_step_standard_error_s": seen.step.standard_error_s,
        "mean_exposed_s": {part.removeprefix("exposed_"): seen.step.parts_s[part] for part in PARTS if part.startswith("exposed_")},
        "time_to_train_min": None if answer.time_to_train_s is None else answer.time_to_train_s / MINUTE,
        "goodput": seen.goodput.mean,
        "interruptions": seen.interruptions.mean,
        "cost_usd": answer.cost_usd,
        "energy_kwh": _energy_kwh(answer),
        "waste_usd": answer.waste_usd,
        "goodput_over_seeds": seen.goodput,
        "interruptions_over_seeds": seen.interruptions,
        "interruptions_by_cause": seen.by_cause,
        "steps_done": seen.num_steps,
        "workload_steps": seen.step.workload_steps or None,
        "workload_done": seen.workload_done,
        "hours": {name: value / HOUR for name, value in _where(answer).items()},
        "checkpoint": {
            "interval_s": campaign.interval_s,
            "young_s": float(young_interval_s(campaign.failures.checkpoint_s, between_s)),
            "daly_s": float(daly_interval_s(campaign.failures.checkpoint_s, between_s)),
            "checkpoint_s": campaign.failures.checkpoint_s,
        },
        "num_spares": campaign.num_spares,
        "chance_by": answer.finish.chance_by(answer.ask.finish_by_s) if answer.finish and answer.ask.finish_by_s else None,
        "chance_under": _chance_under(answer),
        "finish_days": OverSeeds.of(answer.finish.wall_s / DAY) if answer.finish else None,
        "sizes": answer.sizes,
        "complete": not (answer.interrupted or answer.is_cut),
        "over_budget": answer.is_cut,
        "folder": str(answer.folder),
    }


def _where(answer: Answer) -> dict[str, float]:
    """Mean seconds of the wall clock by where they went."""
    assert answer.outlook is not None
    w = answer.outlook.weeks
    named = {
        "work": w.work_s,
        "work done again": w.lost_s,
        "checkpoints": w.checkpoint_s,
        "detection and restart": w.down_s,
        "waiting for a node": w.waiting_s,
    }
    return {name: float(np.mean(value)) for name, value in named.items()}


def _chance_under(answer: Answer) -> float | None:
    budget = answer.ask.budget
    return answer.finish.chance_under(float(budget.usd)) if answer.finish and budget else None


def _show_weeks(answer: Answer) -> None:
    seen = answer.outlook
    assert seen is not None
    campaign, many = seen.campaign, answer.ask.wishes.seeds > 1
    between_s = campaign.failures.mean_time_between_s(campaign.num_accelerators)
    breaks = between_s < math.inf
    young, daly = (seconds(float(f(campaign.failures.checkpoint_s, between_s))) for f in (young_interval_s, daly_interval_s))
    pairs = [
        ("interruptions", _said(seen.interruptions, many, "{:.1f}") + (f", one every {seconds(between_s)}" if breaks else "")),
        ("effective time", _said(seen.goodput, many, "{:.2%}")),
        ("steps that count", _said(seen.num_steps, many, "{:,.0f}") + f" of {seconds(seen.step.seconds)}"),
        ("workload", _workload(seen)),
        ("checkpoint every", f"{seconds(campaign.interval_s)} of work" + (f" (Young {young}, Daly {daly})" if breaks else "")),
        ("spare nodes", str(campaign.num_spares)),
        ("cost", f"{usd(answer.cost_usd)}, of which waste {usd(answer.waste_usd or 0.0)}" if answer.cost_usd else "no price listed"),
        *_energy(answer),
    ]
    show_pairs(f"{answer.ask.plan.name}: {answer.ask.wishes.days:g} days, failures as {campaign.failures.name}", pairs)
    if seen.by_cause:
        show_table("interruptions by cause", ("cause", "mean number>"), [(name, f"{value:.1f}") for name, value in seen.by_cause.items()])
    whole_s = sum(_where(answer).values())
    rows = [(name, f"{value / HOUR:.1f} h", f"{value / whole_s:.2%}") for name, value in _where(answer).items()]
    show_table("where the time goes", ("", "mean>", "share>"), rows)
    _show_finish(answer)
    if answer.sizes:
        columns = ("accelerators>", "interrupted every>", "a day>", "checkpoint every>", "Young>", "Daly>", "spares>", "effective>")
        show_table("the same failures at other sizes", columns, map(_size_row, answer.sizes))


def _workload(seen: Outlook) -> str:
    """How far the days bring the workload; they go on behind its end, as if it came again."""
    if not seen.step.workload_steps:
        return "has no end"
    times = float(np.mean(seen.weeks.work_s)) / seen.step.workload_s
    whole = f"{seen.step.workload_steps:,} steps"
    return f"{whole}, {times:.1%} done" if times < 1 else f"{whole}, done {times:,.1f} times over: the days go on behind its end"


def _said(value: OverSeeds, many: bool, form: str) -> str:
    between = f" (80 % of runs between {form.format(value.low)} and {form.format(value.high)})" if many else ""
    return form.format(value.mean) + between


def _show_finish(answer: Answer) -> None:
    if answer.finish is None:
        return
    takes = OverSeeds.of(answer.finish.wall_s)
    show_text(f"The whole workload takes {seconds(takes.mean)} (80 % of runs between {seconds(takes.low)} and {seconds(takes.high)}).")
    if answer.ask.finish_by_s:
        by = answer.finish.chance_by(answer.ask.finish_by_s)
        show_text(f"Done within {seconds(answer.ask.finish_by_s)}: {by:.1%} of runs.")
    under = _chance_under(answer)
    if under is not None and answer.ask.budget:
        show_text(f"For {amount(answer.ask.budget.usd)} or less: {under:.1%} of runs.")


def _size_row(size: Size) -> tuple[str, ...]:
    times = (seconds(value) if value < math.inf else "-" for value in (size.interval_s, size.young_s, size.daly_s))
    rate = f"{size.interruptions_per_day:.1f}"
    between = seconds(size.between_s) if size.between_s < math.inf else "never"
    return f"{size.num_accelerators:,}", between, rate, *times, str(size.num_spares), f"{size.goodput:.2%}"
