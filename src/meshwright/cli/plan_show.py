"""How the answer of `meshwright plan` is shown: as tables for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from meshwright.cli.layout_values import layout_json
from meshwright.cli.plan_answer import Answer
from meshwright.cli.plan_files import Written
from meshwright.cli.predict_answer import samples_json
from meshwright.cli.show import show_json, show_pairs, show_table, show_text
from meshwright.layout import AXES, Layout
from meshwright.plan.explain import AxisTraffic, Change, Explanation
from meshwright.plan.make import PricedPlan
from meshwright.plan.objective import Limit
from meshwright.plan.plan import Plan
from meshwright.plan.sizes import Searched
from meshwright.predict.outcome import Spread, mfu_said
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.units import KWH, MINUTE, gib, seconds, si, usd

NUM_RANKS_SHOWN = 6
NUM_CHANGES_SHOWN = 6
NUM_EXPLAINED = 5  # plans; JSON has all of them
SMALL = ("optimizer", "data", "overhead")  # parts of the step that share a column


# -- for programs ---------------------------------------------------------------------------------------


def show_as_json(answer: Answer, written: Written) -> None:
    """Print everything under the names that later tools use."""
    found = answer.best.found
    show_json(
        {
            "plans": [_plan_and_why(answer, priced) for priced in answer.plans],
            "num_layouts": found.num_layouts,
            "num_pruned": found.num_pruned,
            "num_unfit": found.num_unfit,
            "search_s": answer.search_s,
            "num_accelerators": answer.plan.cluster.num_accelerators,
            "num_machines": len(answer.survey.searched),
            "objective": answer.ask.aim.objective,
            "limits": [_limit_json(limit) for limit in answer.ask.aim.limits(answer.best.best)],
            "explanation": _explanation_json(answer.explanation) if answer.explanation else None,
            "spares": {**asdict(answer.spares), "total": answer.spares.total},
            "pareto": [_point_json(point) for point in answer.front],
            "without_set": plan_json(answer.before) if answer.before else None,
            "model": answer.plan.model.name,
            "cluster": answer.plan.cluster.name,
            "workload": answer.plan.workload.name,
            "software": answer.plan.software,
            "notes": answer.plan.notes,
            "files": [{"what": what, "path": str(path)} for what, path in written.files],
            "not_exported": dict(written.refused),
            "left_out_for_exports": written.left_out,
        }
    )


def _plan_and_why(answer: Answer, priced: PricedPlan) -> dict[str, Any]:
    why = {"explanation": _explanation_json(answer.why(priced.plan))} if answer.explanation else {}
    return {**plan_json(priced), **why}


def plan_json(priced: PricedPlan) -> dict[str, Any]:
    """One plan with what it takes."""
    plan, said, takes = priced.plan, priced.prediction, priced.outcome
    cost_usd = takes.offer.cost_usd if takes.offer else None
    return {
        "layout": layout_json(plan.layout),
        "step_time_s": plan.step_time_s,
        "low_s": plan.low_s,
        "middle_s": plan.step_time_s * said.interval.middle,
        "high_s": plan.high_s,
        "parts": {part: plan.parts_s[part] for part in PARTS},
        "tokens_per_s": said.tokens_per_s[0],
        "mfu": said.mfu[0],
        "memory_peak_bytes": plan.peak_memory_bytes,
        **samples_json(plan.workload, takes),
        "time_to_train_min": _value(takes.time_to_train_s, MINUTE),
        "cost_usd": _value(cost_usd),
        "energy_kwh": _value(takes.energy_j, KWH),
        "carbon_kg": _value(takes.carbon_kg),
        "water_l": _value(takes.water_l),
        "tokens_per_dollar": said.num_steps * plan.workload.tokens_per_step / cost_usd.value if cost_usd else None,
        "num_accelerators": plan.cluster.num_accelerators,
        "placement": plan.placement,
    }


def _limit_json(limit: Limit) -> dict[str, Any]:
    return {**asdict(limit), "is_sure": limit.is_sure, "said": limit.words}


def _value(spread: Spread | None, unit: float = 1.0) -> float | None:
    return spread.value / unit if spread else None


def _explanation_json(said: Explanation) -> dict[str, Any]:
    axes = [{**asdict(axis), "hidden_s": axis.hidden_s} for axis in said.axes]
    return {"axes": axes, "limit": said.limit, "reasons": said.reasons, "changes": [asdict(change) for change in said.changes]}


def _point_json(point: Searched) -> dict[str, Any]:
    return plan_json(point.best)


# -- for people -----------------------------------------------------------------------------------------


def show_tables(answer: Answer, written: Written) -> None:
    """Print the answer first, then the runners-up, why, where the ranks stand, and what the search did."""
    plan = answer.plan
    chip = plan.cluster.accelerator.name
    title = f"{plan.model.name} on {plan.cluster.name} ({plan.cluster.num_accelerators:,} {chip}), {plan.workload.name}"
    show_pairs(title, _answer(answer))
    show_table(f"the {len(answer.plans)} best by {answer.ask.aim.objective}", _columns(answer), _rows(answer))
    for sentence in _behind(answer):
        show_text(sentence)
    if len(answer.plans) > 1:
        print()
    if answer.front:
        show_table("time against cost", ("accelerators>", "time to train>", "cost>", "energy>", "degrees"), map(_front_row, answer.front))
        show_layouts((point.cluster.num_accelerators, point.best.plan.layout) for point in answer.front)
    if answer.explanation:
        _show_explanation(answer.explanation)
    ranks = answer.ranks
    first = ranks.rows(NUM_RANKS_SHOWN)
    show_table(f"ranks (the first {len(first)} of {len(ranks):,})", [f"{name}>" for name in ranks.columns], first)
    show_layouts([(plan.cluster.num_accelerators, plan.layout)])
    show_text(_statistics(answer))
    bounds = answer.best.best.prediction.interval
    show_text(f"interval: from {bounds.num_runs} runs, {bounds.kin}")
    for note in filter(None, (answer.ask.stack.note, bounds.note, *answer.size_notes, *answer.best.best.outcome.notes)):
        show_text(f"note: {note}")
    if written.left_out:
        show_text(f"note: left out of the search for the exports: {written.left_out}")
    for what, path in written.files:
        show_text(f"wrote the {what}: {path}")
    for kind, why in written.refused:
        show_text(f"not written, {kind}: {why}")


def _answer(answer: Answer) -> Iterator[tuple[str, str]]:
    priced, plan = answer.best.best, answer.plan
    takes, said, layout = priced.outcome, priced.prediction, plan.layout
    m = layout.num_micro_batches(plan.workload.global_batch)
    batches = f"{m:,} micro-batch{'es' if m > 1 else ''}"
    yield "layout", f"{layout.degrees}  {', '.join(filter(None, [batches, _choices(layout)]))}, order {'-'.join(layout.order)}"
    middle = said.interval.middle
    usual = f", middle {seconds(plan.step_time_s * middle)}: half of the comparable runs took that or more" if middle > 1 else ""
    yield "step time", f"{seconds(plan.step_time_s)}  80 % interval {seconds(plan.low_s)} to {seconds(plan.high_s)}{usual}"
    if answer.before:
        yield "without --set", _against(answer.before.plan, plan)
    tokens_per_s = float(said.tokens_per_s[0])
    each = tokens_per_s / plan.cluster.num_accelerators
    yield "throughput", f"{si(tokens_per_s, '')} tokens/s  {each:,.0f} an accelerator, MFU {mfu_said(float(said.mfu[0]))}"
    reserve = gib(plan.cluster.accelerator.memory_bytes)
    yield "memory", f"{gib(plan.peak_memory_bytes)} of {reserve} at the peak of the fullest stage"
    steps, no_time = f"{said.num_steps:,} steps", takes.unknown.get("time_to_train")
    yield "time to train", _spread(takes.time_to_train_s, seconds, steps, no_time, middle, takes.bound)
    offer = takes.offer
    price = f"{offer.price.provider} {offer.price.kind}, {usd(offer.price.usd_per_accelerator_hour)} an hour each" if offer else ""
    yield "cost", _spread(offer.cost_usd if offer else None, usd, price, takes.unknown.get("cost"), middle, takes.bound)
    for limit in answer.ask.aim.limits(priced):
        yield limit.what, limit.words
    halls = f"at the wall, {si(takes.node_w, 'W')} a node" if takes.node_w else ""
    yield "energy", _spread(takes.energy_j, _kwh, halls, takes.unknown.get("energy"), middle, takes.bound)
    grid = f"{takes.region.name}, {takes.region.grid_gco2e_per_kwh:g} g/kWh, PUE {takes.facility.pue:g}"
    yield "carbon", _spread(takes.carbon_kg, _carbon, grid, takes.unknown.get("energy"), middle, takes.bound)
    yield "spares", _spares(answer)


def _against(before: Plan, after: Plan) -> str:
    ratio = after.step_time_s / before.step_time_s - 1
    change = f"{abs(ratio):,.1%} {'longer' if ratio > 0 else 'shorter'} with it" if abs(ratio) >= 5e-4 else "as long with it"
    same = "the same layout" if before.layout == after.layout else str(before.layout)
    sizes = "" if before.cluster.num_accelerators == after.cluster.num_accelerators else f" on {before.cluster.num_accelerators:,}"
    return f"{seconds(before.step_time_s)}{sizes}  so {change}; {same}"


def _spread(spread: Spread | None, shown: Any, remark: str, unknown: str | None, middle: float, bound: str) -> str:
    """A quantity that grows with time and its interval; the middle too, where the quantity itself is a best case."""
    if spread is None:
        return f"unknown  {unknown or ''}".rstrip()
    usual = f", middle {shown(spread.value * middle)}" if middle > 1 else ""
    return f"{bound}{shown(spread.value)}  {spread.between(shown)}{usual}" + (f"; {remark}" if remark else "")


def _carbon(kg: float) -> str:
    return f"{kg:.4g} kg CO2e" if kg < 1000 else f"{kg / 1000:,.4g} t CO2e"


def _kwh(energy_j: float) -> str:
    return si(energy_j / KWH * 1e3, "Wh")


def _spares(answer: Answer) -> str:
    spares = answer.spares
    if not spares.per_domain:
        return f"none: every accelerator of {spares.num_domains} {spares.domain}s is used" if spares.num_domains > 1 else "none"
    used = spares.num_installed - spares.per_domain
    return f"{spares.total:,}: {used} of {spares.num_installed} in each of {spares.num_domains} {spares.domain}s are used"


def _columns(answer: Answer) -> tuple[str, ...]:
    parts = (f"{part}>" for part in _parts(answer))
    return ("#>", *(f"{name}>" for name in _degrees(answer)), "choices", "order", "step>", "vs best>", *parts, "memory>")


def _degrees(answer: Answer) -> dict[str, str]:
    """Columns of the layout's numbers, under their short names; those that are 1 in all plans are left out, but for the axes."""
    names = {**{axis: axis for axis in AXES}, "vp": "vp", "ep": "ep", "mbs": "micro_batch"}
    shown = (*AXES, "vp", "mbs")
    return {name: key for name, key in names.items() if name in shown or any(getattr(p.plan.layout, key) > 1 for p in answer.plans)}


def _choices(layout: Layout) -> str:
    """What was chosen beside the degrees, in few words."""
    said = [layout.schedule] if layout.pp > 1 else []
    said += [layout.cp_kind] if layout.cp > 1 else []
    said += [f"ZeRO {layout.zero_stage}"] if layout.zero_stage != 1 else []
    return ", ".join([*said, *([f"recompute {layout.recompute}"] if layout.recompute != "none" else [])])


def _parts(answer: Answer) -> dict[str, tuple[str, ...]]:
    """Columns of the table: parts of the step that are there in any of the plans, the small ones together."""
    wanted = {PART_NAMES[part]: (part,) for part in PARTS if part not in SMALL} | {"rest": SMALL}
    return {name: parts for name, parts in wanted.items() if any(priced.plan.parts_s[p] > 0 for priced in answer.plans for p in parts)}


def _rows(answer: Answer) -> Iterator[tuple[str, ...]]:
    best_s = answer.plan.step_time_s
    for number, priced in enumerate(answer.plans, 1):
        plan = priced.plan
        degrees = [str(getattr(plan.layout, key)) for key in _degrees(answer).values()]
        spent = [seconds(sum(plan.parts_s[part] for part in parts)) for parts in _parts(answer).values()]
        times = seconds(plan.step_time_s), f"+{plan.step_time_s / best_s - 1:.2%}" if number > 1 else "-", *spent
        yield str(number), *degrees, _choices(plan.layout), "-".join(plan.layout.order), *times, gib(plan.peak_memory_bytes)


def _behind(answer: Answer) -> Iterator[str]:
    """For every runner-up, the parts of the step in which it loses most against the best, and where it gains."""
    best = answer.plan
    for number, priced in enumerate(answer.plans[1:], 2):
        plan = priced.plan
        gaps = {part: plan.parts_s[part] - best.parts_s[part] for part in PARTS}
        largest = sorted((part for part in PARTS if abs(gaps[part]) > 1e-4 * best.step_time_s), key=lambda part: -abs(gaps[part]))[:3]
        said = ", ".join(f"{'+' if gaps[part] > 0 else '-'}{seconds(abs(gaps[part]))} {PART_NAMES[part]}" for part in largest)
        yield f"#{number} against #1: {said or 'the same in every part'}"
        if answer.explanation and number <= NUM_EXPLAINED:
            yield from _why(number, answer.why(plan))


def _why(number: int, said: Explanation) -> Iterator[str]:
    """What the axes of a runner-up carry, where, and what limits it."""
    carried = [
        f"{axis.name} {si(axis.num_bytes, 'B', 3)} over {' + '.join(axis.tiers) or '-'}, {axis.hidden_s / axis.traffic_s:.0%} hidden"
        for axis in said.axes
        if axis.traffic_s > 0
    ]
    mapping = "".join(f" {reason}" for reason in said.reasons if reason.startswith("A replica is"))
    yield f"   {'; '.join(carried)}. {said.limit[0].upper()}{said.limit[1:]}.{mapping}"


def show_layouts(sized: Iterable[tuple[int, Layout]]) -> None:
    """Print whole layouts, each on a line that no width folds: what is copied from it must be the layout that was priced."""
    print("for --layout, whole")
    for num_accelerators, layout in sized:
        print(f"{num_accelerators:>7,}  {layout}")
    print()


def _front_row(point: Searched) -> tuple[str, ...]:
    takes, size = point.best.outcome, point.cluster.num_accelerators
    time_said = f"{takes.bound}{seconds(takes.time_to_train_s.value)}" if takes.time_to_train_s else "unknown"
    cost = f"{takes.bound}{usd(takes.offer.cost_usd.value)}" if takes.offer else "unknown"
    energy = f"{takes.bound}{_kwh(takes.energy_j.value)}" if takes.energy_j else "unknown"
    return f"{size:,}", time_said, cost, energy, point.best.plan.layout.degrees


def _show_explanation(said: Explanation) -> None:
    columns = ("axis", "ranks>", "crosses", "bytes>", "messages>", "traffic>", "hidden>", "exposed>", "hides behind")
    show_table("why: what each axis carries in a step, on one accelerator", columns, map(_axis_row, said.axes))
    show_text(f"{said.limit[0].upper()}{said.limit[1:]}.")
    for reason in said.reasons:
        if not reason.startswith(tuple(f"{axis.name} moves" for axis in said.axes)):  # the table says so already
            show_text(reason)
    print()
    if said.changes:
        changes = said.changes[:NUM_CHANGES_SHOWN]
        show_table("what one change would buy", ("change", "time a token>", "step>", ""), map(_change_row, changes))


def _axis_row(axis: AxisTraffic) -> tuple[str, ...]:
    share = f"{axis.hidden_s / axis.traffic_s:.0%}" if axis.traffic_s else "-"
    moved = [si(axis.num_bytes, "B", 3), f"{axis.num_messages:,.0f}", seconds(axis.traffic_s)]
    return axis.name, axis.ranks, " + ".join(axis.tiers) or "-", *moved, share, seconds(axis.exposed_s), axis.behind


def _change_row(change: Change) -> tuple[str, ...]:
    return change.what, f"{-change.gain_pct:+.1f} %", seconds(change.step_time_s), "" if change.fits else "does not fit"


def _statistics(answer: Answer) -> str:
    found, result = answer.best.found, answer.survey
    said = (
        f"{found.num_layouts:,} layouts priced, {found.num_pruned:,} pruned (none can be better), {found.num_unfit:,} do not fit, "
        f"in {found.search_s:.2f} s"
    )
    if len(result.searched) > 1 or result.num_bounded:
        said += f"; {len(result.searched)} sizes searched in {answer.search_s:.1f} s, {result.num_bounded} more cannot win"
    return said
