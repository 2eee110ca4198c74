"""Times how long the files of a job of 2,048 nodes take: rank map, host file, batch script and manifests. The aim is under 2 s.

python benchmarks/launch.py
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from meshwright.engines.engine import files_of
from meshwright.engines.request import Request
from meshwright.engines.seating import hosts_text, ranks_text, seat
from meshwright.engines.site import Site
from meshwright.job import Job
from meshwright.plan.plan import plan_of

NUM_RACKS, PER_RACK, PER_RACK_INSTALLED = 128, 16, 18
LAYOUT = "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1,order=tp-cp-pp-dp,schedule=interleaved,cp_kind=ring"
AIM_S = 2.0


def main() -> None:
    """Print the seconds of each part, and of all."""
    plan = plan_of(Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b").forecast(LAYOUT))
    site = Site(
        container="image:1", mounts=["claim:/shared"], kubernetes={"topology": "kueue", "queue": "q", "rack_label": "topology/rack"}
    )
    request = Request(plan=plan, site=site, name="large", folder=Path("/shared/jobs/large"), runs=Path("/shared/runs"))
    hosts = [f"r{rack:03}n{node:02}" for rack in range(NUM_RACKS) for node in range(PER_RACK_INSTALLED)]
    racks = {host: host[:4] for host in hosts}
    seconds: dict[str, float] = {}

    def timed(what: str, make: object) -> object:
        started_s = time.perf_counter()
        made = make()  # type: ignore[operator]
        seconds[what] = time.perf_counter() - started_s
        return made

    shape = timed("nodes of the plan", lambda: request.shape)
    assert shape.num_nodes == NUM_RACKS * PER_RACK  # type: ignore[attr-defined]
    seating = timed("seating of 2,304 allocated nodes", lambda: seat(request.shape, hosts, racks))
    timed("host file and rank map", lambda: (hosts_text(request.shape, seating.hosts), ranks_text(request.shape, seating)))  # type: ignore
    timed("Slurm's script", lambda: files_of("slurm", request))
    for kind in ("job", "jobset", "trainjob"):
        other = replace(request, site=site.model_copy(update={"kubernetes": site.kubernetes.model_copy(update={"kind": kind})}))
        timed(f"manifests, {kind}", lambda other=other: files_of("kubernetes", other))
    timed("commands of ssh", lambda: files_of("ssh", replace(request, hosts=seating.hosts)))  # type: ignore[attr-defined]
    for what, took_s in seconds.items():
        print(f"{what:36} {took_s:8.3f} s")
    total_s = sum(seconds.values())
    print(f"{'all':36} {total_s:8.3f} s, {'within' if total_s < AIM_S else 'OVER'} the {AIM_S:g} s that were aimed for")


if __name__ == "__main__":
    main()
