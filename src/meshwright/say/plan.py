"""The document of `meshwright plan`: the best plan, the next best, the reasons, the places of the ranks, and what the search did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from meshwright.describe.whatif import domain_changes
from meshwright.layout import AXES, Layout
from meshwright.plan.explain import AxisTraffic, Change, Explanation, explain
from meshwright.plan.noise import difference_errors, plan_noise, run_noise
from meshwright.plan.objective import Limit
from meshwright.plan.planned import Comparison, Planned
from meshwright.plan.sizes import Searched
from meshwright.plan.stack import ANY, STACKS, runs_on
from meshwright.predict.forecast import Forecast
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.say.document import Block, Document, Lines, Note, Pairs, Table, Text
from meshwright.say.forecast import Line, choice_values, evidence_text, forecast_values, outcome_lines, speed_lines
from meshwright.units import energy, gib, per_cent, seconds, si, usd

NUM_RANKS_SHOWN = 6
NUM_CHANGES_SHOWN = 6
NUM_EXPLAINED = 5  # runners-up; JSON has all of them
SMALL = ("optimizer", "data", "overhead")  # parts of the step that share a column


def plan_document(found: Planned, *, explained: bool = True) -> Document:
    """The whole document."""
    job = found.forecast.job
    title = f"{job.name} ({job.num_accelerators:,} {job.cluster.accelerator.name}), {job.workload.name}"
    why = explain(found.forecast) if explained else None
    return Document(kind="plan", title=title, blocks=tuple(_blocks(found, title, why)), values=_values(found, why))


def _blocks(found: Planned, title: str, why: Explanation | None) -> Iterator[Block]:
    yield Pairs(title, tuple(_answer(found)))
    yield Table(f"the {len(found.forecasts)} best by {found.ask.aim.objective}", _columns(found), tuple(_rows(found)))
    yield from map(Text, _equal(found))
    yield from (Text(sentence) for sentence in _behind(found, explained=why is not None))
    if found.front:
        columns = ("accelerators>", "time to train>", "cost>", "energy>", "degrees")
        yield Table("time against cost", columns, tuple(map(_front_row, found.front)))
        yield whole_layouts(point.best for point in found.front)
    if why:
        yield from _explanation(why)
    ranks = found.ranks
    first = ranks.rows(NUM_RANKS_SHOWN)
    names = tuple(f"{name}>" for name in ranks.columns)
    yield Table(f"ranks (the first {len(first)} of {len(ranks):,})", names, tuple(tuple(map(str, row)) for row in first))
    yield whole_layouts([found.forecast])
    yield Text(_statistics(found))
    yield evidence_text(found.forecast)
    yield from map(Note, found.notes)


def _answer(found: Planned) -> Iterator[Line]:
    best = found.forecast
    layout, count = best.layout, best.num_micro_batches
    batches = f"{count:,} micro-batch{'' if count == 1 else 'es'}"
    yield "layout", layout.degrees, f"{', '.join(filter(None, [batches, _choices(layout)]))}, order {'-'.join(layout.order)}"
    yield "stack", found.ask.stack.name, _stack_words(found)
    yield "searched", *_searched(found)
    yield from speed_lines(best)
    if found.comparison:
        yield "without --set", *_against(found.comparison)
    room = gib(best.job.cluster.accelerator.room_bytes)
    yield "memory", gib(best.peak_memory_bytes), f"of {room}, at the peak of the fullest stage"
    yield from outcome_lines(best)
    for limit in found.ask.aim.limits(best):
        yield limit.what, limit.words, ""
    failing = best.outcome.interruptions
    beside = (
        f"; {failing.num_spares} more node{'' if failing.num_spares == 1 else 's'} on standby" if failing and failing.num_spares else ""
    )
    yield "spares", f"{_spares(found)}{beside}", ""


def _stack_words(found: Planned) -> str:
    """Which other stacks can run the plan, and as which software it is priced."""
    job, stack = found.forecast.job, found.ask.stack
    able = runs_on(job, found.forecast.layout)
    others = [name for name in able if name != stack.name]
    if stack is ANY or stack.name not in STACKS:
        words = f"{_named(others)} can run it" if others else "no stack that meshwright knows runs it as planned"
    else:
        words = f"{_named(others)} can run it too" if others else "no other stack runs it as planned"
    return f"{words}; priced as {job.software.name}"


def _named(names: Sequence[str]) -> str:
    """Names as a sentence lists them: `a`, `a and b`, `a, b and c`."""
    return " and ".join([part for part in (", ".join(names[:-1]), *names[-1:]) if part])


def _equal(found: Planned) -> Iterator[str]:
    """Which of the plans are equal, and how equal plans are ordered."""
    count = found.best.found.num_equal
    if count > 1:
        yield (
            f"#1 to #{count} are equal: within {per_cent(plan_noise())} of the fastest. A predicted difference between two runs is wrong "
            f"by up to as much (four of five of {len(difference_errors())} measured pairs). Of equal plans, one with more memory to spare "
            "comes first (up to a fifth of it), then one with fewer unusual choices."
        )


def _searched(found: Planned) -> tuple[str, str]:
    """What was open to the search and what was fixed: the same layout text in `predict` fixes every switch."""
    fixed, best = str(found.ask.fixed), found.best.found
    count = f"{best.num_layouts:,} layout{'' if best.num_layouts == 1 else 's'}"
    if not fixed:
        stack = found.ask.stack
        choices = "every choice" if stack is ANY else f"every choice that {stack.name} has"
        return count, f"{choices} open; to price one layout as it is, use `meshwright predict`"
    if best.num_legal == 1:
        return count, "--layout leaves no choice open: `meshwright predict` prices the same layout"
    return count, f"with {fixed} fixed and every other choice open; `meshwright predict` instead uses the usual switches"


def _against(compared: Comparison) -> tuple[str, str]:
    """The step without the changes, and by how much it differs with them: per token if the steps have different numbers of tokens."""
    before, after = compared.before, compared.after
    change = per_cent(abs(compared.longer_pct) / 100, ",.1f")
    longer = compared.longer_pct > 0
    if abs(compared.longer_pct) < 0.05:
        words = "the same with it"
    elif compared.same_tokens:
        words = f"{change} {'longer' if longer else 'shorter'} with it"
    else:
        words = f"{change} {'more' if longer else 'less'} time per token with it"
    same = "the same layout" if before.layout == after.layout else str(before.layout)
    step = seconds(before.step_s)
    if not compared.same_tokens:
        step += f" for {before.job.workload.global_batch:,} x {before.job.workload.seq_len:,} tokens"
    if before.job.num_accelerators != after.job.num_accelerators:
        step += f" on {before.job.num_accelerators:,} accelerators"
    return step, f"{words}; {same}"


def _spares(found: Planned) -> str:
    spares = found.spares
    if not spares.per_domain:
        return f"none: every accelerator of {spares.num_domains} {spares.domain}s is used" if spares.num_domains > 1 else "none"
    used = spares.num_installed - spares.per_domain
    return f"{spares.total:,}: {used} of {spares.num_installed} in each of {spares.num_domains} {spares.domain}s are used"


def _columns(found: Planned) -> tuple[str, ...]:
    parts = (f"{part}>" for part in _parts(found))
    return ("#>", *(f"{name}>" for name in _degrees(found)), "choices", "order", "step>", "vs fastest>", *parts, "memory>", "runs on")


def _degrees(found: Planned) -> dict[str, str]:
    """Columns of the layout's numbers, under their short names; those that are 1 in all plans are left out, except the axes."""
    names = {**{axis: axis for axis in AXES}, "vp": "vp", "ep": "ep", "etp": "etp", "mbs": "micro_batch"}
    shown = (*AXES, "vp", "mbs")
    return {name: key for name, key in names.items() if name in shown or any(getattr(one.layout, key) > 1 for one in found.forecasts)}


def _choices(layout: Layout) -> str:
    """The choices besides the degrees, in few words."""
    chosen = [layout.schedule] if layout.pp > 1 else []
    chosen += [layout.cp_kind] if layout.cp > 1 else []
    chosen += [f"ZeRO {layout.zero_stage}"] if layout.zero_stage != 1 else []
    return ", ".join([*chosen, *([f"recompute {layout.recompute}"] if layout.recompute != "none" else [])])


def _parts(found: Planned) -> dict[str, tuple[str, ...]]:
    """Columns of the table: parts of the step that are there in any of the plans, the small ones together."""
    wanted = {PART_NAMES[part]: (part,) for part in PARTS if part not in SMALL} | {"rest": SMALL}
    return {name: parts for name, parts in wanted.items() if any(one.parts[p] > 0 for one in found.forecasts for p in parts)}


def _rows(found: Planned) -> Iterator[tuple[str, ...]]:
    best_s, num_equal = min(one.step_s for one in found.forecasts), found.best.found.num_equal
    for number, one in enumerate(found.forecasts, 1):
        degrees = [str(getattr(one.layout, key)) for key in _degrees(found).values()]
        spent = [seconds(sum(one.parts[part] for part in parts)) for parts in _parts(found).values()]
        behind = "-" if num_equal == 1 == number else "equal" if number <= num_equal else f"+{per_cent(one.step_s / best_s - 1, '.2f')}"
        where = _choices(one.layout), "-".join(one.layout.order), seconds(one.step_s), behind, *spent, gib(one.peak_memory_bytes)
        yield str(number), *degrees, *where, ", ".join(runs_on(one.job, one.layout)) or "none known"


def _behind(found: Planned, *, explained: bool) -> Iterator[str]:
    """For every further plan, the parts of the step in which it loses most compared with the best, and where it gains."""
    best = found.forecast
    for number, one in enumerate(found.forecasts[1:], 2):
        gaps = {part: one.parts[part] - best.parts[part] for part in PARTS}
        largest = sorted((part for part in PARTS if abs(gaps[part]) > 1e-4 * best.step_s), key=lambda part: -abs(gaps[part]))[:3]
        listed = ", ".join(f"{'+' if gaps[part] > 0 else '-'}{seconds(abs(gaps[part]))} {PART_NAMES[part]}" for part in largest)
        yield f"#{number} against #1: {listed or 'the same in every part'}"
        if explained and number <= NUM_EXPLAINED:
            yield from _why(explain(one))


def _why(why: Explanation) -> Iterator[str]:
    """What the axes of a further plan send, over which tiers, and what limits it."""
    carried = [
        f"{axis.name} {si(axis.num_bytes, 'B', 3)} over {' + '.join(axis.tiers) or '-'}, "
        f"{per_cent(axis.hidden_s / axis.traffic_s, '.0f')} hidden"
        for axis in why.axes
        if axis.traffic_s > 0
    ]
    yield f"   {'; '.join(carried)}. {_sentence(why.limit)} {' '.join(why.mapping)}".rstrip()


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def whole_layouts(forecasts: Iterable[Forecast]) -> Lines:
    """Whole layouts, each on a line that is not wrapped, so that the copied text is the layout that was priced.

    `--gpus` comes first. Last comes what `--set` needs, if `--gpus` alone would give another number of accelerators in each domain.
    """
    return Lines("for --layout, whole", tuple(map(_whole_layout, forecasts)))


def _whole_layout(forecast: Forecast) -> str:
    job = forecast.job
    sets = "".join(f"  --set {change}" for change in domain_changes(job.described, job.cluster))
    return f"{job.num_accelerators:>7,}  {forecast.layout}{sets}"


def _front_row(point: Searched) -> tuple[str, ...]:
    best = point.best
    whole, time_s, cost, energy_j = best.outcome, best.time_to_train, best.cost, best.energy
    shown = (
        whole.words(time_s, seconds) if time_s else "unknown",
        whole.words(cost, usd) if cost else "unknown",
        whole.words(energy_j, energy) if energy_j else "unknown",
    )
    return f"{point.cluster.num_accelerators:,}", *shown, best.layout.degrees


def _explanation(why: Explanation) -> Iterator[Block]:
    columns = ("axis", "ranks>", "crosses", "bytes>", "messages>", "traffic>", "hidden>", "exposed>", "hides behind")
    yield Table("why: what each axis carries in a step, on one accelerator", columns, tuple(map(_axis_row, why.axes)))
    yield Text(_sentence(why.limit))
    yield from map(Text, why.mapping)
    if why.changes:
        changes = tuple(map(_change_row, why.changes[:NUM_CHANGES_SHOWN]))
        yield Table("what one change would gain", ("change", "time per token>", "step>", ""), changes)


def _axis_row(axis: AxisTraffic) -> tuple[str, ...]:
    share = per_cent(axis.hidden_s / axis.traffic_s, ".0f") if axis.traffic_s else "-"
    moved = [si(axis.num_bytes, "B", 3), f"{axis.num_messages:,.0f}", seconds(axis.traffic_s)]
    return axis.name, axis.ranks, " + ".join(axis.tiers) or "-", *moved, share, seconds(axis.exposed_s), axis.behind


def _change_row(change: Change) -> tuple[str, ...]:
    return change.what, f"{-change.gain_pct:+.1f} %", seconds(change.step_s), "" if change.fits else "does not fit"


def _statistics(found: Planned) -> str:
    best, result = found.best.found, found.survey
    text = (
        f"{best.num_layouts:,} layouts priced, {best.num_pruned:,} pruned (none can be better), {best.num_unfit:,} do not fit, "
        f"in {best.search_s:.2f} s"
    )
    if len(result.searched) > 1 or result.num_bounded:
        text += f"; {len(result.searched)} sizes searched in {found.search_s:.1f} s, {result.num_bounded} more cannot win"
    return text


def _values(found: Planned, why: Explanation | None) -> dict[str, Any]:
    """Everything under the names that all commands use: every plan is a forecast, with its explanation."""
    best, forecast = found.best.found, found.forecast
    plans = [{**forecast_values(one), **({"explanation": explanation_values(explain(one))} if why else {})} for one in found.forecasts]
    return {
        "plans": plans,
        "stack": found.ask.stack.name,
        "num_equal": best.num_equal,
        "run_to_run": run_noise(),
        "fixed": choice_values(found.ask.fixed.values),
        "num_layouts": best.num_layouts,
        "num_pruned": best.num_pruned,
        "num_unfit": best.num_unfit,
        "search_s": found.search_s,
        "num_accelerators": forecast.job.num_accelerators,
        "num_machines": len(found.survey.searched),
        "objective": found.ask.aim.objective,
        "limits": [_limit_values(limit) for limit in found.ask.aim.limits(forecast)],
        "explanation": explanation_values(why) if why else None,
        "spares": {**asdict(found.spares), "total": found.spares.total},
        "pareto": [forecast_values(point.best) for point in found.front],
        "without_set": forecast_values(found.before) if found.before else None,
        "change_with_set": _change_values(found.comparison) if found.comparison else None,
        "model": forecast.job.model.name,
        "cluster": forecast.job.cluster.name,
        "workload": forecast.job.workload.name,
        "software": forecast.job.software.name,
        "notes": found.notes,
    }


def _change_values(compared: Comparison) -> dict[str, Any]:
    return {"what": "step_s" if compared.same_tokens else "time_per_token", "longer_pct": compared.longer_pct}


def _limit_values(limit: Limit) -> dict[str, Any]:
    """A limit with its unit in the names: seconds of a deadline, dollars of a budget."""
    unit = "s" if limit.what == "deadline" else "usd"
    amounts = {"allowed": limit.allowed, "predicted": limit.predicted, "high": limit.reaches}
    named = {f"{name}_{unit}": amount for name, amount in amounts.items()}
    return {"what": limit.what, **named, "is_sure": limit.is_sure, "text": limit.words}


def explanation_values(why: Explanation) -> dict[str, Any]:
    """An explanation: what the axes send, what limits the step, the reasons and the changes."""
    axes = [{**asdict(axis), "hidden_s": axis.hidden_s} for axis in why.axes]
    return {"axes": axes, "limit": why.limit, "reasons": why.reasons, "changes": [asdict(change) for change in why.changes]}
