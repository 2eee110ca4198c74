"""Predict one layout: step time and its parts, memory, time to train, cost, energy, carbon and water, with intervals."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli.options import (
    AsJson,
    ClusterName,
    Gpus,
    Ideal,
    ModelName,
    PriceKind,
    ProfileFile,
    Provider,
    RegionName,
    Sets,
    SoftwareName,
    WorkloadName,
)


def predict(
    model: ModelName,
    cluster: ClusterName,
    workload: WorkloadName,
    layout: Annotated[str, typer.Option(metavar="LAYOUT", help="tp=4,cp=2,pp=8,vp=8,mbs=1,...; without dp, dp fills the cluster.")],
    gpus: Gpus = None,
    sets: Sets = None,
    software: SoftwareName = "",
    profile: ProfileFile = "",
    provider: Provider = "",
    price_kind: PriceKind = "",
    region: RegionName = "",
    cooling: Annotated[str, typer.Option(metavar="KIND", help="Cooling of the nodes, air or liquid; default: as the cluster states.")] = "",
    ideal: Ideal = False,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="Price the layout even if it does not fit into memory.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict one layout: step time, memory, time to train, cost, energy.

    Examples:

      meshwright predict llama-3.1-405b azure-gb200-128 mlperf-llama31-405b --layout tp=4,cp=2,pp=8,vp=8,mbs=1

      meshwright predict llama-3.1-8b dgx-h100-superpod mlperf-llama31-8b --gpus 64 --layout tp=2,mbs=1 --json
    """
    from meshwright.cli.show import show
    from meshwright.job import Job
    from meshwright.plan.sizes import check_sizes
    from meshwright.predict.outcome import Terms
    from meshwright.say.forecast import forecast_document

    check_sizes(gpus, None, sets or ())
    job = Job(model, cluster, workload, software, profile=profile, gpus=gpus, changes=sets or ())
    terms = Terms(provider=provider, price_kind=price_kind, region=region, cooling=cooling, ideal=ideal)
    show(forecast_document(job.forecast(layout, terms=terms, ignore_memory=ignore_memory)), as_json=as_json)
