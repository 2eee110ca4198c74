"""Jobs on Slurm: submitted by sbatch, followed by squeue, ended by scancel."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING, WAITING, State, read_from
from meshwright.engines.hostlist import opened
from meshwright.engines.programs import Answer, call
from meshwright.engines.request import Request
from meshwright.engines.slurm_files import SCRIPT_FILE
from meshwright.errors import InputError, nearest

SLURM = "Slurm"
PHASES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESV_DEL_HOLD", "SPECIAL_EXIT"), WAITING),
    **dict.fromkeys(("RUNNING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"), RUNNING),
    "COMPLETED": DONE,
    "CANCELLED": CANCELLED,
    "REVOKED": CANCELLED,
}  # every other state is a failure: FAILED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, DEADLINE, PREEMPTED, BOOT_FAIL
FIELDS = "%T|%r|%P|%N"
# What sbatch says, and what it means.
SITE, ELSEWHERE = "of the site file", "plan for fewer nodes, or name another partition"
REFUSALS = (
    ("invalid partition", "the partition does not exist", f"name another in slurm.partition {SITE}"),
    (
        "invalid account",
        "this user may not use the account, or the account not the partition",
        f"correct slurm.account {SITE}: `sacctmgr show associations`",
    ),
    ("invalid qos", "the quality of service does not exist, or not for this account", f"correct slurm.qos {SITE}"),
    ("reservation is invalid", "the reservation does not exist, or is over", f"correct slurm.reservation {SITE}"),
    ("invalid feature", "no node has the features that are asked for", f"correct slurm.constraint {SITE}"),
    ("access/permission denied", "Slurm does not let this user submit", "ask the operators of the cluster for access"),
    ("user's group not permitted", "this user may not use the partition", f"name another in slurm.partition {SITE}"),
    (
        "node configuration is not available",
        "no nodes are as the job asks",
        f"correct slurm.gres and slurm.constraint {SITE}",
    ),
    ("more processors requested", "the partition allows fewer processors", ELSEWHERE),
    ("node count specification invalid", "the partition has, or allows, fewer nodes", ELSEWHERE),
    ("time limit", "the partition allows a shorter time only", f"shorten time_limit {SITE}"),
)


class Slurm:
    """The Slurm that this machine is a client of."""

    outlives = True

    def check(self, request: Request) -> None:
        """Raise an error if Slurm does not answer, or its partition has too few nodes of the right kind."""
        asked = request.site.slurm
        answer = call(["sinfo", "--noheader", "--Node", "--format=%R|%N|%G"], SLURM)
        if answer.code:
            raise InputError(f"Slurm does not answer: {answer.reason}", where="sinfo", fix="check the controller with `scontrol ping`")
        rows = [line.split("|") for line in answer.out.splitlines() if line.count("|") == 2]
        partitions = {row[0].strip() for row in rows}
        if asked.partition and asked.partition not in partitions:
            raise _no_partition(asked.partition, partitions)
        if not partitions:
            what = "Slurm has no partition that this user may use"
            raise InputError(what, where="sinfo", fix="ask the operators of the cluster for access")
        here = {name.strip(): gres for partition, name, gres in rows if not asked.partition or partition.strip() == asked.partition}
        self._check_hosts(request, here)
        _check_nodes(request, {name: gres for name, gres in here.items() if name not in request.excluded})

    def _check_hosts(self, request: Request, here: dict[str, str]) -> None:
        unknown = [host for host in request.hosts if host not in here]
        if unknown:
            raise InputError(f"Slurm has no node {unknown[0]!r} there", where="--nodes", fix=nearest(unknown[0], here))

    def submit(self, request: Request) -> str:
        """The number of the job."""
        answer = call(["sbatch", "--parsable", str(request.folder / SCRIPT_FILE)], SLURM)
        found = re.match(r"\d+", answer.out.strip())
        if answer.code or not found:
            raise _refusal(answer)
        return found[0]

    def state(self, job: str) -> State:
        """The state of the job: of the queue while it is there, of the accounts afterwards."""
        answer = call(["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={FIELDS}"], SLURM)
        if answer.code == 0 and answer.out.strip():
            name, reason, partition, nodes = (answer.out.splitlines()[0].split("|") + [""] * 4)[:4]
            phase = PHASES.get(name, FAILED)
            position = self._position(job, partition) if phase == WAITING else None
            shown = "" if reason in ("None", "") else f" ({reason})"
            return State(phase=phase, reason=f"{name}{shown}", position=position, nodes=tuple(opened(nodes)) if nodes.strip() else ())
        return self._past(job)

    def _position(self, job: str, partition: str) -> tuple[int, int] | None:
        """The place of a job among those that wait, by priority."""
        answer = call(["squeue", "--noheader", "--states=PENDING", f"--partition={partition}", "--sort=-p,i", "--format=%i"], SLURM)
        waiting = [line.strip() for line in answer.out.splitlines() if line.strip()]
        return (waiting.index(job) + 1, len(waiting)) if job in waiting else None

    def _past(self, job: str) -> State:
        """The state of a job that the queue has forgotten: from the accounts, or from what the controller still knows."""
        for words, pattern in (
            (["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State"], r"([A-Z_]+)"),
            (["scontrol", "show", "job", job], r"JobState=([A-Z_]+)"),
        ):
            answer = call(words, SLURM)
            found = re.search(pattern, answer.out) if answer.code == 0 else None
            if found:
                return State(phase=PHASES.get(found[1], FAILED), reason=found[1])
        return State(phase=FAILED, reason="Slurm no longer knows the job")

    def cancel(self, job: str) -> None:
        """End the job; Slurm signals its ranks, which may save first."""
        call(["scancel", job], SLURM)

    def read(self, path: Path, offset: int) -> bytes:
        """The file, which nodes and this machine share."""
        return read_from(path, offset)

    def by_hand(self, job: str) -> str:
        """The command with which a user ends the job."""
        return f"scancel {job}"


def _no_partition(name: str, usable: set[str]) -> InputError:
    """The error for a partition that does not exist, or that Slurm hides from users who may not use it."""
    answer = call(["sinfo", "--all", "--noheader", "--format=%R"], SLURM)
    where, known = "slurm.partition of the site file", f"this user may use {', '.join(sorted(usable)) or 'none'}"
    if name in {line.strip() for line in answer.out.splitlines()}:
        what = f"this user may not use Slurm's partition {name!r}"
        return InputError(what, where=where, fix=f"ask the operators of the cluster for access, or name another: {known}")
    fix = nearest(name, usable) if usable else f"name another: {known}"
    return InputError(f"Slurm has no partition {name!r}", where=where, fix=fix)


def _check_nodes(request: Request, here: dict[str, str]) -> None:
    """Raise an error if the nodes that there are could never be enough, or are of another kind."""
    where = f"partition {request.site.slurm.partition}" if request.site.slurm.partition else "Slurm"
    if len(here) < request.num_nodes:
        spares = f" ({request.shape.num_nodes} and {request.num_spares} to spare)" if request.num_spares else ""
        raise InputError(
            f"{where} has {len(here)} nodes, and the job asks for {request.num_nodes}{spares}",
            where="sinfo",
            fix=("ask for fewer spares (--spares), " if request.num_spares else "")
            + "plan for fewer accelerators, or name another partition",
        )
    wanted = request.site.slurm.gres or (f"gpu:{request.plan.cluster.accelerators_per_node}" if request.shape.needs_gpus else "none")
    alike = [name for name, gres in here.items() if has_gres(gres, wanted)]
    if len(alike) < request.num_nodes:
        kinds = sorted({re.sub(r"\(.*?\)", "", gres).strip() for gres in here.values()})
        raise InputError(
            f"{len(alike)} of the {len(here)} nodes of {where} have {wanted}, and the job asks for {request.num_nodes}",
            where="slurm.gres of the site file, or the plan's cluster",
            fix=f"the nodes have {', '.join(kinds)}: plan for these, or name another partition",
        )


def has_gres(text: str, wanted: str) -> bool:
    """Whether a node's resources (`gpu:h200:8(S:0-1)`) have what is asked for (`gpu:8`, `gpu:h200:4`)."""
    if wanted == "none":
        return True
    name, *kind, count = wanted.split(":") if wanted.count(":") else (wanted, "1")
    total = 0
    for one in re.sub(r"\(.*?\)", "", text).split(","):
        parts = one.strip().split(":")
        if parts[0] == name and (not kind or kind[0] in parts[1:-1]) and parts[-1].isdigit():
            total += int(parts[-1])
    return count.isdigit() and total >= int(count)


def _refusal(answer: Answer) -> InputError:
    """What sbatch refused, in our words where they are known."""
    said = f"{answer.err}\n{answer.out}".lower()
    for sign, what, fix in REFUSALS:
        if sign in said:
            return InputError(f"Slurm refused the job: {what}", where=answer.reason, fix=fix)
    return InputError("Slurm refused the job", where=answer.reason, fix="mend the site file, and see the script with --dry-run")
