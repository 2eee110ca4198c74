"""A job on a lab whose compute is a declared wait and whose network is real: one replica in each rack, data parallelism across the racks.

Two cores cannot compute for four racks. So each rank waits as long as the forecast has compute, bubble and everything else inside a rack,
which is the same for every number of racks, and then sums its gradients with the other racks by gloo, over the links of the lab.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from meshwright.errors import MeshwrightError
from meshwright.job import Job
from meshwright.lab import ranks
from meshwright.lab.cluster import lab_cluster
from meshwright.lab.description import Lab
from meshwright.layout import Layout
from meshwright.predict.forecast import Forecast
from meshwright.predict.traffic import Step, data_flows
from meshwright.record.pace import Pace

MODEL, WORKLOAD = "llama-2m", "python-stdlib"
BATCH, MICRO_BATCH = 16, 4  # sequences of a replica, and of a micro-batch
OUTERMOST_DP = ("tp", "cp", "pp", "dp")
WARM_STEPS = 2  # connections are made in the first ones
LOOK_S = 0.02
WIDE = 1.2533  # of the standard error of a median of normal values, over that of their mean


def paced_forecast(lab: Lab, *changes: str) -> Forecast:
    """The forecast of the job on all racks of a lab. Its compute is that of one rack alone, however many there are.

    The share of a fabric's rate that collectives reach was fitted on clusters of GPUs. Over the uplinks of a lab they reach all of it.
    """
    alone = lab_cluster(replace(lab, num_racks=1)).accelerator
    cluster = replace(lab_cluster(lab), accelerator=alone)
    layout = Layout(
        tp=lab.num_ranks, pp=lab.num_hosts, dp=lab.num_racks, micro_batch=MICRO_BATCH, zero_stage=0, overlap_dp=False, order=OUTERMOST_DP
    )
    batch = f"workload.global_batch={BATCH * lab.num_racks}"
    job = Job(MODEL, cluster, WORKLOAD, changes=(batch, *changes), profile="none")
    *inside, outermost = job.cluster.tiers
    rate = outermost.bytes_per_s / float(job.software.constants.fabric_efficiency)
    return job.on(replace(job.cluster, tiers=(*inside, replace(outermost, bytes_per_s=rate)))).forecast(layout)


def pace_of(forecast: Forecast, num_steps: int) -> Pace:
    """What the ranks of that forecast do: wait for all that happens inside a rack, and send the gradients of their stage."""
    layout, job = forecast.layout, forecast.job
    sent = []
    for place in range(layout.tp * layout.pp):
        flows = data_flows(Step(job.model, job.workload, layout, stage=place // layout.tp))
        sent.append(tuple(flow.payload_bytes for flow in flows if flow.num_ranks > 1 for _ in range(flow.count)))
    wait_s = forecast.step_s - forecast.parts["exposed_dp"]
    return Pace(num_steps=num_steps, wait_s=wait_s, replica_ranks=layout.tp * layout.pp, payload_bytes=tuple(sent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Measured steps of one stretch of a run."""

    step_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median step."""
        return float(np.median(self.step_s))

    @property
    def error_s(self) -> float:
        """The standard error of it."""
        return WIDE * float(np.std(self.step_s, ddof=1)) / float(np.sqrt(len(self.step_s))) if len(self.step_s) > 1 else float("nan")

    @property
    def halves_differ(self) -> float:
        """How far the medians of both halves differ, as a share: what two runs of the same job may differ by."""
        half = len(self.step_s) // 2
        first, second = (float(np.median(part)) for part in (self.step_s[:half], self.step_s[half:]))
        return abs(second / first - 1.0)


def run_paced(pace: Pace, lab: Lab, folder: Path, name: str, num_cores: int, at_step: tuple[int, Callable[[], Any]] | None = None) -> Steps:
    """Run the job on the first racks of a lab; `at_step` is a step, and what is done to the lab once it is over."""
    folder.mkdir(parents=True, exist_ok=True)
    path, out, log = (folder / f"{name}.{ending}" for ending in ("pace.json", "steps.jsonl", "log"))
    out.unlink(missing_ok=True)
    pace.write(path)
    words = [sys.executable, "-m", "meshwright.train.paced", str(path.absolute()), str(out.absolute())]
    over = Event()
    watcher = Thread(target=_watch, args=(out, at_step, over), daemon=True)
    watcher.start()
    try:
        code = ranks.run(ranks.starts(lab, words, ranks.in_order(lab.num_slots), num_cores), log)
    finally:
        over.set()
        watcher.join()
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise MeshwrightError(f"the job {name} ended with status {code}: {last[-1] if last else ''}", where=str(log))
    return Steps(step_s=tuple(json.loads(line)["step_s"] for line in out.read_text(encoding="utf-8").splitlines()))


def _watch(out: Path, at_step: tuple[int, Callable[[], Any]] | None, over: Event) -> None:
    """Wait for a step, and act."""
    while at_step is not None and not over.wait(LOOK_S):
        if out.exists() and out.read_bytes().count(b"\n") >= at_step[0]:
            at_step[1]()
            return


def after(steps: Steps, first: int, last: int | None = None) -> Steps:
    """The steps after number `first`, up to number `last`."""
    return Steps(step_s=steps.step_s[first:last])
