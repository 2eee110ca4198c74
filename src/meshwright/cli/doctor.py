"""Examine the nodes of a run before it begins, and keep a list of bad ones."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson, RunsDir

if TYPE_CHECKING:
    from meshwright.doctor.expected import Expected
    from meshwright.doctor.node import Here, Sources
    from meshwright.doctor.reading import Gathered
    from meshwright.train.launch import Place

LIST = "bad-nodes.json"
FAILED, BAD_INPUT = 1, 2


def doctor(
    plan: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN", help="Plan file whose cluster the nodes must match; default: this machine's own description."),
    ] = None,
    bad_nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="List of bad nodes that failed ones are added to; default: bad-nodes.json in --runs.", show_default=False
        ),
    ] = None,
    runs: RunsDir = Path("runs"),
    secret: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the user alone with a secret that the ranks of a launcher prove to each other; without it, others may join.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Examine nodes before a run, within a minute: driver, libraries, clocks, memory and its errors, speeds, disk, network.

    Alone it examines this node. Started on every node by torchrun (torchrun ... -m meshwright doctor PLAN), it also compares the nodes,
    their clocks, and each pair of ranks. The exit status is 1 where a node fails, and 2 where an argument is wrong.

    Examples:

      meshwright doctor

      meshwright doctor plan.json --bad-nodes bad-nodes.json
    """
    from meshwright.cli.show import show
    from meshwright.cli.train_run import is_launched, torch_or_error
    from meshwright.doctor.checks import FAIL, failed_nodes, findings_of
    from meshwright.doctor.limit import is_hung
    from meshwright.doctor.report import doctor_document
    from meshwright.errors import InputError
    from meshwright.files import check_ending
    from meshwright.record.bad_nodes import read_bad_nodes, with_failed, write_bad_nodes

    torch_or_error()
    path = bad_nodes or runs / LIST
    is_other = is_launched(os.environ) and os.environ["RANK"] != "0"
    try:
        check_ending(path, "the list of bad nodes", ".json")
        known = read_bad_nodes(path)
        expected, notes = _expected(plan)
        gathered = _gathered(expected, runs, secret, on_cores=plan is not None and not expected.needs_gpus)
    except InputError:
        if not is_other:
            raise
        raise typer.Exit(BAD_INPUT) from None  # an error that all ranks find is printed by rank 0 only
    if gathered is None:  # rank 0 prints
        _leave(0, is_hung=is_hung())
        return
    findings = findings_of(gathered, expected)
    failed = failed_nodes(findings)
    bad = with_failed(known, failed, datetime.now(UTC).isoformat(timespec="seconds"))
    if failed:
        write_bad_nodes(path, bad)
    document = doctor_document(gathered, expected, findings, bad, str(path), notes)
    show(document.with_files({"list of bad nodes": path if failed else None}), as_json=as_json)
    code = FAILED if any(finding.level == FAIL for finding in findings) else 0
    _leave(code, is_hung=is_hung())
    raise typer.Exit(code)


def _leave(code: int, *, is_hung: bool) -> None:
    """End the process at once if a thread hangs in a driver or on a disk: a normal exit would wait for the thread."""
    if is_hung:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _expected(path: Path | None) -> tuple[Expected, list[str]]:
    """What is expected of the nodes, and notes if little is known."""
    from meshwright.describe.load import THIS_MACHINE, load_cluster
    from meshwright.doctor.expected import Expected, expected_of
    from meshwright.errors import MeshwrightError
    from meshwright.plan.plan import read_plan

    if path is not None:
        plan = read_plan(path)
        return expected_of(plan.cluster, f"plan {plan.name}", plan), []
    try:
        return expected_of(load_cluster(THIS_MACHINE), "this machine's description"), []
    except MeshwrightError as error:
        return Expected(words="no description"), [f"speeds are compared between ranks only: {error.what}; give a plan to compare with it"]


def _gathered(expected: Expected, runs: Path, secret: Path | None, *, on_cores: bool) -> Gathered | None:
    """What the ranks found: the ranks of a launcher, one rank for each GPU here, or this process alone. `on_cores`: ignore GPUs."""
    from meshwright.cli.progress import progress_line
    from meshwright.cli.train_run import is_launched
    from meshwright.describe.this_machine import gpu_names
    from meshwright.doctor.gather import alone
    from meshwright.doctor.node import Sources

    sources = Sources(gpu_names=list) if on_cores else Sources()
    with progress_line() as report:
        if is_launched(os.environ):
            from meshwright.train.meeting import meet
            from meshwright.train.sealed import read_secret

            report("waiting for the other ranks")
            place = meet(os.environ, secret=read_secret(secret) if secret else b"")
            return _gather(place, expected, sources, runs, report)
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        num_gpus = (
            0
            if on_cores
            else len(gpu_names())
            if hidden is None
            else len([name for name in hidden.split(",") if name.strip() not in ("", "-1")])
        )
        if num_gpus > 1:
            return _on_all_gpus(num_gpus, expected, sources, runs, report)
        return alone(_here(0, 0, runs), sources, report)


def _here(rank: int, local_rank: int, runs: Path) -> Here:
    from meshwright.doctor.node import Here, device_name

    return Here(node=socket.gethostname(), rank=rank, local_rank=local_rank, device=device_name(local_rank, os.environ), folder=runs)


def _gather(place: Place, expected: Expected, sources: Sources, runs: Path, report: Callable[[str], None]) -> Gathered | None:
    from meshwright.doctor.gather import Network, gather

    here = _here(place.rank, place.local_rank, runs)
    return gather(place, here, sources, Network(tiers=expected.tiers), report)


def _on_all_gpus(num_gpus: int, expected: Expected, sources: Sources, runs: Path, report: Callable[[str], None]) -> Gathered:
    """Start one rank for each GPU and return what they found. They write it to a shared file without a name.

    If a rank dies in a driver or a library, that is a finding too: the process that started it reports which.
    """
    import tempfile

    from meshwright.doctor.reading import Gathered, gathered_of
    from meshwright.train.launch import Failure, run_ranks

    failures: list[Failure] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:

        def body(place: Place) -> None:
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))  # a rank that is asked to stop exits at once
            found = _gather(place, expected, sources, runs, report)
            if found:
                file.write(found.to_text())
                file.flush()

        code = run_ranks(num_gpus, body, lambda failure, store: failures.append(failure))
        file.seek(0)
        text = file.read()
    if text and code == 0:
        return gathered_of(text)
    if not failures:
        raise KeyboardInterrupt
    rank = failures[0].rank or 0
    return Gathered(num_ranks=num_gpus, readings=(), silent={rank: socket.gethostname()}, pairs_failed=failures[0].message)
