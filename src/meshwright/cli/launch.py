"""Submit a plan as a job to the engine that runs the cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.options import RunsDir

if TYPE_CHECKING:
    from meshwright.engines.engine import Engine
    from meshwright.engines.job_folder import Submitted
    from meshwright.engines.request import JobFile, Request
    from meshwright.engines.site import Site
    from meshwright.errors import InputError

FAILED = 1
OWN_OPTIONS = ("--name", "--runs", "--resume", "--resume-if-exists", "--json")  # of `train`, which launch gives itself


def launch(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A plan file written by `meshwright plan --out`.", show_default=False)
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPTION", help="Options of `meshwright train`, after a `--` of their own.", show_default=False),
    ] = None,
    on: Annotated[str, typer.Option(metavar="ENGINE", help="Engine: slurm, kubernetes, ssh or local.")] = "local",
    site: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Site file: how this cluster wants its jobs written.", show_default=False)
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Name of the job and of its run folder; default: the plan's name and the time.", show_default=False
        ),
    ] = "",
    nodes: Annotated[
        str, typer.Option(metavar="HOSTS", help="Nodes to use, in the order of the machine: r[0-1]h[0-3]. Default: the engine chooses.")
    ] = "",
    spares: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Nodes to ask for beyond the plan's; default: those that it keeps idle.", show_default=False),
    ] = None,
    bad_nodes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="List of bad nodes, which are left out; default: bad-nodes.json in --runs.", show_default=False),
    ] = None,
    runs: RunsDir = Path("runs"),
    jobs: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the jobs' files.")] = Path("jobs"),
    follow: Annotated[
        bool, typer.Option("--follow", help="Show queue, nodes and steps until the job ends; ssh and local always do.")
    ] = False,
    cancel_on_interrupt: Annotated[
        bool, typer.Option("--cancel-on-interrupt", help="Cancel the job when following it ends by Ctrl-C.")
    ] = False,
    give_up_after: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.0, help="Cancel a job that has not started after so long.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files instead of submitting them.")] = False,
    example: Annotated[str, typer.Option(metavar="ENGINE", help="Print a site file for this engine, with every key.")] = "",
    place: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Inside a job: put its ranks on the nodes that it was allocated.", show_default=False),
    ] = None,
) -> None:
    """Submit a plan as a job: each rank where the plan has it, each replica in a rack.

    Examples:

      meshwright launch plan.json --on slurm --site site.toml --name first --dry-run -- --steps 200

      meshwright launch --example kubernetes
    """
    from meshwright.errors import InputError

    if example:
        print(_example(example), end="")
        return
    if place is not None:
        _place(place)
        return
    if plan is None:
        raise InputError("no plan to launch", where="PLAN", fix="make one with `meshwright plan ... --out FILE`")
    request, files, site_text = _request(plan, on, site, name, nodes, spares, bad_nodes, runs, jobs, tuple(options or ()))
    if dry_run:
        for file in files:
            print(f"==> {file.name} <==\n{file.text}")
        return
    code = _submit(on, request, files, site_text, follow=follow, cancels=cancel_on_interrupt, give_up_s=give_up_after)
    if code:
        raise typer.Exit(code)


def _submit(
    on: str, request: Request, files: list[JobFile], site_text: str, *, follow: bool, cancels: bool, give_up_s: float | None
) -> int:
    """Submit the job, or take up one of that name that is still under way; follow it if that is asked for."""
    from meshwright.engines.engine import engine_of
    from meshwright.engines.job_folder import Submitted, read_submitted, write_job

    engine = engine_of(on, request)
    before = read_submitted(request.folder)
    job = _under_way(engine, before, on) if before else ""
    if job and not follow:
        raise _twice(request, job)
    if not job:
        engine.check(request)
        write_job(request, files, site_text)
        job = engine.submit(request)
        Submitted(engine=on, job=job).write(request.folder)
        print(f"meshwright: submitted to {on} as job {job}; its files are in {request.folder}", file=sys.stderr)
    if not follow and engine.outlives and give_up_s is None:
        print(job)
        return 0
    return _followed(engine, job, request, cancels=cancels, give_up_s=give_up_s)


def _under_way(engine: Engine, before: Submitted, on: str) -> str:
    """The job that was submitted before, if it has not ended."""
    from meshwright.engines.engine import ACTIVE

    return before.job if engine.outlives and before.engine == on and engine.state(before.job).phase in ACTIVE else ""


def _twice(request: Request, job: str) -> InputError:
    from meshwright.errors import InputError

    return InputError(
        f"the job {request.name} is under way already, as {job}",
        where=str(request.folder),
        fix="add --follow to follow it, or choose another --name",
    )


def _followed(engine: Engine, job: str, request: Request, *, cancels: bool, give_up_s: float | None) -> int:
    """Follow a job to its end; return the exit status."""
    from meshwright.engines.engine import DONE
    from meshwright.engines.follow import follow

    try:
        ending = follow(engine, job, request, lambda line: print(line, flush=True), give_up_s=give_up_s)
    except KeyboardInterrupt:
        if cancels or not engine.outlives:
            engine.cancel(job)
            print(f"meshwright: job {job} was cancelled", file=sys.stderr)
        else:
            print(f"meshwright: job {job} goes on; end it with: {engine.by_hand(job)}", file=sys.stderr)
        raise
    except BaseException:
        if not engine.outlives:
            engine.cancel(job)
        raise
    print(ending.message, file=sys.stdout if ending.phase == DONE else sys.stderr)
    return 0 if ending.phase == DONE else FAILED


def _example(engine: str) -> str:
    from meshwright.engines.site import example

    return example(_engine(engine, "--example"))


def _engine(name: str, where: str) -> str:
    from meshwright.engines.site import ENGINES
    from meshwright.errors import InputError, nearest

    if name not in ENGINES:
        raise InputError(f"no engine is called {name!r}", where=where, fix=nearest(name, ENGINES))
    return name


def _place(folder: Path) -> None:
    from meshwright.engines.job_folder import place

    found = place(folder)
    for line in (found.seating.words, found.change):
        if line:
            print(f"meshwright: {line}", flush=True)


def _request(
    path: Path,
    on: str,
    site_path: Path | None,
    name: str,
    nodes: str,
    spares: int | None,
    bad_nodes: Path | None,
    runs: Path,
    jobs: Path,
    options: tuple[str, ...],
) -> tuple[Request, list[JobFile], str]:
    """What is asked of the engine, the files that say it in the engine's words, and the text of the site file."""
    from datetime import UTC, datetime

    from meshwright.engines.engine import files_of
    from meshwright.engines.request import Request
    from meshwright.engines.site import read_site
    from meshwright.files import read_text
    from meshwright.plan.plan import read_plan
    from meshwright.plan.stack.own import check_trainable
    from meshwright.record.header import check_name
    from meshwright.storage import Remote, is_url

    engine = _engine(on, "--on")
    site = read_site(site_path)
    plan = read_plan(path)
    check_trainable(plan.model, plan.workload, plan.layout)
    _check_options(path, options)
    name = check_name(name or f"{plan.name.lower()}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    base = Path(site.workdir) if site.workdir else Path.cwd()
    request = Request(
        plan=plan,
        site=site,
        name=name,
        folder=_absolute(jobs / name, base),
        runs=Remote.at(runs) if is_url(runs) else _absolute(runs, base),
        options=options,
        hosts=_hosts(engine, nodes, site),
        excluded=_bad(bad_nodes, runs),
    )
    request = _with_spares(request, engine, spares)
    return request, files_of(engine, request), read_text(site_path) if site_path else ""


def _absolute(path: Path, base: Path) -> Path:
    return path if path.is_absolute() else base / path


def _hosts(engine: str, nodes: str, site: Site) -> tuple[str, ...]:
    from meshwright.engines.hostlist import opened

    if nodes:
        return tuple(opened(nodes, "--nodes"))
    if engine != "ssh":
        return ()
    listed = ",".join(site.ssh.hosts or site.racks.values())
    return tuple(opened(listed, "ssh.hosts of the site file"))


def _bad(path: Path | None, runs: Path) -> tuple[str, ...]:
    from meshwright.record.bad_nodes import read_bad_nodes
    from meshwright.storage import is_url

    if path is None and is_url(runs):
        return ()
    return tuple(one.node for one in read_bad_nodes(path or runs / "bad-nodes.json"))


def _with_spares(request: Request, engine: str, spares: int | None) -> Request:
    """The request with nodes beyond the plan's. Only Slurm lends them: the others have exactly the nodes that they are told."""
    from dataclasses import replace

    from meshwright.errors import InputError

    if spares and engine != "slurm":
        raise InputError(
            f"{engine} has no spare nodes to ask for", where="--spares", fix="leave it out; with ssh, name more hosts than the plan needs"
        )
    if engine != "slurm" or request.hosts:
        return request
    return replace(request, num_spares=request.shape.num_spares if spares is None else spares)


def _check_options(plan: Path, options: tuple[str, ...]) -> None:
    """Raise an error if `meshwright train` would refuse the options: better now than in a queue."""
    from meshwright.cli.main import app  # the parser of all commands, this one among them
    from meshwright.cli.refusals import ParserError, refusal_of
    from meshwright.errors import InputError

    taken = [word.partition("=")[0] for word in options if word.partition("=")[0] in OWN_OPTIONS]
    if taken:
        raise InputError(f"{taken[0]} is given by launch itself", where="the options of train", fix=f"write {taken[0]} before the --")
    group: Any = typer.main.get_command(app)
    try:
        group.commands["train"].make_context("train", [str(plan), *options])
    except ParserError as error:
        raise refusal_of(error, ["train", str(plan), *options], group) from None
