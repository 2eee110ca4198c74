"""Make a small cluster of network namespaces on this machine, run jobs on it, and remove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.help import add, examples
from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.lab.description import Lab

lab = typer.Typer(
    name="lab",
    add_completion=False,
    rich_markup_mode=None,
    help="Make racks, hosts and shaped links on this machine, run jobs on them, and remove them. Needs root.",
    epilog=examples("meshwright lab up --racks 2 --hosts 2 --rail 2gbit --uplink 100mbit", "meshwright lab down"),
)
LabName = Annotated[str, typer.Option(metavar="NAME", help="Name of the lab.")]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def up(
    racks: Annotated[int, typer.Option(metavar="N", min=1, help="Number of racks.")] = 2,
    hosts: Annotated[int, typer.Option(metavar="N", min=1, help="Hosts of a rack.")] = 2,
    ranks: Annotated[int, typer.Option(metavar="N", min=1, help="Ranks of a host; each acts as an accelerator.")] = 2,
    rail: Annotated[str, typer.Option(metavar="RATE", help="Rate of the link of a host, each way.")] = "2gbit",
    uplink: Annotated[str, typer.Option(metavar="RATE", help="Rate of the link between a rack and the spine, each way.")] = "100mbit",
    planes: Annotated[int, typer.Option(metavar="N", min=1, max=8, help="Planes of the network, which share the rates evenly.")] = 1,
    spread: Annotated[
        bool, typer.Option("--spread", help="Give hosts of one number a plane of their own, instead of hashing flows onto planes.")
    ] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Run a Slurm whose nodes are the hosts.")] = False,
    accounting: Annotated[bool, typer.Option("--accounting", help="Keep the Slurm's accounts in a database, as sites do.")] = False,
    ssh: Annotated[bool, typer.Option("--ssh", help="Run an ssh server on each host.")] = False,
    name: LabName = "lab",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the description of the cluster here; default: beside the lab's file.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a lab: racks of hosts as network namespaces, and links with a rate; write its description as a cluster.

    Nothing outside the lab's own namespaces is changed. The description is a TOML file that plan, predict, simulate and train read.

    Examples:

      meshwright lab up --racks 2 --hosts 2 --rail 2gbit --uplink 100mbit

      meshwright lab up --planes 4 --uplink 200mbit --slurm --ssh --name planes
    """
    from meshwright.cli.show import show
    from meshwright.lab import state
    from meshwright.lab.description import Lab, rate_of
    from meshwright.lab.report import lab_document

    wanted = Lab(
        name=name,
        num_racks=racks,
        num_hosts=hosts,
        num_ranks=ranks,
        rail_bits_per_s=rate_of(rail, "--rail"),
        uplink_bits_per_s=rate_of(uplink, "--uplink"),
        num_planes=planes,
        is_spread=spread,
        has_slurm=slurm,
        has_ssh=ssh,
        has_accounting=accounting,
    )
    path = out or state.description_path(name)
    made = state.up(wanted, description=path)
    show(lab_document(made, path), as_json=as_json)


def status(name: LabName = "lab", as_json: AsJson = False) -> None:
    """Print what a lab consists of now: hosts with their processes, links with their rates.

    Examples:

      meshwright lab status

      meshwright lab status --json
    """
    from meshwright.cli.show import show
    from meshwright.lab import state, system
    from meshwright.lab.report import lab_document

    system.check_able()
    show(lab_document(state.read_state(name), state.description_path(name)), as_json=as_json)


def down(
    name: LabName = "lab",
    is_all: Annotated[bool, typer.Option("--all", help="Remove all labs on this machine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a lab with all its processes, namespaces and files, also one that was made only in part.

    Examples:

      meshwright lab down

      meshwright lab down --all
    """
    from meshwright.cli.show import show
    from meshwright.lab import state
    from meshwright.lab.report import removed_document

    show(removed_document(name, state.down_all() if is_all else state.down(name), is_all=is_all), as_json=as_json)


def link(
    which: Annotated[str, typer.Argument(metavar="LINK", help="rack0: its uplink; r0h1: the link of a host.", show_default=False)],
    rate: Annotated[str | None, typer.Option(metavar="RATE", help="New rate, each way.", show_default=False)] = None,
    is_up: Annotated[bool | None, typer.Option("--up/--down", help="Mend the link, or cut it.", show_default=False)] = None,
    plane: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only in this plane; default: in all planes.", show_default=False)
    ] = None,
    name: LabName = "lab",
    as_json: AsJson = False,
) -> None:
    """Change a link while jobs run: give it another rate, cut it, or mend it.

    Examples:

      meshwright lab link rack1 --rate 50mbit

      meshwright lab link rack1 --down
    """
    from meshwright.cli.show import show
    from meshwright.errors import InputError
    from meshwright.lab import state
    from meshwright.lab.description import rate_of
    from meshwright.lab.report import lab_document

    if rate is None and is_up is None:
        raise InputError("nothing is to be changed", where="--rate, --up, --down", fix="give a rate, or --down or --up")
    bits_per_s = None if rate is None else rate_of(rate, "--rate")
    changed = state.change_link(state.read_state(name), which, plane=plane, bits_per_s=bits_per_s, is_up=is_up)
    show(lab_document(changed, state.description_path(name)), as_json=as_json)


def host(
    which: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host: r0h1.", show_default=False)],
    is_up: Annotated[bool, typer.Option("--up/--down", help="Switch the host on, or off without a warning.", show_default=False)],
    name: LabName = "lab",
    as_json: AsJson = False,
) -> None:
    """Switch a host of a lab with Slurm or ssh off, as a power failure would, or on again.

    Examples:

      meshwright lab host r1h0 --down

      meshwright lab host r1h0 --up
    """
    from meshwright.cli.show import show
    from meshwright.lab import nodes, state, system
    from meshwright.lab.report import lab_document

    system.check_able()
    made = state.read_state(name)
    chosen = nodes.check_host(made.lab, which)
    if is_up:
        nodes.start_host(made.lab, nodes.folder_of(name, state.FOLDER), chosen)
    else:
        nodes.stop_host(made.lab, chosen)
    show(lab_document(made, state.description_path(name)), as_json=as_json)


def login(context: typer.Context, name: LabName = "lab") -> None:
    """Run a command on the login host of a lab with Slurm or ssh: from there jobs are submitted. Without a command: a shell.

    Examples:

      meshwright lab login sinfo

      meshwright lab login meshwright launch plan.json --on slurm --site /run/meshwright/services-lab/site.toml --follow
    """
    import os

    from meshwright.errors import InputError
    from meshwright.lab import nodes, state, system

    system.check_able()
    made = state.read_state(name).lab
    if not made.has_login:
        raise InputError(f"lab {name!r} has no login host", where="meshwright lab login", fix="make a lab with --slurm or --ssh")
    words = context.args[1:] if context.args[:1] == ["--"] else context.args
    folder = nodes.folder_of(name, state.FOLDER)
    command = nodes.login_command(made, folder, tuple(words) or (os.environ.get("SHELL", "/bin/sh"),))
    os.execvpe(command[0], command, nodes.environment(made, folder, os.environ))


def run(
    context: typer.Context,
    ranks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of ranks; default: the plan's, or all places.", show_default=False)
    ] = None,
    shuffle: Annotated[
        int | None, typer.Option(metavar="SEED", min=0, help="Give the ranks random places, instead of the plan's.", show_default=False)
    ] = None,
    name: LabName = "lab",
) -> None:
    """Run a command on the hosts of a lab, once for each rank, with the variables that torchrun sets.

    A plan file among the words of the command decides the number of ranks and their places. Write the options of `lab run` before the
    command.

    Examples:

      meshwright lab run -- hostname

      meshwright lab run meshwright train plan.json --name first --steps 20
    """
    from meshwright.errors import InputError
    from meshwright.lab import ranks as on_hosts
    from meshwright.lab import state, system

    system.check_able()
    words = context.args[1:] if context.args[:1] == ["--"] else context.args
    if not words:
        raise InputError("no command to run", where="meshwright lab run", fix="write one: meshwright lab run -- hostname")
    made = state.read_state(name)
    if ranks and ranks > made.lab.num_slots:
        what = f"lab {name!r} has places for {made.lab.num_slots} ranks, not for {ranks}"
        raise InputError(what, where="--ranks", fix=f"give at most {made.lab.num_slots}, or make a larger lab")
    system.check_program(words[0])
    slots = _slots(words, made.lab, ranks, shuffle)
    code = on_hosts.run(on_hosts.starts(made.lab, words, slots, _num_cores()))
    if code:
        raise typer.Exit(code)


def mapping(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan for the lab: its job, and its degrees, are mapped.", show_default=False)
    ],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with all mappings.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the plans, logs and runs; a number is added if it is in use.")] = Path(
        "mappings"
    ),
    budget: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=1.0, help="About how long the steps of each mapping may take.")
    ] = 30.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the random places.")] = 0,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Only print the mappings and their forecasts; run nothing.")] = False,
    name: LabName = "lab",
    as_json: AsJson = False,
) -> None:
    """Run one job with several mappings to the racks of a lab, and show the predicted and the measured step of each.

    The mappings are the planner's first choice, each axis in turn across the racks, and ranks in random places.

    Examples:

      meshwright lab mapping plan.json --html mapping.html

      meshwright lab mapping plan.json --dry-run
    """
    from meshwright.cli.show import show
    from meshwright.errors import InputError
    from meshwright.files import check_target
    from meshwright.job import Job
    from meshwright.lab import state, system
    from meshwright.lab.cluster import cluster_name
    from meshwright.lab.mapping import mappings
    from meshwright.lab.mapping_page import mapping_document, mapping_page, planned_document
    from meshwright.lab.mapping_run import try_all, unused_folder
    from meshwright.plan.plan import read_plan
    from meshwright.report.page.shell import write_page

    if html is not None:
        check_target(html, "the page", ".html", ".htm")
    system.check_able()
    made, wanted = state.read_state(name).lab, read_plan(plan)
    if wanted.cluster.name != cluster_name(made):
        fix = f"plan for {state.description_path(name)}"
        raise InputError(f"the plan is for {wanted.cluster.name}, and not for lab {name!r}", where=str(plan), fix=fix)
    job = Job(wanted.model, wanted.cluster, wanted.workload, profile=wanted.profile or "")
    several = mappings(job, wanted.layout, made, seed)
    about = f"{wanted.model.name}, {wanted.workload.global_batch} x {wanted.workload.seq_len} tokens"
    if is_dry:
        show(planned_document(several, made, about), as_json=as_json)
        return
    folder = unused_folder(out.absolute())
    if folder.name != out.name:
        _say(f"{out} is in use: everything is written to {folder.name} beside it")
    found = try_all(several, made, folder, _num_cores(), budget, _say)
    document = mapping_document(found, made, about)
    if html is not None:
        write_page(html, mapping_page(found, made, about))
    show(document.with_files({"page": html}), as_json=as_json)


Steps = Annotated[int, typer.Option(metavar="N", min=1, help="Steps of each run.")]
Folder = Annotated[Path, typer.Option(metavar="DIR", help="Folder of what is written during the runs.")]
Page = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the same as a page.", show_default=False)]


def scaling(steps: Steps = 24, html: Page = None, out: Folder = Path("scaling"), name: LabName = "lab", as_json: AsJson = False) -> None:
    """Run the same work for each rack on one rack, then two, up to all racks of a lab: predicted and measured step of each.

    Compute is a declared wait, because this machine's cores could not compute for all racks; the network and the collectives are real.

    Examples:

      meshwright lab scaling --html scaling.html

      meshwright lab scaling --steps 40
    """
    from meshwright.cli.show import show
    from meshwright.files import check_target
    from meshwright.lab import state, system
    from meshwright.lab.trials import scaling as tried
    from meshwright.lab.trials_page import scaling_document, trial_page
    from meshwright.report.page.shell import write_page

    if html is not None:
        check_target(html, "the page", ".html", ".htm")
    system.check_able()
    made = state.read_state(name).lab
    document = scaling_document(tried(made, out, steps, _num_cores(), _say), made)
    if html is not None:
        write_page(html, trial_page(document, made))
    show(document.with_files({"page": html}), as_json=as_json)


def faults(steps: Steps = 32, html: Page = None, out: Folder = Path("faults"), name: LabName = "lab", as_json: AsJson = False) -> None:
    """Break a lab in the middle of a run: halve its uplinks, slow a host, take a plane away; show the step before and after.

    Beside each measured step is the one that `meshwright simulate` gives for the same. Compute is a declared wait, as in `lab scaling`.

    Examples:

      meshwright lab faults --html faults.html

      meshwright lab faults --steps 60
    """
    from meshwright.cli.show import show
    from meshwright.files import check_target
    from meshwright.lab import state, system
    from meshwright.lab.guard import guarded
    from meshwright.lab.trials import faults as tried
    from meshwright.lab.trials_page import faults_document, trial_page
    from meshwright.report.page.shell import write_page

    if html is not None:
        check_target(html, "the page", ".html", ".htm")
    system.check_able()
    made = state.read_state(name)
    with guarded("links", name, str(state.FOLDER)):
        document = faults_document(list(tried(made, out, steps, _num_cores(), _say)), made.lab)
    if html is not None:
        write_page(html, trial_page(document, made.lab))
    show(document.with_files({"page": html}), as_json=as_json)


def _say(what: str) -> None:
    import sys

    print(f"meshwright: {what}", file=sys.stderr, flush=True)


def _slots(words: list[str], made: Lab, num_ranks: int | None, seed: int | None) -> tuple[int, ...]:
    """The place of every rank: shuffled, by the plan among the words, or in order."""
    from meshwright.lab.ranks import in_order, planned_slots, shuffled
    from meshwright.plan.plan import read_plan

    path = next((Path(word) for word in words if word.endswith(".json") and Path(word).is_file()), None)
    if path is not None and num_ranks is None and words[0] == "meshwright" and words[1] in ("train", "doctor"):
        slots = planned_slots(read_plan(path), made)
    else:
        slots = in_order(num_ranks or made.num_slots)
    return slots if seed is None else tuple(slots[place] for place in shuffled(len(slots), seed))


def _num_cores() -> int:
    from meshwright.describe.this_machine import num_cores

    return num_cores()


for command in (up, status, link, host, down, mapping, scaling, faults):
    add(lab, command)
for passing in (run, login):
    add(lab, passing, PASS_ON)
