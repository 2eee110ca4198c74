"""Whether a rank survives the way through generations on a GPU, without a model: two ranks, one is killed, the other goes on alone, and a
new process joins. Variants leave out or change one thing each, so that a crash can be laid to one of them.

    LD_PRELOAD=.../libnccl.so.2 python benchmarks/gpu_loss_parts/rejoin.py [VARIANT]... --limit-s 80 --out FILE

The processes are those of the trainer: its supervisor starts them, and its code aborts communicators and cuts connections. All variants
share one GPU by slices of time, a few at once, each in processes of its own. torch is loaded once, before any process is forked. With
--dry-run they go over gloo, which splits groups in the same way as NCCL's backend does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright.layout import Layout
from meshwright.train import generations
from meshwright.train.elastic import member as members
from meshwright.train.elastic.member import BOUNDARY, COME, KEPT_AFTER_ERRORS, LOST, READY, Announcement, Member, wait_for_all
from meshwright.train.elastic.supervisor import Supervisor
from meshwright.train.incidents import Incident
from meshwright.train.launch import Failure
from meshwright.train.membership import layout_with
from meshwright.train.parallel.mesh import number_ranks
from meshwright.train.shared_gpu import allow_sharing, loaded_nccl

TWO = Layout(dp=2)
STEPS = 3
NUM_GROUPS = 2
STACK_LINES = 60
VARIANT_S = 20.0  # for each; on a GPU three processes open it one after the other
END_S = 2.0  # kept back to end everything
DEAD = "no-mps"  # a folder in which no MPS listens


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way through the generations."""

    what: str
    numbers: bool = True  # whether torch is told the ranks of the group of all, as the trainer does since the crash
    groups: str = "split"  # split, new or none
    alone: bool = False  # whether a rank that is alone makes groups too
    losses: int = 1
    kills: bool = True  # otherwise both ranks leave the first generation at a step boundary
    leaves: str = "abort"  # abort, turn (one after the other, children first, without torch's own function) or destroy
    cuts: bool = True
    binds: bool = True  # the group of all to its device, which also connects it at once
    expected: str = "ended well"


VARIANTS = {
    "as-is": Variant(what="as the trainer does it", losses=2),
    "as-was": Variant(what="as it crashed", numbers=False, expected="SIGSEGV"),
    "alone": Variant(what="as it crashed, and the rank that is alone makes groups too", numbers=False, alone=True, expected="SIGSEGV"),
    "no-kill": Variant(what="as it crashed, without a kill and a generation of one", numbers=False, kills=False, expected="SIGSEGV"),
    "no-kill-numbered": Variant(what="the same, with the fix", kills=False),
    "no-groups": Variant(what="no groups but that of all ranks", numbers=False, groups="none"),
    "new-group": Variant(what="dist.new_group instead of dist.split_group", numbers=False, groups="new"),
    "destroy": Variant(what="with the fix; at a boundary groups are destroyed", leaves="destroy"),
    "turn": Variant(what="with the fix; communicators are aborted one after the other, children first", leaves="turn"),
    "no-cut": Variant(what="with the fix; connections are not cut", cuts=False),
    "unbound": Variant(what="no device is bound, so connections are made late, and groups are new ones", binds=False, groups="new"),
}


class Notes:
    """What the processes of a variant have done, in one file; and whether they use a GPU."""

    def __init__(self, path: Path, is_gpu: bool) -> None:
        self.path, self.is_gpu, self.began_s = path, is_gpu, time.monotonic()

    def add(self, member: Member, what: str) -> None:
        """Add a line."""
        line = f"{time.monotonic() - self.began_s:6.2f} s  replica {member.replica}  generation {member.current}  {what}\n"
        with self.path.open("a") as file:
            file.write(line)


def life(member: Member, variant: Variant, notes: Notes) -> None:
    """One process, as `generations.run_member`, with steps that only exchange."""
    member.is_gpu = notes.is_gpu
    member.listen()
    notes.add(member, "is ready")
    member.say(READY)
    announced = member.next()
    while announced is not None:
        stays = False
        try:
            if generation(member, announced, variant, notes):
                return
            stays = True
            member.say(BOUNDARY, str(STEPS))
        except Exception as error:
            notes.add(member, f"got {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            if not member.survives(error):
                raise
            if member.newest == member.current:
                member.say(LOST, f"{member.current} {error}".partition("\n")[0][:200])
        if not stays:
            leave(variant, notes, at_boundary=False)
        announced = member.next(60.0)
        if stays:
            leave(variant, notes, at_boundary=True)
            notes.add(member, "has left its groups at the boundary")


def generation(member: Member, announced: Announcement, variant: Variant, notes: Notes) -> bool:
    """One generation; whether the variant is over."""
    device = torch.device("cuda", 0) if notes.is_gpu else torch.device("cpu")
    if notes.is_gpu:
        torch.cuda.set_device(device)
    again = [announced] if variant.kills else [announced, replace(announced, generation=announced.generation + 100)]
    for one in again:
        place = member.place(one, layout_with(TWO, len(one.replicas)))
        if one is announced:
            member.say(COME, str(one.generation))
        wait_for_all(place)
        notes.add(member, f"makes the group of {place.num_ranks}")
        binds = variant.binds and notes.is_gpu
        dist.init_process_group(
            "nccl" if notes.is_gpu else "gloo",
            store=place.store,
            rank=place.rank,
            world_size=place.num_ranks,
            timeout=timedelta(seconds=60.0),
            device_id=device if binds else None,
        )
        made = groups_of(place.num_ranks, device, variant, notes, member)
        is_last = one is not announced or announced.generation == 2 * variant.losses
        dies = variant.kills and not is_last and place.num_ranks > 1 and member.replica == 1
        step = 0
        while step < STEPS or (variant.kills and not is_last and (place.num_ranks > 1 or not member.wants_change())):
            exchange(made, device)
            if member.newest > member.current:
                raise RuntimeError("cut off")
            step += 1
            if dies and step == STEPS:
                notes.add(member, "kills itself")
                os.kill(os.getpid(), signal.SIGKILL)
            if step > STEPS:
                time.sleep(0.02)
        notes.add(member, f"has done {step} steps")
        if is_last:
            dist.destroy_process_group()
            notes.add(member, "has ended")
            return True
        if not variant.kills:
            place.store.set(f"done/{place.rank}", "1")
            place.store.wait([f"done/{rank}" for rank in range(place.num_ranks)])
            leave(variant, notes, at_boundary=True)
    return False


def groups_of(num_ranks: int, device: torch.device, variant: Variant, notes: Notes, member: Member) -> list[dist.ProcessGroup | None]:
    """The groups of a generation: that of all ranks, and more."""
    made: list[dist.ProcessGroup | None] = [dist.group.WORLD]
    world = dist.group.WORLD
    assert world is not None
    for _ in range(NUM_GROUPS if variant.groups != "none" and (num_ranks > 1 or variant.alone) else 0):
        notes.add(member, f"makes a {variant.groups} group")
        everyone = list(range(num_ranks))
        if variant.groups == "new":
            made.append(dist.new_group(everyone))
            continue
        if variant.numbers:
            number_ranks(world, device)
        if notes.is_gpu:
            made.append(dist.split_group(split_ranks=[everyone], group_desc="shards"))
            continue
        options: Any = dist.ProcessGroupGloo._Options()
        options._timeout, options._devices = timedelta(seconds=60), [dist.ProcessGroupGloo.create_device(interface="lo")]
        # Each rank by itself: ranks of a busy machine do not always meet when gloo connects a split.
        made.append(world.split_group([dist.get_rank()], opts=options, group_name=f"split {len(made)}", group_desc="shards"))
    return made


def exchange(made: Sequence[dist.ProcessGroup | None], device: torch.device) -> None:
    """A step."""
    for group in made:
        ones = torch.ones(4096, device=device)
        if device.type == "cuda" or group is dist.group.WORLD:
            dist.all_reduce(ones, group=group)
        else:
            assert group is not None
            group.allreduce([ones]).wait()
    if device.type == "cuda":
        torch.cuda.current_stream().synchronize()


def leave(variant: Variant, notes: Notes, *, at_boundary: bool) -> None:
    """Leave the groups of a generation."""
    if at_boundary and variant.leaves == "destroy" and dist.is_initialized():
        dist.destroy_process_group()
    else:
        generations._leave_groups(notes.is_gpu)


def abort_in_turn() -> bool:
    """Abort the communicators of this process one after the other, the newest first."""
    from torch.distributed import distributed_c10d

    if not dist.is_initialized():
        return False
    for group in reversed(list(distributed_c10d._world.pg_names)):
        members._abort(group)
    with suppress(RuntimeError, ValueError, AssertionError):
        distributed_c10d._abort_process_group()
    return True


def run_variant(name: str, folder: Path, is_gpu: bool) -> None:
    """All of one variant, in a process of its own: its result is written into the folder."""
    os.setsid()
    variant, notes, kept = VARIANTS[name], Notes(folder / "notes", is_gpu), list[str]()
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if variant.leaves == "turn":
        members.abort_communicators = generations.abort_communicators = abort_in_turn
    if not variant.cuts:
        members.cut_connections = lambda **_: None
    num_losses = 0

    def judged(failure: Failure) -> Incident | str:
        nonlocal num_losses
        num_losses += 1
        if "SIGKILL" not in failure.message or num_losses > variant.losses:
            return "it was not to be lost"
        return Incident(number=num_losses, reason="signal", rank=failure.rank, step=STEPS, message=failure.message, noticed_s=0.0)

    def keep(_generation: int, _rank: int, stacks: str) -> str:
        kept.append(stacks)
        return "below"

    supervisor = Supervisor(TWO, partial(life, variant=variant, notes=notes), judged, lambda: None, stall_s=VARIANT_S, kept=keep)
    try:
        code, failure = supervisor.run()
    finally:
        supervisor.close()
    what = "ended well" if failure is None and not code else failure.message if failure else f"exit status {code}"
    (folder / "result").write_text(json.dumps({"ended": what, "stacks": "\n".join(kept)}))


def text_of(path: Path) -> str:
    """A file's text; empty if there is none."""
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def told(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """What became of a variant."""
    result = json.loads(text_of(folder / "result") or "{}")
    ended = result.get("ended", "")
    row = {"variant": name, "what": VARIANTS[name].what, "ended": ended or "did not end in time", "seconds": round(seconds, 1)}
    row["as_expected"] = VARIANTS[name].expected in row["ended"]
    row["notes"] = text_of(folder / "notes").splitlines()[-30:]
    if row["ended"] != "ended well":
        row["output"] = [line[:300] for line in text_of(folder / "output").splitlines()][-STACK_LINES:]
        _, _, crashed = str(result.get("stacks", "")).rpartition("Current thread")
        row["stacks"] = crashed.splitlines()[: STACK_LINES // 3] or str(result.get("stacks", "")).splitlines()[:STACK_LINES]
    return row


def words(row: dict[str, Any]) -> str:
    """The same in lines."""
    verdict = "as expected" if row["as_expected"] else "NOT EXPECTED"
    head = f"{verdict:<12}  {row['variant']:<17} {row['seconds']:5.1f} s  {row['ended']}  ({row['what']})"
    parts = [(part, row.get(part, [])) for part in ("notes", "stacks", "output")] if row["ended"] != "ended well" else []
    return "\n".join([head, *(f"    {part}: {line}" for part, lines in parts for line in lines)])


def main(given_words: Sequence[str] | None = None) -> int:
    """Try the variants, a few at once; 0 if all ended as is expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"{', '.join(VARIANTS)}; default: all")
    parser.add_argument("--limit-s", type=float, default=80.0, help="all ends after so many seconds (default %(default)s)")
    parser.add_argument("--at-once", type=int, default=4, help="variants at once (default %(default)s)")
    parser.add_argument("--out", type=Path, help="write what was found here, as JSON")
    parser.add_argument("--dry-run", action="store_true", help="over gloo: the code runs, no GPU is tried")
    given = parser.parse_args(given_words)
    if unknown := [name for name in given.variants if name not in VARIANTS]:
        parser.error(f"no variant: {', '.join(unknown)}")
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="meshwright-rejoin-"))
    environment = {**KEPT_AFTER_ERRORS, "NCCL_DEBUG": "WARN", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(folder / DEAD)  # slices of time
    allow_sharing(os.environ)
    print(f"torch {torch.__version__}, NCCL {loaded_nccl()}", flush=True)
    waiting, running, rows = list(given.variants or VARIANTS), dict[int, tuple[str, float]](), list[dict[str, Any]]()
    while waiting or running:
        now_s = time.monotonic()
        is_late = now_s - began_s > given.limit_s - END_S
        while waiting and len(running) < given.at_once and not is_late:
            name = waiting.pop(0)
            (folder / name).mkdir()
            pid = os.fork()
            if not pid:
                try:
                    run_variant(name, folder / name, not given.dry_run)
                finally:
                    os._exit(0)
            running[pid] = name, now_s
        for pid, (name, started_s) in list(running.items()):
            if is_late or now_s - started_s > VARIANT_S:
                with suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG)[0]:
                with suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)  # what is left of its processes
                del running[pid]
                rows.append(told(name, folder / name, time.monotonic() - started_s))
                print(words(rows[-1]), flush=True)
        if is_late and waiting:
            print(f"not tried: {', '.join(waiting)}", flush=True)
            waiting = []
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)
    if given.out:
        given.out.write_text(json.dumps({"torch": torch.__version__, "nccl": loaded_nccl(), "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(words(row).partition("\n")[0][:160], flush=True)
    return 0 if all(row["as_expected"] for row in rows) and rows else 1


if __name__ == "__main__":
    sys.exit(main())
