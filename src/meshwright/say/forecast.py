"""The document of a forecast: the main results first, then the details, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from meshwright.describe.whatif import domain_changes
from meshwright.layout import AXES, SHORT_NAMES, Layout
from meshwright.plan.stack import refusals, runs_on
from meshwright.predict.footprint import PARTS as MEMORY_PARTS
from meshwright.predict.footprint import reserve_for
from meshwright.predict.forecast import Forecast
from meshwright.predict.outcome import Offer, Outcome, Spread
from meshwright.predict.placement import ranks_of, spanned
from meshwright.predict.practice import CLASSES
from meshwright.predict.software import Software
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.say.document import Block, Document, Note, Pairs, Table, Text
from meshwright.units import KWH, carbon, energy, gib, seconds, si, usd, water

BAR_WIDTH = 40  # characters of a part that is the whole step
EIGHTHS = ("", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589")
NUM_OTHER_PRICES = 3
MFU_FORMULA = (
    "tokens/s x FLOPs per token / (accelerators x dense peak of the layers' precision); a token needs 6 FLOPs per matrix parameter "
    "(4 where the base is frozen) and 3 times the forward attention, causal attention counted once; HFU adds what is recomputed"
)
DISTANCE = {"measured": "inside the evidence", "near": "near the evidence", "far": "far from the evidence"}

Line = tuple[str, str, str]  # name, value, remark


def forecast_document(forecast: Forecast) -> Document:
    """The whole forecast."""
    job = forecast.job
    title = f"{job.name} ({job.num_accelerators:,} {job.cluster.accelerator.name}), {job.workload.name}"
    return Document(kind="forecast", title=title, blocks=tuple(_blocks(forecast, title)), values=forecast_values(forecast))


def _blocks(forecast: Forecast, title: str) -> Iterator[Block]:
    chip = forecast.job.cluster.accelerator
    yield Pairs(title, tuple(_question(forecast)))
    yield Pairs("answer", (*speed_lines(forecast), *outcome_lines(forecast)))
    yield Table("step", ("part", "seconds>", "share>", ""), tuple(part_rows(forecast)))
    yield Table("axes", ("axis", "ranks>", "crosses", "exposed>"), tuple(_axes(forecast)))
    columns = ("stage", "layers>", *(f"{part}>" for part in MEMORY_PARTS), "peak>", "full>", "peak at")
    yield Table(
        f"memory of {chip.name}: {gib(chip.room_bytes)}, {gib(reserve_for(chip))} of it reserved", columns, tuple(_memory(forecast))
    )
    yield evidence_text(forecast)
    yield from map(Note, forecast.notes)


def evidence_text(forecast: Forecast) -> Text:
    """Which measured runs the interval comes from, and how close the job is to them."""
    evidence = forecast.evidence
    return Text(f"evidence: compared with {evidence.num_runs} runs ({evidence.kin}); this job is {DISTANCE[evidence.distance]}")


def _question(forecast: Forecast) -> Iterator[Line]:
    layout, workload = forecast.layout, forecast.job.workload
    batches = f"{forecast.num_micro_batches:,} micro-batch{'' if forecast.num_micro_batches == 1 else 'es'}"
    yield "layout", layout.degrees, f"{batches}, order {'-'.join(layout.order)}"
    chosen = [f"{layout.schedule} schedule"] * (layout.pp > 1) + [f"{layout.cp_kind} context"] * (layout.cp > 1)
    yield "", "", ", ".join([*chosen, f"TP overlap {_switch(layout.overlap_tp)}, CUDA graphs {_switch(layout.cuda_graphs)}"])
    yield (
        "step",
        f"{workload.global_batch:,} x {workload.seq_len:,} tokens",
        f"{workload.precision}, software {software_text(forecast.job.software)}",
    )
    yield "runs on", *_runners(forecast)


def _runners(forecast: Forecast) -> tuple[str, str]:
    """The stacks that run the layout, and a word about it; stacks that would without one overlap are named with that."""
    layout = forecast.layout
    if able := runs_on(forecast.job, layout):
        return ", ".join(able), ""
    if able := runs_on(forecast.job, replace(layout, overlap_pp=False)):
        return ", ".join(able), "with overlap_pp=no: they do not overlap messages of single chunks"
    return "none known", "no stack that meshwright knows runs it as planned; --json has the reasons"


def software_text(stack: Software) -> str:
    """The software's name and what its class is."""
    meaning = CLASSES[stack.kind].meaning if stack.kind else "of no class that was fitted"
    return f"{stack.name} ({meaning})"


def _switch(on: bool) -> str:
    return "on" if on else "off"


def speed_lines(forecast: Forecast) -> Iterator[Line]:
    """Step time with its interval, throughput and MFU."""
    low_s, high_s = forecast.interval
    between = f"80 % interval {seconds(low_s)} to {seconds(high_s)}"
    yield "step time", seconds(forecast.step_s), between
    yield "throughput", f"{si(forecast.tokens_per_s, '')} tokens/s", f"{forecast.tokens_per_s_per_gpu:,.0f} tokens/s per accelerator"
    yield "MFU", mfu_text(forecast.mfu), f"HFU {100 * forecast.hfu:.1f} %; causal attention counted once"


def mfu_text(mfu: float) -> str:
    """An MFU in per cent; above 100 with the reason."""
    return f"{100 * mfu:.1f} %" + (" of a peak described too low" if mfu > 1 else "")


def outcome_lines(forecast: Forecast) -> Iterator[Line]:
    """The whole run: time, cost, energy, carbon and water, each with its interval or the reason why it is unknown."""
    whole = forecast.outcome
    grid, facility, offer = whole.region, whole.facility, whole.offer
    yield quantity(whole, "time to train", whole.time_to_train_s, seconds, _steps(whole), "time_to_train")
    if whole.interruptions and whole.time_to_train_s:
        precautions, without = interruptions_text(whole)
        yield "goodput", f"{100 * whole.interruptions.goodput:.1f} %", precautions
        yield "", "", without
    yield quantity(whole, "cost", offer.cost_usd if offer else None, usd, price_text(offer) if offer else "", "cost")
    yield from _other_prices(whole)
    yield quantity(whole, "energy", whole.energy_j, energy, f"at the wall; hosts: {whole.hosts}", "energy")
    if whole.facility_energy_j:
        pue = f"with PUE {facility.pue:g} ({facility.name}, {facility.year})"
        yield quantity(whole, "facility", whole.facility_energy_j, energy, pue, "energy")
    if whole.carbon_kg:
        source = f"{grid.grid_gco2e_per_kwh:g} g CO2e/kWh, grid of {grid.name} ({grid.year}, {grid.method})"
        yield quantity(whole, "carbon", whole.carbon_kg, carbon, source, "energy")
    if whole.energy_j:
        rate = facility.wue_l_per_kwh
        source = "" if rate is None else f"on site, {rate:g} l/kWh ({facility.name}, {facility.year})"  # shown where the volume is known
        yield quantity(whole, "water", whole.water_l, water, source, "water")


def _steps(whole: Outcome) -> str:
    plural = "" if whole.num_evaluations == 1 else "s"
    evaluations = f", {whole.num_evaluations} evaluation{plural} of {seconds(whole.evaluation_s)}" if whole.num_evaluations else ""
    return f"{'at least ' * whole.is_lower_bound}{whole.num_steps:,} steps{evaluations}"


def interruptions_text(whole: Outcome) -> tuple[str, str]:
    """What a long run must expect, its checkpoint interval and spare nodes, and its time without failures."""
    failing = whole.interruptions
    assert failing is not None and whole.ideal_s is not None
    often = f"interrupted every {seconds(failing.between_s)}, " if math.isfinite(failing.between_s) else ""
    spares = f", {failing.num_spares} spare node{'' if failing.num_spares == 1 else 's'} paid for" if failing.num_spares else ""
    known = f"{often}a checkpoint every {seconds(failing.interval_s)}{spares}, failures as {failing.failures.name}"
    stalls = f"stalls add {100 * whole.stalls:.1f} % to the steps; " if whole.stalls >= 0.001 else ""
    return known, f"{stalls}{seconds(whole.ideal_s)} if nothing fails (--ideal)"


def quantity(whole: Outcome, name: str, spread: Spread | None, shown: Callable[[float], str], remark: str, key: str) -> Line:
    """A quantity of the whole run with its interval and a remark, or the reason why it is unknown."""
    if spread is None:
        return name, "unknown", whole.unknown.get(key, "")
    between = f"no upper end, {shown(spread.value)} at the predicted step time" if whole.is_lower_bound else spread.between(shown)
    return name, whole.words(spread, shown), between + (f"; {remark}" if remark else "")


def price_text(offer: Offer) -> str:
    """Whose price, and how much per accelerator-hour."""
    price = offer.price
    return f"{price.provider} {price.kind}, {usd(price.usd_per_accelerator_hour)} per accelerator-hour ({price.date})"


def _other_prices(whole: Outcome) -> Iterator[Line]:
    """The cheapest of the other offers, on a line of their own."""
    others = [offer for offer in whole.alternatives if whole.offer is None or offer.price != whole.offer.price]
    if others:
        named = [f"{usd(offer.cost_usd.value)} {offer.price.provider} {offer.price.kind}" for offer in others[:NUM_OTHER_PRICES]]
        more = f", {len(others) - NUM_OTHER_PRICES} more with --json" if len(others) > NUM_OTHER_PRICES else ""
        yield "", "", f"or {', '.join(named)}{more}"


def part_rows(forecast: Forecast) -> Iterator[tuple[str, str, str, str]]:
    """Every part of the step that takes time, with its share and a bar; the step itself last."""
    for part in PARTS:
        if forecast.parts[part] > 0:
            yield PART_NAMES[part], seconds(forecast.parts[part]), f"{100 * forecast.share(part):.1f} %", bar(forecast.share(part))
    yield "step", seconds(forecast.step_s), "100.0 %", ""


def bar(share: float) -> str:
    """A bar in eighths of a character."""
    eighths = round(share * BAR_WIDTH * 8)
    return "\u2588" * (eighths // 8) + EIGHTHS[eighths % 8]


def _axes(forecast: Forecast) -> Iterator[tuple[str, str, str, str]]:
    layout, cluster = forecast.layout, forecast.job.cluster
    for axis in AXES:
        over = ranks_of(axis, layout)
        if tiers := spanned(over, cluster, forecast.placement):
            yield " x ".join(over), " x ".join(map(str, over.values())), " + ".join(tiers), seconds(forecast.parts[f"exposed_{axis}"])
    if layout.expert_ranks > 1:
        of_each = layout.etp > 1
        yield (
            "ep x etp" if of_each else "ep",
            f"{layout.ep} x {layout.etp}" if of_each else f"{layout.ep}",
            " + ".join(forecast.placement.get("ep", ())),
            seconds(forecast.parts["exposed_ep"]),
        )


def _memory(forecast: Forecast) -> Iterator[tuple[str, ...]]:
    """The first stage, the fullest and the last, each once."""
    every, room_bytes = forecast.memory, forecast.job.cluster.accelerator.room_bytes
    fullest = max(every, key=lambda stage: stage.peak_bytes)
    names: dict[int, list[str]] = {}
    for name, stage in (("first", every[0]), ("fullest", fullest), ("last", every[-1])):
        names.setdefault(stage.stage, []).append(name)
    for number, named in sorted(names.items()):
        stage = every[number]
        parts = (gib(stage.parts[part]) for part in MEMORY_PARTS)
        full = f"{100 * stage.peak_bytes / room_bytes:.0f} %"
        yield f"{number} ({', '.join(named)})", f"{stage.layers}", *parts, gib(stage.peak_bytes), full, stage.peak_at


def layout_values(layout: Layout) -> dict[str, Any]:
    """A layout under the names that `--layout` takes, and the whole of it as one text that `--layout` reads."""
    return {**choice_values(asdict(layout)), "text": str(layout)}


def choice_values(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Choices by the fields of a layout, under the names that `--layout` reads."""
    return {SHORT_NAMES.get(key, key): "-".join(value) if key == "order" else value for key, value in choices.items()}


def forecast_values(forecast: Forecast) -> dict[str, Any]:
    """All values of a forecast, under the names that all commands use in their JSON."""
    job, whole, evidence = forecast.job, forecast.outcome, forecast.evidence
    tokens = whole.num_steps * job.workload.tokens_per_step
    reasons = refusals(job, forecast.layout)
    return {
        "model": job.model.name,
        "cluster": job.cluster.name,
        "accelerator": job.cluster.accelerator.name,
        "num_accelerators": job.num_accelerators,
        "workload": job.workload.name,
        "seq_len": job.workload.seq_len,
        "global_batch": job.workload.global_batch,
        "precision": job.workload.precision,
        "software": job.software.name,
        "layout": layout_values(forecast.layout),
        "runs_on": [name for name, reason in reasons.items() if not reason],
        "not_run_by": {name: reason for name, reason in reasons.items() if reason},
        "domain_sets": domain_changes(job.described, job.cluster),
        "num_micro_batches": forecast.num_micro_batches,
        "placement": forecast.placement,
        "step_s": forecast.step_s,
        "low_s": forecast.interval.low_s,
        "high_s": forecast.interval.high_s,
        "parts_s": {part: forecast.parts[part] for part in PARTS},
        "tokens_per_s": forecast.tokens_per_s,
        "tokens_per_s_per_gpu": forecast.tokens_per_s_per_gpu,
        "mfu": forecast.mfu,
        "hfu": forecast.hfu,
        "mfu_formula": MFU_FORMULA,
        "memory": forecast.memory,
        "peak_memory_bytes": forecast.peak_memory_bytes,
        "num_steps": whole.num_steps,
        "num_evaluations": whole.num_evaluations,
        "evaluation_s": whole.evaluation_s,
        "measured_batches": job.workload.measured_batches,
        "batch_beyond_measured": whole.batch_beyond or None,
        "is_lower_bound": whole.is_lower_bound,
        **_spread("time_to_train{}_s", whole.time_to_train_s),
        "ideal_time_to_train_s": whole.ideal_s,
        "goodput": whole.goodput,
        "interrupted": _interrupted_values(whole) if whole.interruptions else None,
        **_spread("accelerator{}_hours", whole.accelerator_hours),
        **_spread("cost{}_usd", forecast.cost),
        "tokens_per_dollar": tokens / forecast.cost.value if forecast.cost else None,
        "price": _price_values(whole.offer) if whole.offer else None,
        "prices": [_price_values(offer) for offer in whole.alternatives],
        "busy": whole.busy,
        "node_w": whole.node_w,
        **_spread("energy{}_kwh", whole.energy_j, KWH),
        **_spread("facility{}_kwh", whole.facility_energy_j, KWH),
        **_spread("carbon{}_kg", whole.carbon_kg),
        **_spread("water{}_l", whole.water_l),
        "hosts": whole.hosts,
        **_place_values(whole),
        "unknown": whole.unknown,
        "evidence": {"distance": evidence.distance, "compared_with": evidence.kin, "num_runs": evidence.num_runs, "note": evidence.note},
        "notes": forecast.notes,
    }


def _spread(key: str, spread: Spread | None, unit: float = 1.0) -> dict[str, float | None]:
    """A value and its interval under `key`, whose {} becomes nothing, _low or _high; `unit` is what one is in SI."""
    values = (spread.value, spread.low, spread.high) if spread else (None, None, None)
    named = zip(("", "_low", "_high"), values, strict=True)
    return {key.format(suffix): None if value is None else value / unit for suffix, value in named}


def _interrupted_values(whole: Outcome) -> dict[str, Any]:
    """What the run must expect, its checkpoint interval and spare nodes, and where its time goes."""
    failing = whole.interruptions
    assert failing is not None
    run_s = whole.time_to_train_s.value if whole.time_to_train_s else None
    return {
        "failures": failing.failures.name,
        "between_s": failing.between_s,
        "num_interruptions": None if run_s is None else run_s / failing.between_s,
        "interval_s": failing.interval_s,
        "num_spares": failing.num_spares,
        "num_spare_accelerators": failing.num_spare_accelerators,
        "stalls": whole.stalls,
        "time_shares": {name.replace(" ", "_"): share for name, share in failing.shares.items()},
    }


def _place_values(whole: Outcome) -> dict[str, Any]:
    """The data centre and the electricity grid for which energy, carbon and water are computed."""
    facility, region = whole.facility, whole.region
    return {
        "facility": facility.name,
        "facility_year": facility.year,
        "facility_source": facility.source.text,
        "pue": facility.pue,
        "wue_l_per_kwh": facility.wue_l_per_kwh,
        "region": region.name,
        "region_year": region.year,
        "region_source": region.source.text,
        "grid_gco2e_per_kwh": region.grid_gco2e_per_kwh,
        "carbon_method": region.method,
    }


def _price_values(offer: Offer) -> dict[str, Any]:
    price = offer.price
    return {
        "provider": price.provider,
        "kind": price.kind,
        "instance": price.instance,
        "usd_per_accelerator_hour": price.usd_per_accelerator_hour,
        "date": price.date,
        "source": price.source.text,
        "cost_usd": offer.cost_usd.value,
    }
