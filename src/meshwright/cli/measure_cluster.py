"""What `meshwright measure --cluster` does: time the tiers of a cluster between its hosts, on a lab or under torchrun."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import typer

from meshwright.cli.measure import check_place, say_since, write_profile
from meshwright.cli.show import show
from meshwright.describe.cluster import Cluster
from meshwright.describe.load import load_cluster, looks_like_path
from meshwright.describe.profile import Profile, load_profile, usual_path
from meshwright.errors import InputError
from meshwright.say.measurement import measurement_document

Make = Callable[[int], Profile]  # the profile of one machine, with so many processes at once


def measure_cluster(name: str, base: Path | None, out: Path | None, make: Make, *, as_json: bool) -> None:
    """Time the tiers of a cluster, and write a profile with them.

    A process that a launcher started is one of the ranks. Otherwise the cluster is a lab, and this process starts the ranks on its hosts.
    """
    from meshwright.cli.train_run import is_launched, torch_or_error

    if not name:
        raise InputError("a profile to add to is given, but no cluster", where="--base", fix="name the cluster: --cluster lab")
    torch_or_error()
    if is_launched(os.environ):
        _as_rank(load_cluster(name), base, out)
        return
    path = _on_lab(name, base, out, make)
    show(measurement_document(load_profile(path), path, is_usual=out is None), as_json=as_json)


def _as_rank(cluster: Cluster, base: Path | None, out: Path | None) -> None:
    """Time the tiers as one of the ranks; rank 0 writes the profile."""
    from meshwright.train.measure.tiers import check_ranks, with_tiers
    from meshwright.train.meeting import meet

    check_ranks(cluster, int(os.environ["WORLD_SIZE"]))
    path = out or usual_path(cluster.name)
    check_place(path)
    profile = load_profile(base or usual_path())
    place = meet(os.environ)
    found = with_tiers(profile, cluster, place, say_since(time.perf_counter()))
    if place.rank == 0:
        write_profile(found, path)


def _on_lab(name: str, base: Path | None, out: Path | None, make: Make) -> Path:
    """Measure this machine with as many processes as the lab has ranks, unless a profile is given; then start ranks on the hosts."""
    from meshwright.describe.this_machine import num_cores
    from meshwright.lab import ranks, state, system
    from meshwright.lab.cluster import cluster_name

    if looks_like_path(name):
        fix = "start its ranks with torchrun on all nodes (torchrun ... -m meshwright measure --cluster FILE), or name a lab that is up"
        raise InputError("the tiers of a cluster are timed between its hosts, and no launcher started this process", where=name, fix=fix)
    system.check_able()
    lab = state.read_state(name).lab
    description = state.description_path(name)
    path = out or usual_path(cluster_name(lab))
    check_place(path)
    write_profile(load_profile(base) if base else make(lab.num_slots), path)
    words = ["meshwright", "measure", "--cluster", str(description), "--base", str(path.absolute()), "--out", str(path.absolute())]
    code = ranks.run(ranks.starts(lab, words, ranks.in_order(lab.num_slots), num_cores()))
    if code:
        raise typer.Exit(code)
    return path
