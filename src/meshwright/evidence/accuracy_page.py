"""`docs/accuracy.md`: the figures of `accuracy.py` as a page, with a scatter plot; every number on it is computed."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from meshwright.evidence import accuracy
from meshwright.evidence.accuracy import Assumption, Energy, Evidence, Figure
from meshwright.evidence.campaigns import campaigns
from meshwright.evidence.classes import EFFECTS_FITTED
from meshwright.evidence.experts import Choice, expert_choices
from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.memory import logged_peaks, memory_evidence
from meshwright.evidence.mixtures import EXPERTS_FITTED
from meshwright.evidence.validate import Checked, Summary, family_name, grouped, summary
from meshwright.plan.noise import difference_errors, plan_noise
from meshwright.predict.practice import MLPERF, class_of
from meshwright.predict.software import FITTED, Fitted, fitted_values
from meshwright.predict.uncertainty import kind_of
from meshwright.units import GIB, KILO

PLOT = "predicted-against-measured.svg"
SERIES = {  # colour-blind safe (Okabe and Ito)
    "GPT-3 175B": "#0072B2",
    "Llama 3.1 405B": "#D55E00",
    "Llama 3.1 8B": "#009E73",
    "Llama 2 70B LoRA": "#CC79A7",
    "dense models, published tables": "#56B4E9",
    "mixtures of experts": "#E69F00",
    "chips of other vendors": "#999999",
}
SERIES_OF_BENCHMARK = {
    "gpt3": "GPT-3 175B",
    "llama31_405b": "Llama 3.1 405B",
    "llama31_8b": "Llama 3.1 8B",
    "llama2_70b_lora": "Llama 2 70B LoRA",
}
# Why the error of a row is large, if known: round, accelerator, benchmark, precision ("" for any), sign of the error -> reason.
REASONS: Mapping[tuple[str, str, str, str, int], str] = {
    ("v6.0", "gb300", "llama31_405b", "", 1): "copied by hand, and no wall clock confirms it; its release factor is the record's too",
    ("", "gb300", "", "fp8-current", 1): "GB300 in fp8 is faster than predicted: its higher power cap may gain more than the model allows",
    ("", "gb300", "", "fp8", 1): "GB300 in fp8 is faster than predicted: its higher power cap may gain more than the model allows",
    ("v5.1", "h100", "llama31_8b", "fp8", -1): "hashed Ethernet without CUDA graphs: the only 8B row of its kind",
}
STRAINED = 1.5  # distance from the expected value, in spreads
Cells = Iterable[Sequence[object]]


def write_page(path: Path, date: str, done: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Write the page and, in a folder of its name beside it, its plot; return both paths."""
    plot = path.with_suffix("") / PLOT
    plot.parent.mkdir(parents=True, exist_ok=True)
    done("plot")
    scatter(plot, accuracy.evidence())
    path.write_text(page(date, f"{plot.parent.name}/{plot.name}", accuracy.sensitivity(done=done)), encoding="utf-8")
    return [path, plot]


def page(date: str, plot: str, assumptions: Sequence[Assumption]) -> str:
    """The whole page."""
    rows, metered = accuracy.evidence(), accuracy.energy()
    choices = expert_choices([row.run for row in (*rows.large(), *rows.small())])
    sections = [
        _opening(date, plot, rows),
        headline_section(accuracy.headline()),
        _constants_section(),
        _families_section(rows),
        _left_out_section(),
        _interval_section(rows),
        _tables_section(rows),
        _adapters_section(rows),
        _unfitted_section(rows),
        _campaigns_section(),
        _memory_and_energy_section(metered, rows),
        _peers_section(),
        _experts_section(choices),
        _assumptions_section(assumptions, summary(rows.large()).mape_pct),
        _short_section(rows, choices),
        _skipped_section(rows),
    ]
    return "\n\n".join(sections) + "\n"


def _opening(date: str, plot: str, rows: Evidence) -> str:
    num_rows = len(rows.measured) + len(rows.published) + len(rows.unfitted)
    return f"""# How accurate the predictions are

Written by `meshwright accuracy` on {date}, with Python {platform.python_version()} on {_machine()}; do not edit.
{num_rows} measured runs, all on other people's machines, are predicted with the constants fitted on {fitted_values().date}. Errors are
errors of the step time; an error is positive if the predicted step is too long. `meshwright validate` prints them row by row.

![Predicted against measured step time; the band is 10 % to either side]({plot})"""


def _machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()})"


def headline_section(figures: Sequence[Figure]) -> str:
    """Each target and its result."""
    cells = [(figure.name, figure.asked, figure.reached_words, _verdict(figure)) for figure in figures]
    return "## Targets and results\n\n" + _table(("", "target", "result", ""), cells, right=(2,))


def _verdict(figure: Figure) -> str:
    if figure.asked == "reported":
        return ""
    return "yes" if figure.is_met else "**no**"


def _constants_section() -> str:
    values = fitted_values()
    joint = [_constant(name, _fitted_value(name), one) for name, one in FITTED.items()]
    later = [_constant(f"{name}, {key}", _effect(name, key), one) for (name, key), one in EFFECTS_FITTED.items()]
    later += [_constant(f"experts, {name}", getattr(values.experts, name), one) for name, one in EXPERTS_FITTED.items()]
    columns = ("constant", "value", "unit", "expected", "bounds", "meaning")
    return f"""## Fitted constants

{len(FITTED)} constants are fitted together on {values.fitted_on}. `meshwright fit` computes them. No constant belongs to a single row or
system.

{_table(columns, joint, right=(1,))}

After that, {len(EFFECTS_FITTED)} effects of classes of software and of chips, and {len(EXPERTS_FITTED)} constants of mixtures
of experts are fitted.

{_table(columns, later, right=(1,))}"""


def _constant(name: str, value: float, one: Fitted) -> tuple[str, ...]:
    return name, f"{value:.4g}", one.unit, f"{one.expected:g} +- {one.spread:g}", f"{one.low:g} to {one.high:g}", one.meaning


def _effect(name: str, key: str) -> float:
    values = fitted_values()
    return float(getattr((values.classes.get(name) or values.further[name]), key))


def _fitted_value(name: str) -> float:
    values, release = fitted_values(), name.removeprefix("release ")
    return float(values.releases[release] if release in values.releases else getattr(values.constants, name))


def _families_section(rows: Evidence) -> str:
    parts = [
        "## By benchmark and family",
        "A family is an accelerator, a precision and a round. The tables contain runs on NVIDIA GPUs whose layout is known with high "
        "confidence, without the run on Oracle's 3,072 H100, which became 16 % slower while it ran.",
    ]
    for title, chosen in (("GPT-3 and Llama 3.1 405B", rows.large()), ("Llama 3.1 8B", rows.small())):
        parts.append(f"### {title}\n\n" + _summaries({**grouped(chosen, family_name), "**all**": chosen}, "family"))
    off = sorted(rows.joint(), key=lambda row: -abs(row.error_pct))[:10]
    cells = [(_name(row), f"{row.run.num_accelerators:,}", f"{row.error_pct:+.1f}", reason(row)) for row in off]
    columns = ("run", "accelerators", "error, %", "known reason")
    parts.append("### The ten rows with the largest errors\n\n" + _table(columns, cells, right=(1, 2)))
    return "\n\n".join(parts)


def reason(row: Checked) -> str:
    """Why the error of a row is large, if known."""
    run, sign = row.run, 1 if row.error_pct > 0 else -1
    values = (run.round, run.accelerator, run.benchmark, run.workload.precision, sign)
    for wanted, reason in REASONS.items():
        if all(want in ("", value) for want, value in zip(wanted, values, strict=True)):
            return reason
    return ""


def _left_out_section() -> str:
    entries = accuracy.left_out("family_out", "large", "small")
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(" ".join(entry["family"]), []).append(entry)
    named: dict[str, Sequence[Mapping[str, Any]]] = {**dict(sorted(groups.items())), "**all**": entries}
    cells = [(name, *_numbers(accuracy.left_out_summary(group))) for name, group in named.items()]
    rows_out = accuracy.left_out_summary(accuracy.left_out("row", "large", "small"))
    return f"""## A machine without measurements

All rows of one family are left out. The constants are fitted on the other families, and the family is predicted from its data sheet and
the nearest release that remains. The interval is also computed without that family. If single rows are left out instead,
the mean error is {rows_out.mape_pct:.2f} % and the worst {rows_out.worst_pct:+.1f} %.

{_table(("family", *_COLUMNS), cells, right=range(1, 6))}"""


def _interval_section(rows: Evidence) -> str:
    kinds = ("large", "small"), ("adapters",)
    left_out, adapters_out = (accuracy.left_out_summary(accuracy.left_out("row", *kind)) for kind in kinds)
    family_out, adapters_family = (accuracy.left_out_summary(accuracy.left_out("family_out", *kind)) for kind in kinds)
    everything = [*rows.measured, *rows.published, *rows.unfitted]
    groups = grouped(everything, lambda row: f"{row.interval.distance}: {_sort(row)}")
    cells = [
        (name, len(group), f"{_width(group, 'low'):+.0f} to {_width(group, 'high'):+.0f}", f"{summary(group).coverage_pct:.0f}")
        for name, group in {**groups, "**all**": everything}.items()
    ]
    return f"""## Intervals

The interval of a prediction comes from the errors on the nine or more closest runs, each predicted by a fit without it. The interval is
wide enough on either side to contain four of five of these errors; `measured`, `near` and `far` say how close the runs are. Fitted rows are
inside their interval in more than 80 of 100 cases, because the interval is made for runs that were not in the fit. The table gives the
median interval of each class, in per cent of the prediction. If rows are left out one by one, GPT-3, 405B and 8B rows are
inside in {left_out.coverage_pct:.0f} of 100 cases, and LoRA rows in {adapters_out.coverage_pct:.0f};
if whole families are left out, in {family_out.coverage_pct:.0f} and {adapters_family.coverage_pct:.0f}.

{_table(("class", "rows", "interval, %", "inside, %"), cells, right=range(1, 4))}"""


def _sort(row: Checked) -> str:
    names = {"large": "large dense models", "small": "small dense models", "experts": "mixtures of experts", "adapters": "adapters"}
    source = "MLPerf" if row.run.release.startswith("v") else ("containers" if row.run.release.startswith("nemo") else "other software")
    return f"{names[kind_of(row.run.model, row.run.workload)]}, {source}, {row.run.vendor}"


def _width(group: Sequence[Checked], side: str) -> float:
    return 100 * (float(np.median([getattr(row.interval, side) for row in group])) - 1)


def _tables_section(rows: Evidence) -> str:
    dense, experts = rows.dense_tables(), rows.expert_tables()
    return f"""## Other people's tables

These are the tables that NeMo and Megatron-Bridge publish, by container release. One factor per release is fitted on the dense Llama rows.
The energy of an fp8 FLOP on Blackwell Ultra is fitted on those of GB300, and {len(EXPERTS_FITTED)} constants are fitted on mixtures of
experts.

### Dense Llama models

{_summaries({**grouped(dense, lambda row: row.run.release), "**all**": dense}, "release")}

### Mixtures of experts

The tables do not say how a container ran experts. This information comes from the vendor's public recipes
(`evidence/expert_recipes.csv`).

{_summaries({**grouped(experts, lambda row: row.run.model.name), "**all**": experts}, "model")}"""


def _adapters_section(rows: Evidence) -> str:
    adapters = rows.adapters()
    return f"""## Fine-tuning: Llama 2 70B LoRA

One factor per generation and round is fitted on these rows.

{_summaries({**grouped(adapters, family_name), "**all**": adapters}, "family")}"""


def _unfitted_section(rows: Evidence) -> str:
    others, software = rows.other_vendors(), list(rows.unfitted)
    return f"""## Other chips and other software

Chips of other vendors are priced with the release factor of NVIDIA's software in the same round, and with one more factor per generation
of chips (`evidence.classes`).

{_summaries({**grouped(others, lambda row: f"{row.run.accelerator}, {row.run.benchmark}"), "**all**": others}, "accelerator")}

Software that was not tuned for a record has four fitted effects per class (torchtitan has five). They are fitted on the rows of this
section.

### With models or releases left out

Each model (each row, for mixtures of experts) is left out in turn, then each release (each container), and predicted by a fit on the
others.

{_left_out_classes()}

### Software and chips treated as unknown

Each class of software, and each generation of chips, is left out completely and predicted like unknown software: by the mean of the other
classes. The interval comes from the errors of all other groups.

{_unknown_table()}

### By release

{_summaries({**grouped(software, lambda row: f"{row.run.release}, {row.run.accelerator}"), "**all**": software}, "software")}"""


def _unknown_table() -> str:
    cells = [
        (name, one.num_runs, f"{one.mape_pct:.1f}", f"{one.bias_pct:+.1f}", f"+- {reach_pct:.0f}", f"{one.coverage_pct:.0f}")
        for name, (one, reach_pct) in sorted(accuracy.unknown_left_out().items())
    ]
    return _table(("software or chip", "rows", "mean error, %", "bias, %", "interval, %", "inside, %"), cells, right=range(1, 6))


def _campaigns_section() -> str:
    found = campaigns()
    cells = [
        (
            f"{one.model}, {one.accelerator}",
            f"{one.stated_h:,.0f}",
            f"{one.predicted_h:,.0f}",
            f"{one.error_pct:+.0f}",
            f"{one.interval_h[0]:,.0f} to {one.interval_h[1]:,.0f}",
            "; ".join(one.assumptions),
        )
        for one in found
    ]
    mean_pct = float(np.mean([abs(one.error_pct) for one in found]))
    columns = ("model", "stated, hours", "predicted, hours", "error, %", "80 % interval, hours", "assumed")
    return f"""## Whole campaigns

Public model cards state the accelerator-hours of pre-training. Layouts and software are not published, so the planner's best layout is
used, with the software that meshwright assumes if none is named. The mean error is {mean_pct:.0f} %;
{sum(one.is_covered for one in found)} of {len(found)} are inside the interval.

{_table(columns, cells, right=(1, 2, 3))}"""


def _left_out_classes() -> str:
    by_row, by_family = accuracy.other_left_out("row"), accuracy.other_left_out("family_out")
    cells = []
    for name, entries in by_row.items():
        one, other = accuracy.left_out_summary(entries), accuracy.left_out_summary(by_family[name])
        figures = (
            f"{one.mape_pct:.1f}",
            f"{one.bias_pct:+.1f}",
            f"{one.coverage_pct:.0f}",
            f"{other.mape_pct:.1f}",
            f"{other.coverage_pct:.0f}",
        )
        cells.append((name, len(entries), *figures))
    columns = ("software or chip", "rows", "models out: mean, %", "bias, %", "inside, %", "releases out: mean, %", "inside, %")
    return _table(columns, cells, right=range(1, 7))


def _memory_and_energy_section(metered: Energy, rows: Evidence) -> str:
    memory, logged = memory_evidence(), logged_peaks([row.run for row in rows.measured])
    peaks = [
        (row.name, f"{row.measured_bytes / GIB:.1f}", f"{row.predicted_bytes / GIB:.1f}", f"{row.error_pct:+.1f}") for row in logged.rows
    ]
    cells = [
        (" ".join(run.run_name), run.meter, f"{run.num_accelerators:,}", f"{run.node_power_w / KILO:.2f}", f"{error:+.1f}")
        for run, error in zip(metered.runs, metered.held_out_pct, strict=True)
    ]
    return f"""## Memory and energy

Peak memory of {len(memory.rows)} cut-down models on eight B200 (SimuMax): mean error {memory.mean_abs_error_pct:.2f} %,
bias {memory.bias_pct:+.2f} %, worst {memory.worst_pct:+.2f} %.
No constant is fitted on these rows, but they were used to decide which tensors the software allocates.

{len(logged.rows)} MLPerf submissions logged their peak memory. The process that writes the log runs the first stage, so the logged value is
compared with the prediction for that stage: mean error {logged.mean_abs_error_pct:.1f} %, bias {logged.bias_pct:+.1f} %,
worst {logged.worst_pct:+.1f} %. If a row does not say what is recomputed, the least recompute is assumed with which the layout fits into
the memory that the driver reports.

{_table(("run", "logged, GiB", "predicted, GiB", "error, %"), peaks, right=(1, 2, 3))}

The power of a node in each metered run is predicted with constants fitted on the other runs. The energy of GPT-3 on 512 H100, with the
duration of the run predicted too, is {metered.gpt3_kwh:.1f} kWh; the meter showed {accuracy.METERED_KWH:g} kWh.

{_table(("run", "meter", "accelerators", "metered, kW per node", "error, %"), cells, right=(2, 3, 4))}"""


def _peers_section() -> str:
    peers = accuracy.peers()
    found = [(_machine_name(machine), accuracy.on_peer_run(machine)) for machine in peers["runs"]]
    held_out = {entry["name"]: entry["error_pct"] for entry in accuracy.left_out("row", "large")}
    ours = {name: [row.error_pct for row in rows] for name, rows in found if rows}
    left_out = {name: [held_out[row.run.name] for row in rows] for name, rows in found if rows}
    lines = [
        _our_line("meshwright", ours, f"fitted on these and other rows; {len(ours)} of the {len(found)} machines"),
        _our_line("meshwright, row left out", left_out, "fitted on the others"),
        *(_peer_line(planner) for planner in peers["planners"]),
    ]
    cells = [(name, _name(row), f"{row.error_pct:+.1f}", f"{held_out[row.run.name]:+.1f}") for name, rows in found for row in rows]
    claims = "; ".join(f"{claim['name']} {claim['text']}" for claim in peers["claims"])
    return f"""## Comparison with other planners

The comparison uses {len(found)} runs ({peers["source"]}, {peers["date"]}). These are not in the files of the package, so our mean does not
include them: {"; ".join(name for name, rows in found if not rows)}.
If the round of a run is not stated, the table shows all our rows of that machine, and they count together as one run. The other planners
were not fitted on any of these rows.

{_table(("planner", "mean error, %", "worst, %", ""), lines, right=(1, 2))}

{_table(("run", "our row", "error, %", "row left out, %"), cells, right=(2, 3))}

Published claims without code: {claims}."""


def _our_line(name: str, errors: Mapping[str, Sequence[float]], note: str) -> tuple[str, ...]:
    mean = float(np.mean([np.mean(np.abs(machine)) for machine in errors.values()]))
    return name, f"{mean:.1f}", f"{max((one for machine in errors.values() for one in machine), key=abs):+.1f}", note


def _peer_line(planner: Mapping[str, Any]) -> tuple[str, ...]:
    note = "; ".join(text for text in (planner["note"], f"cannot express {planner['cannot_express']}") if text)
    return f"{planner['name']} {planner['version']}", f"{planner['mape_pct']:.1f}", f"{planner['worst_pct']:+.0f}", note


def _machine_name(machine: Mapping[str, Any]) -> str:
    benchmark = SERIES_OF_BENCHMARK[machine["benchmark"]]
    return f"{benchmark} on {machine['num_accelerators']:,} {machine['accelerator'].upper()}"


def _experts_section(choices: Sequence[Choice]) -> str:
    cells = [
        (
            f"{one.run.round} {one.run.submitter}, {one.run.benchmark}, {one.run.num_accelerators:,} {one.run.accelerator}",
            one.run.layout.degrees,
            one.best.degrees,
            f"{one.gap_pct:.1f}",
            f"{one.unhidden_gap_pct:.1f}",
            one.difference,
        )
        for one in choices
    ]
    gaps, unhidden = [one.gap_pct for one in choices], [one.unhidden_gap_pct for one in choices]
    constants = fitted_values().constants
    host_ms, hidden = 1e3 * float(constants.eager_chunk_s), float(constants.tp_hidden)
    near, near_unhidden = (sum(gap <= 8 for gap in found) for found in (gaps, unhidden))
    is_near = near >= 0.9 * len(choices)
    return f"""## Experts as a check

The planner searches a layout for every row of GPT-3, 405B and 8B, with the row's accelerators, batch, sequence and precision, for the
stack of the engineers (`meshwright plan --stack megatron`; no degrees given). The gap compares the predicted step times of two layouts: it
says how much slower the layout of the engineers is than the layout that the planner puts first. Layouts within {100 * plan_noise():.1f} %
of the fastest count as equal, because four of five predicted differences between two runs of one model, chip, precision and round are wrong
by up to as much ({len(difference_errors())} pairs). Among equal layouts the planner puts the one with more memory to spare first.

|  | target | result |  | with no tensor traffic hidden in the planner's layout |
| --- | --- | ---: | --- | ---: |
| median gap | at most 2 % | {median(gaps):.1f} % | {"yes" if median(gaps) <= 2 else "no"} | {median(unhidden):.1f} % |
| rows within 8 % | nine of ten | {near} of {len(choices)} | {"yes" if is_near else "no"} | {near_unhidden} of {len(choices)} |

Reasons for the gaps above 8 %:

- **GPT-3 in v3.0 and v3.1 with 12 chunks and micro-batch 1.** The data decide this. {_chunk_words([one.run for one in choices])}
  Without CUDA graphs every pipeline operation costs {host_ms:.1f} ms of the host's time, and its message is not
  hidden. NVIDIA's own runs changed to fewer chunks and larger micro-batches in v4.0, as the planner would have done. So these gaps are
  real.
- **8B with one sequence for several accelerators** (512 GB300, 256 B200). Tensor parallelism instead of context parallelism would divide
  the weights and gradients, and there is no second micro-batch to hide the gradients. No row has products this small with so many tensor
  ranks, so the data do not decide this. Do not trust the planner here without a measurement.
- **Hidden tensor traffic.** One share ({100 * hidden:.0f} %) is fitted for all tensor degrees and micro-batches. In these stacks the
  overlap is tuned by hand, with one file per shape. The last column but one shows the other extreme: the gap if the planner's layout hides
  no tensor traffic. The truth is between the two.

Attempts to lower the median that did not help are in the [journal](journal.md).

{_table(("run", "chosen", "best found", "gap, %", "nothing hidden, %", "most of it in"), cells, right=(3, 4))}"""


def _chunk_words(runs: Sequence[MeasuredRun]) -> str:
    """What two rows say that differ in their number of chunks: same round, chips, degrees and micro-batch."""
    alike: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for run in runs:
        layout = run.layout
        if layout.pp > 1 and not layout.cuda_graphs:
            key = (run.family, run.benchmark, run.num_accelerators, layout.tp, layout.cp, layout.pp, layout.dp, layout.micro_batch)
            alike.setdefault(key, []).append(run)
    few, many = next(
        sorted(found, key=lambda run: run.layout.vp) for found in alike.values() if len({run.layout.vp for run in found}) == len(found) == 2
    )
    more = _micro_batch_s(many) / _micro_batch_s(few) - 1
    return (
        f"Two rows of {few.round} on {few.num_accelerators:,} {few.accelerator} differ in the number of chunks: {many.submitter} ran "
        f"{many.layout.vp}, {few.submitter} {few.layout.vp}. Per micro-batch, {many.layout.vp} chunks take {100 * more:.0f} % longer."
    )


def _micro_batch_s(run: MeasuredRun) -> float:
    """Measured seconds of one micro-batch in a pipeline: of the step, by the micro-batches that it has time for."""
    layout = run.layout
    num_micro_batches = run.workload.global_batch // (layout.dp * layout.micro_batch)
    return run.measured_s / (num_micro_batches + (layout.pp - 1) / layout.vp)


def _assumptions_section(assumptions: Sequence[Assumption], mape_pct: float) -> str:
    cells = [
        (f"`{one.name}`", _value(one.value), f"{one.less_pct - mape_pct:+.2f}", f"{one.more_pct - mape_pct:+.2f}", one.reason)
        for one in assumptions
    ]
    return f"""## Assumptions

These numbers were chosen for a reason and are not fitted. The measured rows were known when they were chosen. The columns show by how
many points the mean error of GPT-3 and 405B ({mape_pct:.2f} %) changes if the number is a fifth smaller or larger and everything is fitted
again. Shares are kept below 1.

{_table(("assumption", "value", "-20 %", "+20 %", "reason"), cells, right=(2, 3))}"""


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {number:g}" for key, number in value.items())
    return ", ".join(f"{number:g}" for number in value) if isinstance(value, tuple) else f"{value:g}"


def _short_section(rows: Evidence, choices: Sequence[Choice]) -> str:
    even = accuracy.even_weights()
    others, experts, unfitted = summary(rows.other_vendors()), summary(rows.expert_tables()), summary(rows.unfitted)
    gap_pct = median([one.gap_pct for one in choices])
    short = [figure.name for figure in accuracy.headline() if not figure.is_met]
    missed = "; ".join([*short, *([f"experts' layouts, median gap at most 2 % ({gap_pct:.1f} %)"] if gap_pct > 2 else [])])
    off, worst = (max(found, key=lambda row: abs(row.error_pct)) for found in (rows.adapters(), rows.unfitted))
    families = grouped(rows.adapters(), family_name)
    loosest = max(families, key=lambda name: summary(families[name]).mape_pct)
    entries = accuracy.left_out("family_out", "large", "small")
    releases = fitted_values().releases
    rounds = [factor for name, factor in releases.items() if class_of(name) == MLPERF]
    spread_pct = 100 * float(np.expm1(max(rounds) - min(rounds)))
    return f"""## Weak points

- {"Missed targets: " + missed if missed else "No target is missed"}.
- The record machine is within 2 % because rows that no wall clock confirms get half the weight (`evidence.fit.UNCONFIRMED`). This rule was
  made after the two rows of round v6.0 were found to contradict each other. With equal weights, the predicted step of the record machine is
  {even.record_pct:+.1f} % off, and the mean and worst errors of GPT-3 and 405B are {even.large_pct:.2f} % and {even.worst_pct:+.1f} %.
- Mixtures of experts: {experts.mape_pct:.0f} % off on average, worst {experts.worst_pct:+.0f} %.
  Experts are assumed to be evenly loaded, moving activations to the host is assumed to hide behind other work, and the version of the
  recipe that a row was run with is inferred.
- Chips of other vendors: {others.mape_pct:.0f} % off on average, worst {others.worst_pct:+.0f} %.
  They have one factor per generation; one measured run and `meshwright calibrate` give them a software profile of their own.
- Other software: {unfitted.mape_pct:.0f} % off on average, worst {unfitted.worst_pct:+.0f} %.
  The worst row is of {worst.run.release} on {worst.run.accelerator}. For a release without any known run, expect errors as large as those
  in the last columns of the table "With models or releases left out".
- LoRA: worst {off.error_pct:+.0f} % ({_name(off)});
  the family with the largest error is {loosest}, {summary(families[loosest]).mape_pct:.0f} % on average.
- A release without measurements: families that are left out are off by {accuracy.left_out_summary(entries).mape_pct:.1f} % on average, and
  {_shared_pct(entries):.1f} points of this error are common to all rows of a family. The software of the rounds differs in speed by up to
  {spread_pct:.0f} %, and no data sheet contains this.
- Fitted constants that are more than {STRAINED:g} spreads away from their expected values: {_strained()}. They probably also account for
  an effect that is not priced, so they are less reliable than the others far from the measured rows."""


def _strained() -> str:
    """The constants far from their expected values, with both."""
    found = {name: (_fitted_value(name), one) for name, one in FITTED.items() if not name.startswith("release ")}
    far = [
        f"`{name}` ({value:.3g} {one.unit}, expected {one.expected:g} +- {one.spread:g})"
        for name, (value, one) in found.items()
        if abs(value - one.expected) > STRAINED * one.spread
    ]
    return ", ".join(far) or "none"


def _shared_pct(entries: Sequence[Mapping[str, Any]]) -> float:
    """Mean size of the biases of families, each weighted by its number of rows."""
    families: dict[tuple[str, ...], list[float]] = {}
    for entry in entries:
        families.setdefault(tuple(entry["family"]), []).append(entry["error_pct"])
    return sum(abs(sum(errors)) for errors in families.values()) / len(entries)


def _skipped_section(rows: Evidence) -> str:
    cells = [(name, reason, count) for name, runs in rows.files.items() for reason, count in runs.num_skipped_by_reason().items()]
    return "## Rows that were not predicted\n\n" + _table(("runs", "reason", "rows"), cells, right=(2,))


_COLUMNS = ("rows", "mean error, %", "bias, %", "worst, %", "inside interval, %")


def _summaries(groups: Mapping[str, Sequence[Checked]], what: str) -> str:
    return _table((what, *_COLUMNS), [(name, *_numbers(summary(group))) for name, group in groups.items()], right=range(1, 6))


def _numbers(one: Summary) -> tuple[object, ...]:
    return one.num_runs, f"{one.mape_pct:.2f}", f"{one.bias_pct:+.2f}", f"{one.worst_pct:+.1f}", f"{one.coverage_pct:.0f}"


def _table(columns: Sequence[str], rows: Cells, right: Iterable[int] = ()) -> str:
    flush = set(right)
    rule = ["---:" if i in flush else "---" for i in range(len(columns))]
    lines = [columns, rule, *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _name(row: Checked) -> str:
    benchmark = SERIES_OF_BENCHMARK.get(row.run.benchmark, row.run.benchmark)
    return f"{row.run.round} {row.run.submitter}, {benchmark}, {' '.join(row.run.family[:2])}"


def scatter(path: Path, rows: Evidence) -> None:
    """Predicted against measured step time, both logarithmic, one colour per benchmark; SVG or PNG, depending on the path."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    settings: Any = {"svg.hashsalt": "meshwright", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(7.2, 6.4), layout="constrained")
        checked = [*rows.measured, *rows.published]
        _band(axes, checked)
        for order, (name, colour) in enumerate(SERIES.items()):
            own = [row for row in checked if series(row) == name]
            style: Any = {"s": 26, "color": colour, "alpha": 0.75, "linewidths": 0.4, "edgecolors": "white", "zorder": 20 - order}
            axes.scatter([row.run.measured_s for row in own], [row.predicted_s for row in own], label=f"{name} ({len(own)})", **style)
        _label(axes)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
        pyplot.close(figure)


def series(row: Checked) -> str:
    """The series of a row, which has one colour."""
    if not row.run.is_nvidia:
        return "chips of other vendors"
    if row.run.model.experts:
        return "mixtures of experts"
    return SERIES_OF_BENCHMARK.get(row.run.benchmark, "dense models, published tables")


def _band(axes: Any, checked: Sequence[Checked]) -> None:
    """The line where both agree, and 10 % to either side."""
    times = [time_s for row in checked for time_s in (row.run.measured_s, row.predicted_s)]
    ends = np.array([min(times) / 1.3, max(times) * 1.3])
    axes.fill_between(ends, ends * 0.9, ends * 1.1, color="#000000", alpha=0.08, linewidth=0, label="10 % to either side", zorder=1)
    axes.plot(ends, ends, color="#444444", linewidth=0.8, zorder=2)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")


def _label(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set(xlabel="measured step time, s", ylabel="predicted step time, s")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
