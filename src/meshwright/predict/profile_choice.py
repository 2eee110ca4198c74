"""Which hardware profile prices a question: the one named, or on this machine the one that `measure` left for it."""

from __future__ import annotations

from pathlib import Path

from meshwright.describe.cluster import Cluster
from meshwright.describe.load import EMULATED
from meshwright.describe.model import Model
from meshwright.describe.profile import Profile, load_profile, usual_path
from meshwright.describe.this_machine import NAME, catalogue_name, processor_name
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, argument
from meshwright.predict.measured import measured
from meshwright.predict.software import Software, on_profile

NONE = "none"


def with_profile(stack: Software, model: Model, cluster: Cluster, workload: Workload, choice: Profile | str | Path) -> Software:
    """The software priced by the chosen profile; without a choice, `this-machine` uses its own profile where that can price the job.

    `none` leaves this machine's own profile out too. The software's note says which profile is used.
    """
    if choice == NONE:
        return stack
    if choice:
        profile = choice if isinstance(choice, Profile) else load_profile(Path(choice))
        check_fits(profile, cluster, "profile" if isinstance(choice, Profile) else str(choice))
        measured(model, workload, profile)  # refuses what the profile cannot price
        return on_profile(stack, profile)
    found = _own(model, cluster, workload)
    return on_profile(stack, found) if found else stack


def _own(model: Model, cluster: Cluster, workload: Workload) -> Profile | None:
    """This machine's own profile, where there is one that fits the cluster and the job."""
    path = own_path(cluster)
    if not cluster.name.startswith(NAME) or not path.exists():
        return None
    try:
        profile = load_profile(path)
        check_fits(profile, cluster, str(path))
        measured(model, workload, profile)
    except InputError:
        return None
    return profile


def own_path(cluster: Cluster) -> Path:
    """Where the profile of a cluster of this machine is: one with links between hosts has a profile of its own, with its tiers."""
    return usual_path() if cluster.name in (NAME, EMULATED) else usual_path(cluster.name)


def check_fits(profile: Profile, cluster: Cluster, where: str) -> None:
    """Raise where a profile was made on another kind of device than the cluster has."""
    chip = cluster.accelerator
    is_cpu = chip.architecture == "cpu"
    if profile.device_type == "cpu":
        fits = is_cpu and (not cluster.name.startswith(NAME) or profile.device.startswith(processor_name()))
    else:
        fits = not is_cpu and _named(profile.device) == chip.name
    if not fits:
        raise InputError(
            f"the profile is of {profile.device}, and {cluster.name} has {chip.name}",
            where=where,
            fix=f"measure on that machine, or leave the profile out: {argument('profile', 'none')}",
        )
    names, timed = [tier.name for tier in cluster], [tier.name for tier in profile.tiers]
    if timed and timed != names:
        raise InputError(
            f"the profile's tiers are {', '.join(timed)}, and {cluster.name} has {', '.join(names)}",
            where=where,
            fix=f"measure that cluster, or leave the profile out: {argument('profile', 'none')}",
        )


def _named(device: str) -> str:
    try:
        return catalogue_name(device)
    except InputError:
        return device
