"""Price one layout: step time and its parts, memory, time to train, cost, energy, carbon and water, with error bars."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.describe.hardware import FORMAT_OF_RECIPE


def predict(
    model: Annotated[str, typer.Argument(help="A catalogue name, a TOML file or a config.json.")],
    cluster: Annotated[str, typer.Argument(help="A catalogue name or a TOML file.")],
    workload: Annotated[str, typer.Argument(help="A catalogue name or a TOML file.")],
    layout: Annotated[str, typer.Option(help="tp=4,cp=2,pp=8,vp=8,mbs=1,...; dp fills the machine where it is left out.")],
    gpus: Annotated[int | None, typer.Option(help="Accelerators in use, where not all of the cluster.", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences a step, instead of the workload's.", show_default=False)] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens a sequence, instead of the workload's.", show_default=False)] = None,
    precision: Annotated[str, typer.Option(help=f"{', '.join(FORMAT_OF_RECIPE)}; else the workload's.")] = "",
    software: Annotated[str, typer.Option(help="A release (v5.1, nemo-26.04) or a profile of calibrate; else the newest.")] = "",
    profile: Annotated[str, typer.Option(metavar="FILE", help="What `measure` wrote; none: do not use this machine's own.")] = "",
    provider: Annotated[str, typer.Option(help="Whose prices and halls; else the cluster's.")] = "",
    price_kind: Annotated[str, typer.Option(help="on-demand, spot or reserved.")] = "",
    region: Annotated[str, typer.Option(help="Whose grid; else the cluster's.")] = "",
    cooling: Annotated[str, typer.Option(help="air or liquid: take hosts and fans from metered nodes.")] = "",
    exact: Annotated[bool, typer.Option("--exact", help="Time every operation of the schedule, however many there are.")] = False,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="Price a layout that does not fit, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Price one layout: step time, memory, time to train, cost, energy."""
    from meshwright.cli import predict_answer
    from meshwright.predict.outcome import outcome

    job = predict_answer.job(model, cluster, workload, layout, gpus=gpus, batch=batch, seq=seq, precision=precision)
    prediction = predict_answer.priced(job, software, ignore_memory=ignore_memory, profile=profile)
    takes = outcome(prediction, job.cluster, job.workload, provider=provider, price_kind=price_kind, region=region, cooling=cooling)
    answer = predict_answer.Answer(job, prediction, takes, predict_answer.exact_step_time_s(job, prediction, insist=exact))
    if as_json:
        predict_answer.show_as_json(answer)
    else:
        predict_answer.show_tables(answer)
