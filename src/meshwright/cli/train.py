"""Train a plan for real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    context: typer.Context,
    plan: Annotated[Path | None, typer.Argument(help="A plan file; without one, the embedded default is planned for this machine.")] = None,
    layout: Annotated[str, typer.Option(help="tp=2,cp=2,...: degrees and choices in place of the plan's.")] = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps.", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="The run's name; by default model, layout and time.", show_default=False)] = "",
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where runs lie.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run, as it was started; without --name the newest in the runs folder.")
    ] = False,
    resume_if_exists: Annotated[
        bool, typer.Option("--resume-if-exists", help="Go on with the run of that --name, or start it: for jobs that are restarted.")
    ] = False,
    corpus: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What to train on, in place of the workload's.", show_default=False)
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option(metavar="DIR", help="First weights: a Hugging Face folder.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of weights and of the order of samples.")] = 0,
    benchmark: Annotated[str, typer.Option(help="The benchmark's name in the MLPerf log; an official one is checked.")] = "",
    checkpoint_every: Annotated[
        int | None,
        typer.Option(min=0, metavar="STEPS", help="Between checkpoints; 0: only at the end; else every few minutes.", show_default=False),
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Whether to save checkpoints: by the clock and at the end.")] = True,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints to keep.")] = 3,
    keep_every: Annotated[int, typer.Option(min=0, metavar="STEPS", help="Keep these for good; 0: none.")] = 0,
    stall_timeout: Annotated[float, typer.Option(min=1.0, help="Seconds a rank may stand still; never less than five slow steps.")] = 10.0,
    grace: Annotated[float, typer.Option(min=1.0, help="Seconds to save in after SIGTERM.")] = 30.0,
    rendezvous_timeout: Annotated[float, typer.Option(min=1.0, help="Seconds for a launcher's ranks to find each other in.")] = 60.0,
    allow_changed: Annotated[
        list[str] | None, typer.Option(help="plan, corpus or code: may differ from the checkpoint's.", show_default=False)
    ] = None,
    profile: Annotated[str, typer.Option(metavar="FILE", help="What `measure` wrote; none: do not use this machine's own.")] = "",
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="USD", help="500USD: not started if predicted to cost more; saved and stopped before it would.", show_default=False
        ),
    ] = None,
    price: Annotated[
        str | None, typer.Option(metavar="USD/h", help="2.5USD/h for one accelerator, in place of the listed price.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a plan, to its target, and show how it went beside what was predicted."""
    from meshwright.cli.train_arguments import Wishes
    from meshwright.cli.train_run import run

    wishes = Wishes(
        plan=plan, layout=layout, steps=steps, name=name, runs=runs, resume=resume, corpus=corpus, start_from=start_from, seed=seed,
        benchmark=benchmark, checkpoint_every=checkpoint_every, save=save, keep=keep, keep_every=keep_every, stall_timeout_s=stall_timeout,
        grace_s=grace, rendezvous_timeout_s=rendezvous_timeout, allow_changed=tuple(allow_changed or ()), budget=budget, price=price,
        profile=profile, as_json=as_json, resume_if_exists=resume_if_exists, given=_given(context),
    )  # fmt: skip
    code = run(wishes)
    if code:
        raise typer.Exit(code)


def _given(context: typer.Context) -> frozenset[str]:
    """What was written on the command line, by the names of the wishes: the rest are defaults."""
    names = {"stall_timeout": "stall_timeout_s", "grace": "grace_s", "rendezvous_timeout": "rendezvous_timeout_s"}
    written = {name for name in context.params if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"}
    return frozenset(names.get(name, name) for name in written)
