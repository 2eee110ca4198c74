"""What `meshwright plan` and `meshwright sweep` were asked: names and options -> the question the planner answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshwright.cli.profile_choice import with_profile
from meshwright.describe.cluster import Cluster
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import InputError
from meshwright.layout import Layout, read_choices
from meshwright.plan.candidates import Fixed
from meshwright.plan.make import Terms
from meshwright.plan.objective import Aim, read_duration
from meshwright.plan.sizes import Ask
from meshwright.plan.whatif import changed
from meshwright.predict.footprint import reserve_for
from meshwright.predict.software import software
from meshwright.units import GIB, gib

MOST_SEQUENCES = 10**7  # a step; more is a slip of the finger


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options, as they were given."""

    layout: str = ""
    sets: tuple[str, ...] = ()
    gpus: int | None = None
    max_gpus: int | None = None
    batch: int | None = None
    seq: int | None = None
    precision: str = ""
    software: str = ""
    profile: str = ""
    objective: str = "time"
    deadline: str = ""
    budget_usd: float | None = None
    headroom_gib: float = 0.0
    provider: str = ""
    price_kind: str = ""
    region: str = ""
    pareto: bool = False
    keep: int = 5


def asked(model: str, cluster: str, workload: str, wishes: Wishes) -> Ask:
    """The question, with everything the options change but the number of accelerators (`plan_answer` decides on that)."""
    if wishes.gpus is not None and (wishes.max_gpus is not None or any(text.partition("=")[0].strip() == "gpus" for text in wishes.sets)):
        raise InputError("the number of accelerators is given twice", where="--gpus", fix="keep one of --gpus, --max-gpus and --set gpus=")
    task = load_workload(workload)
    task = replace(
        task,
        global_batch=task.global_batch if wishes.batch is None else wishes.batch,
        seq_len=task.seq_len if wishes.seq is None else wishes.seq,
        precision=wishes.precision or task.precision,
    )
    machine_described = load_cluster(cluster)
    machine, task = changed(machine_described, task, wishes.sets)
    if task.global_batch > MOST_SEQUENCES:
        raise InputError(
            f"a batch of {task.global_batch:,} sequences is more than the {MOST_SEQUENCES:,} a step may have",
            where="--batch" if wishes.batch else f"workload {task.name}: global_batch",
            fix="give the sequences of one step, not of the run",
        )
    machine.accelerator.peak_flops_per_s(task.precision)  # refuses a precision that the chip lacks
    reserve_bytes = _reserve_bytes(wishes.headroom_gib, machine)
    described = load_model(model)
    return Ask(
        model=described,
        cluster=machine,
        workload=task,
        stack=with_profile(software(wishes.software), described, machine, task, wishes.profile),
        fixed=Fixed(_fixed(wishes.layout)),
        terms=Terms(provider=wishes.provider, price_kind=wishes.price_kind, region=wishes.region),
        aim=Aim(
            objective=wishes.objective,
            deadline_s=read_duration(wishes.deadline) if wishes.deadline else None,
            budget_usd=wishes.budget_usd,
        ),
        keep=wishes.keep,
        reserve_bytes=reserve_bytes,
        described=machine_described,
    )


def _reserve_bytes(headroom_gib: float, machine: Cluster) -> float:
    """Bytes to keep back on every accelerator."""
    chip = machine.accelerator
    if headroom_gib * GIB >= chip.memory_bytes:
        raise InputError(f"a headroom of {headroom_gib:g} GiB leaves nothing of {chip.name}'s {gib(chip.memory_bytes)}", where="--headroom")
    return reserve_for(machine.accelerator) + headroom_gib * GIB


def without_sets(model: str, cluster: str, workload: str, wishes: Wishes) -> Ask:
    """The same question of the machine and the job as they are described."""
    return asked(model, cluster, workload, replace(wishes, sets=()))


def _fixed(text: str) -> dict[str, Any]:
    """What the user fixed, each value checked for itself: that they divide each other is the search's to know."""
    values = read_choices(text)
    beside = {"vp": {"pp": 2}, "ep": {"dp": values.get("ep", 1)}}  # a layout with these alone must have something to stand on
    for key, value in values.items():
        Layout(**{**beside.get(key, {}), key: value})
    return values
