"""What `meshwright predict` was asked, and its answer: as tables for people, as JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from meshwright.cli.layout_values import layout_json
from meshwright.cli.profile_choice import with_profile
from meshwright.cli.show import show_json, show_pairs, show_table, show_text
from meshwright.describe.cluster import Cluster, beyond_note
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.layout import AXES, Layout, Layouts, parse_layout
from meshwright.predict.footprint import PARTS as MEMORY_PARTS
from meshwright.predict.footprint import check_fits, recipe_for, reserve_for, stage_rows, stages
from meshwright.predict.outcome import Offer, Outcome, Spread, mfu_said
from meshwright.predict.placement import overlap_note, ranks_of, spanned, tiers_of
from meshwright.predict.prediction import Prediction, check, exact_step_s, predict, usual_layout
from meshwright.predict.software import software
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.units import KWH, MINUTE, gib, seconds, si, usd

MAX_OPERATIONS = 100_000  # of a schedule that is timed exactly without being asked: well under 0.1 s
MOST_OPERATIONS = 20_000_000  # a schedule takes some hundred bytes an operation
BAR_WIDTH = 40  # characters of a part that is the whole step
EIGHTHS = ("", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589")
NUM_OTHER_PRICES = 3
MFU_FORMULA = (
    "tokens/s x FLOPs a token / (accelerators x dense peak of the layers' precision); a token takes 6 FLOPs a matrix parameter "
    "(4 where the base is frozen) and 3 times the forward attention, causal attention counted once; HFU adds what is recomputed"
)
DISTANCE = {"measured": "inside the evidence", "near": "near the evidence", "far": "far from the evidence"}


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be priced."""

    model: Model
    cluster: Cluster
    workload: Workload
    layout: Layout
    described: Cluster  # the machine before --gpus


@dataclass(frozen=True, slots=True)
class Answer:
    """All there is to print."""

    job: Job
    prediction: Prediction  # of one row
    outcome: Outcome
    exact_step_time_s: float | None

    @property
    def stages(self) -> list[dict[str, Any]]:
        """Every pipeline stage with its bytes by part."""
        job = self.job
        if self.prediction.software.profile and job.layout.num_ranks == 1:
            return stage_rows(self.prediction.memory)
        return stages(job.model, job.workload, job.layout, recipe_for(job.workload.precision, job.cluster.accelerator))

    @property
    def notes(self) -> list[str]:
        """What a reader should know before trusting the numbers."""
        model, workload = self.job.model, self.job.workload
        notes = [self.prediction.software.note, self.prediction.interval.note, beyond_note(self.job.described, self.job.cluster)]
        notes.append(overlap_note(self.job.layout, self.job.cluster))
        if workload.model and workload.model != model.name and workload.convergence:
            notes.append(f"{workload.name} is defined for {workload.model}: its samples to the target are taken for {model.name} too")
        notes += self.outcome.notes
        return [note for note in notes if note]


# -- the question ---------------------------------------------------------------------------------------


def job(
    model: str, cluster: str, workload: str, layout: str, *, gpus: int | None, batch: int | None, seq: int | None, precision: str
) -> Job:
    """The nouns by name or file, with what the options change."""
    whole = load_cluster(cluster)
    machine = whole if gpus is None else whole.resized(gpus)
    task = load_workload(workload)
    task = replace(
        task,
        global_batch=task.global_batch if batch is None else batch,
        seq_len=task.seq_len if seq is None else seq,
        precision=precision or task.precision,
    )
    described = load_model(model)
    return Job(described, machine, task, filled_layout(layout, machine, usual_layout(described, machine, task)), whole)


def filled_layout(text: str, cluster: Cluster, usual: Layout) -> Layout:
    """The layout that `text` spells out on top of the usual switches; without dp, with as many replicas as the machine holds."""
    items = {item.partition("=")[0].strip(): item for item in text.split(",")}
    if "dp" in items:
        return parse_layout(text, usual)
    inner = parse_layout(",".join(item for key, item in items.items() if key in ("tp", "cp", "pp"))).num_ranks
    if cluster.num_accelerators % inner:
        sizes = [f"--gpus {size}" for size in cluster.nearest_sizes(cluster.num_accelerators, inner)]
        raise InputError(
            f"tp x cp x pp = {inner} does not divide the {cluster.num_accelerators} accelerators of {cluster.name}",
            where=f"--layout {text}",
            fix=" or ".join([f"choose degrees that do{',' * bool(sizes)}", *sizes]),
        )
    return parse_layout(text, replace(usual, dp=cluster.num_accelerators // inner))


def priced(job: Job, software_name: str, *, ignore_memory: bool, profile: str = "") -> Prediction:
    """The prediction, once the layout is seen to divide what it splits and to fit; by a hardware profile where there is one."""
    check(job.model, job.cluster, job.workload, job.layout)
    stack = with_profile(software(software_name), job.model, job.cluster, job.workload, profile)
    prediction = predict(job.model, job.cluster, job.workload, Layouts.of([job.layout]), stack)
    if not ignore_memory:
        check_fits(prediction.memory, job.cluster.accelerator, reserve_bytes=reserve_for(job.cluster.accelerator))
    return prediction


def exact_step_time_s(job: Job, prediction: Prediction, *, insist: bool) -> float | None:
    """Seconds of the step by its exact schedule; None where that is long and nobody insists."""
    num_operations = 2 * job.layout.pp * job.layout.vp * int(prediction.detail.num_micro_batches[0])
    if insist and num_operations > MOST_OPERATIONS:
        raise InputError(
            f"an exact schedule of {num_operations:,} operations would not fit in memory",
            where="--exact",
            fix=f"leave --exact out, or ask for a batch of at most {MOST_OPERATIONS:,} operations (2 x pp x vp x micro-batches)",
        )
    return exact_step_s(prediction, job.layout) if insist or num_operations <= MAX_OPERATIONS else None


# -- for programs ---------------------------------------------------------------------------------------


def show_as_json(answer: Answer) -> None:
    """Print everything under the names that later tools use."""
    job, said, takes = answer.job, answer.prediction, answer.outcome
    show_json(
        {
            "step_time_s": said.step_time_s[0],
            "low_s": said.low_s[0],
            "middle_s": said.step_time_s[0] * said.interval.middle,
            "high_s": said.high_s[0],
            "parts": {part: said.parts[part][0] for part in PARTS},
            "exact_step_time_s": answer.exact_step_time_s,
            "memory": answer.stages,
            "tokens_per_s": said.tokens_per_s[0],
            "tokens_per_s_per_gpu": said.tokens_per_s[0] / job.cluster.num_accelerators,
            "mfu": said.mfu[0],
            "hfu": said.hfu[0],
            "mfu_formula": MFU_FORMULA,
            "num_steps": said.num_steps,
            "num_evaluations": said.num_evaluations,
            "evaluation_s": said.evaluation_s[0],
            **samples_json(job.workload, takes),
            **_spread("time_to_train{}_min", takes.time_to_train_s, MINUTE),
            **_spread("accelerator{}_hours", takes.accelerator_hours),
            **_spread("cost{}_usd", takes.offer.cost_usd if takes.offer else None),
            "price": _price_json(takes.offer) if takes.offer else None,
            "prices": [_price_json(offer) for offer in takes.alternatives],
            "busy": takes.busy,
            "node_w": takes.node_w,
            **_spread("energy{}_kwh", takes.energy_j, KWH),
            **_spread("facility{}_kwh", takes.facility_energy_j, KWH),
            **_spread("carbon{}_kg", takes.carbon_kg),
            **_spread("water{}_l", takes.water_l),
            "hosts": takes.hosts,
            "facility": takes.facility,
            "region": takes.region,
            "unknown": takes.unknown,
            "placement": tiers_of(job.layout, job.cluster),
            "evidence": _evidence_json(answer),
            "software": said.software.name,
            "layout": layout_json(job.layout),
            "model": job.model.name,
            "cluster": {
                "name": job.cluster.name,
                "accelerator": job.cluster.accelerator.name,
                "num_accelerators": job.cluster.num_accelerators,
            },
            "workload": {key: getattr(job.workload, key) for key in ("name", "seq_len", "global_batch", "precision")},
            "notes": answer.notes,
        }
    )


def samples_json(workload: Workload, takes: Outcome) -> dict[str, Any]:
    """Where samples to the target were measured, and what the batch makes of time to train, cost, energy, carbon and water."""
    return {
        "measured_batches": workload.measured_batches,
        "batch_beyond_measured": takes.batch_beyond or None,
        "is_lower_bound": takes.batch_beyond == "above",
    }


def _spread(key: str, spread: Spread | None, unit: float = 1.0) -> dict[str, float | None]:
    """A value and its interval under `key`, whose {} becomes nothing, _low or _high; `unit` is what one is in SI."""
    values = (spread.value, spread.low, spread.high) if spread else (None, None, None)
    named = zip(("", "_low", "_high"), values, strict=True)
    return {key.format(suffix): None if value is None else value / unit for suffix, value in named}


def _price_json(offer: Offer) -> dict[str, Any]:
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


def _evidence_json(answer: Answer) -> dict[str, Any]:
    bounds = answer.prediction.interval
    return {"distance": bounds.distance, "compared_with": bounds.kin, "num_runs": bounds.num_runs, "note": bounds.note}


# -- for people -----------------------------------------------------------------------------------------


def show_tables(answer: Answer) -> None:
    """Print the answer first, then what it is made of, and how far to trust it."""
    job = answer.job
    machine = f"{job.cluster.num_accelerators:,} {job.cluster.accelerator.name}"
    show_pairs(f"{job.model.name} on {job.cluster.name} ({machine}), {job.workload.name}", _aligned(_question(answer)))
    show_pairs("answer", _aligned([*_speed(answer), *_run(answer)]))
    show_table("step", ("part", "seconds>", "share>", ""), _parts(answer.prediction))
    show_table("axes", ("axis", "ranks>", "crosses", "exposed>"), _axes(answer))
    reserve = f"{gib(job.cluster.accelerator.memory_bytes)}, of which {gib(reserve_for(job.cluster.accelerator))} is kept back"
    columns = ("stage", "layers>", *(f"{part}>" for part in MEMORY_PARTS), "peak>", "full>", "peak at")
    show_table(f"memory of {job.cluster.accelerator.name}: {reserve}", columns, _memory(answer))
    show_text(_evidence(answer))
    for note in answer.notes:
        show_text(f"note: {note}")


Line = tuple[str, str, str]  # name, value, remark


def _aligned(lines: list[Line]) -> Iterator[tuple[str, str]]:
    width = max(len(value) for _, value, _ in lines)
    for name, value, remark in lines:
        yield name, f"{value:<{width}}  {remark}".rstrip()


def _question(answer: Answer) -> list[Line]:
    job, stack = answer.job, answer.prediction.software
    workload, layout = job.workload, job.layout
    chosen = [f"{layout.schedule} schedule"] * (layout.pp > 1) + [f"{layout.cp_kind} context"] * (layout.cp > 1)
    return [
        ("layout", layout.degrees, f"{answer.prediction.detail.num_micro_batches[0]:,} micro-batches, order {'-'.join(layout.order)}"),
        ("", "", ", ".join([*chosen, f"TP overlap {_switch(layout.overlap_tp)}, CUDA graphs {_switch(layout.cuda_graphs)}"])),
        ("step", f"{workload.global_batch:,} x {workload.seq_len:,} tokens", f"{workload.precision}, software {stack.name}"),
    ]


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _speed(answer: Answer) -> list[Line]:
    said, num_gpus = answer.prediction, answer.job.cluster.num_accelerators
    exact = "" if answer.exact_step_time_s is None else f"; by the exact schedule {seconds(answer.exact_step_time_s)}"
    tokens_per_s, mfu, hfu = (float(column[0]) for column in (said.tokens_per_s, said.mfu, said.hfu))
    step_s, middle = float(said.step_time_s[0]), said.interval.middle
    between = f"80 % interval {seconds(float(said.low_s[0]))} to {seconds(float(said.high_s[0]))}"
    between += f", middle {seconds(step_s * middle)}: half of the comparable runs took that or more" if middle > 1 else ""
    return [
        ("step time", seconds(step_s), between + exact),
        ("throughput", f"{si(tokens_per_s, '')} tokens/s", f"{tokens_per_s / num_gpus:,.0f} tokens/s an accelerator"),
        ("MFU", mfu_said(mfu), f"HFU {100 * hfu:.1f} %; causal attention counted once"),
    ]


def _run(answer: Answer) -> list[Line]:
    takes, said = answer.outcome, answer.prediction
    halls, grid = takes.facility, takes.region
    evaluations = (
        f", {said.num_evaluations} evaluation{'' if said.num_evaluations == 1 else 's'} of {seconds(float(said.evaluation_s[0]))}"
        if said.num_evaluations
        else ""
    )
    drawn = f"with PUE {halls.pue:g} ({halls.name}, {halls.year})"
    carbon = f"{grid.grid_gco2e_per_kwh:g} g CO2e/kWh, grid of {grid.name} ({grid.year}, {grid.method})"
    water = f"on site, {halls.wue_l_per_kwh:g} l/kWh ({halls.name}, {halls.year})"
    offer = takes.offer
    return [
        _line(takes, "time to train", takes.time_to_train_s, seconds, f"{said.num_steps:,} steps{evaluations}", "time_to_train"),
        _line(takes, "cost", offer.cost_usd if offer else None, usd, _price_said(offer) if offer else ""),
        *_other_prices(takes),
        _line(takes, "energy", takes.energy_j, _kwh, f"at the wall; hosts: {takes.hosts}"),
        *([_line(takes, "facility", takes.facility_energy_j, _kwh, drawn)] if takes.facility_energy_j else []),
        *([_line(takes, "carbon", takes.carbon_kg, _unit("kg"), carbon)] if takes.carbon_kg else []),
        *([_line(takes, "water", takes.water_l, _unit("l"), water)] if takes.energy_j else []),
    ]


def _line(takes: Outcome, name: str, spread: Spread | None, shown: Callable[[float], str], remark: str, key: str = "") -> Line:
    """A quantity with its interval and a remark, or why it is not known."""
    if spread is None:
        return name, "unknown", takes.unknown[key or name]
    return name, f"{takes.bound}{shown(spread.value)}", f"{spread.between(shown)}; {remark}"


def _unit(unit: str) -> Callable[[float], str]:
    def shown(value: float) -> str:
        return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"

    return shown


def _kwh(energy_j: float) -> str:
    return _unit("kWh")(energy_j / KWH)


def _price_said(offer: Offer) -> str:
    price = offer.price
    return f"{price.provider} {price.kind}, {usd(price.usd_per_accelerator_hour)} an accelerator and hour ({price.date})"


def _other_prices(takes: Outcome) -> list[Line]:
    """The cheapest of the other offers, on a line of their own."""
    others = [offer for offer in takes.alternatives if takes.offer is None or offer.price != takes.offer.price]
    if not others:
        return []
    named = [f"{usd(offer.cost_usd.value)} {offer.price.provider} {offer.price.kind}" for offer in others[:NUM_OTHER_PRICES]]
    more = f", {len(others) - NUM_OTHER_PRICES} more with --json" if len(others) > NUM_OTHER_PRICES else ""
    return [("", "", f"or {', '.join(named)}{more}")]


def _parts(said: Prediction) -> Iterator[tuple[str, str, str, str]]:
    step_s = float(said.step_time_s[0])
    for part in PARTS:
        part_s = float(said.parts[part][0])
        if part_s > 0:
            yield PART_NAMES[part], seconds(part_s), f"{100 * part_s / step_s:.1f} %", _bar(part_s / step_s)
    yield "step", seconds(step_s), "100.0 %", ""


def _bar(share: float) -> str:
    """A bar of eighths of a character, or of whole # where the output cannot show those."""
    eighths = round(share * BAR_WIDTH * 8)
    bar = "\u2588" * (eighths // 8) + EIGHTHS[eighths % 8]
    try:
        bar.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#" * round(share * BAR_WIDTH)
    return bar


def _axes(answer: Answer) -> Iterator[tuple[str, str, str, str]]:
    layout, parts = answer.job.layout, answer.prediction.parts
    crossed = tiers_of(layout, answer.job.cluster)
    for axis in AXES:
        over = ranks_of(axis, layout)
        if tiers := spanned(over, answer.job.cluster, crossed):
            ranks = " x ".join(map(str, over.values()))
            yield " x ".join(over), ranks, " + ".join(tiers), seconds(float(parts[f"exposed_{axis}"][0]))
    if layout.ep > 1:
        yield "ep", f"{layout.ep}", "over dp, cp and tp", seconds(float(parts["exposed_ep"][0]))


def _memory(answer: Answer) -> Iterator[tuple[str, ...]]:
    """The first stage, the fullest and the last, each once."""
    every, room_bytes = answer.stages, answer.job.cluster.accelerator.memory_bytes
    fullest = max(every, key=lambda stage: float(stage["peak_bytes"]))
    names: dict[int, list[str]] = {}
    for name, stage in (("first", every[0]), ("fullest", fullest), ("last", every[-1])):
        names.setdefault(stage["stage"], []).append(name)
    for number, named in sorted(names.items()):
        stage = every[number]
        parts = (gib(stage[f"{part}_bytes"]) for part in MEMORY_PARTS)
        full = f"{100 * stage['peak_bytes'] / room_bytes:.0f} %"
        yield f"{number} ({', '.join(named)})", f"{stage['layers']}", *parts, gib(stage["peak_bytes"]), full, stage["peak_at"]


def _evidence(answer: Answer) -> str:
    bounds = answer.prediction.interval
    return f"evidence: compared with {bounds.num_runs} runs ({bounds.kin}); this question lies {DISTANCE[bounds.distance]}"
