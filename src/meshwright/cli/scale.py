"""Ask a run that trains for another number of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson


def scale(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that trains with --keep-going.")],
    dp: Annotated[int, typer.Option("--dp", metavar="N", min=1, help="Number of replicas that the run should have.")],
    as_json: AsJson = False,
) -> None:
    """Let replicas join or leave a run at a step boundary. Its batch stays the same.

    Examples:

      meshwright scale runs/first --dp 4

      meshwright scale runs/first --dp 2 --json
    """
    from meshwright.cli.show import show
    from meshwright.ledger import checked_plan
    from meshwright.record.lock import is_held
    from meshwright.record.request import ask_for_replicas
    from meshwright.record.run import read_run
    from meshwright.say.scale import Asked, scale_document
    from meshwright.train.membership import check_replicas, in_effect, num_rounds

    memberships = in_effect(event.to_json() for event in read_run(run).events)
    _check_changeable(run, is_held(run), bool(memberships))
    plan = checked_plan(run, "put the run's own plan back")
    layout = check_replicas(plan.layout, plan.workload, dp, f"--dp {dp}")
    path = ask_for_replicas(run, dp)
    asked = Asked(
        folder=run,
        dp=dp,
        dp_before=memberships[-1].dp,
        global_batch=plan.workload.global_batch,
        num_micro_batches=num_rounds(layout, plan.workload.global_batch),
        file=path,
    )
    show(scale_document(asked), as_json=as_json)


def _check_changeable(run: Path, is_training: bool, is_elastic: bool) -> None:
    from meshwright.errors import InputError

    if not is_elastic:
        raise InputError("the replicas of this run cannot change", where=str(run), fix="start it with meshwright train --keep-going")
    if not is_training:
        raise InputError("no process trains this run now", where=str(run), fix=f"continue it: meshwright train --resume --name {run.name}")
