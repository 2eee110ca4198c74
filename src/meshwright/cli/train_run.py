"""What a training command does: find the plan and the corpus, start the ranks, show the result."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.cli.progress import progress_bar, progress_line
from meshwright.cli.retries import is_retried
from meshwright.cli.train_arguments import Wishes, kept_arguments, newest_run, with_kept
from meshwright.cli.train_budget import more_money, with_budget
from meshwright.cli.train_show import show_next, show_run, show_start
from meshwright.cli.urls import cache_folder, corpus_here, store_end, with_local_runs
from meshwright.describe.cluster import Cluster
from meshwright.describe.load import EMULATED, THIS_MACHINE, load_cluster, load_model, load_workload
from meshwright.describe.this_machine import gpu_names
from meshwright.errors import InputError, MeshwrightError, argument
from meshwright.job import Job
from meshwright.layout import Layout, parse_layout, read_choices
from meshwright.ledger import checked_plan
from meshwright.plan.export.hostfile import Seats
from meshwright.plan.plan import Plan, plan_bytes, read_plan
from meshwright.plan.plan import plan_of as planned
from meshwright.predict.software import on_profile, software
from meshwright.record.header import check_name, read_header
from meshwright.record.lock import Held
from meshwright.record.writer import discard_unstarted, is_unstarted
from meshwright.storage.apart import apart

if TYPE_CHECKING:
    from meshwright.train.job import TrainingJob
    from meshwright.train.launch import Failure, Place
    from meshwright.train.membership import Dealt, Membership
    from meshwright.train.sealed import SealedStore
    from meshwright.train.tuning.dataset import DataSet

DEFAULT_MODEL, DEFAULT_WORKLOAD = "llama-2m", "python-stdlib"
DEFAULT_LAYOUT = Layout(tp=2, pp=2, dp=2, micro_batch=4)  # on two emulated racks of four ranks: a replica is a rack
EMBEDDED_CORPUS = "python-stdlib"
INTERRUPTED = 130
ENDED_WELL = ("finished", "target_reached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What differs between the commands that run ranks."""

    name: str
    job_of: Callable[[Wishes], TrainingJob]
    reason: Callable[[Plan], str]  # why a layout that nobody asked for is as it is, in words
    finish: Callable[[TrainingJob], None]  # called when the ranks have ended well
    measures: bool  # whether a machine that was not measured yet is measured before the first run


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a job of fine-tuning has besides: its samples, and the adapter that it starts from."""

    data: DataSet
    adapter: Path | None


def run(wishes: Wishes, verb: Verb | None = None) -> int:
    """Train, show the result, and return the exit status."""
    verb = verb or TRAIN
    torch_or_error()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # errors are printed once, by meshwright
    from meshwright.train.checks import check_job
    from meshwright.train.folders import check_folder

    if is_launched(os.environ) and not wishes.meet:
        return run_launched(wishes, verb)
    if wishes.meet or wishes.node or "nodes" in wishes.given:
        from meshwright.cli.several_nodes import checked, follow_run

        checked(wishes)
        if wishes.node:
            return follow_run(wishes, verb)
    wishes = settled(wishes)
    if wishes.name:
        check_folder(wishes.runs, wishes.name, resume=wishes.resume)  # before a plan is made, because that takes a while
    job = verb.job_of(wishes)
    if is_over(wishes):
        show_end(job, wishes, verb)
        return 0
    is_gpu = on_gpus(job.plan)
    check_job(job, reads_corpus=True)
    check_folder(job.runs, job.name, resume=job.resume)
    check_place(job.plan, job.plan.layout.num_ranks, is_gpu, job.ranks_per_gpu, local_ranks(job.plan, wishes))
    if verb.measures and wants_profile(wishes, job.plan):
        job = with_measured_plan(job, wishes)
    show_start(job, layout_reason(wishes, job.plan, verb.reason))
    # Torch is loaded from here on, which takes seconds: mistakes on the command line have been reported before.
    check_with_torch(job)
    code = _kept_going(wishes, job, is_gpu, verb) if wishes.keep_going else run_once(job, is_gpu)[0]
    if code and code != INTERRUPTED and not job.resume:  # an interrupted run is kept: the next --resume must not take an older run
        discard_unstarted(job.folder)
    if code in (0, INTERRUPTED) and (job.folder / "run.json").is_file():  # an interrupt may come before the run exists
        show_end(job, wishes, verb)
    return code


def run_once(job: TrainingJob, is_gpu: bool) -> tuple[int, Failure | None]:
    """Run the ranks until they end; the exit status, and why they ended too early."""
    from meshwright.train.launch import run_ranks
    from meshwright.train.record.ending import record_failure
    from meshwright.train.session import run_rank

    found: list[Failure] = []

    def failed(failure: Failure, store: SealedStore) -> None:
        record_failure(job.folder, failure, store)
        found.append(failure)

    code = run_ranks(job.plan.layout.num_ranks, lambda place: run_rank(place, job, is_gpu), failed)
    if code and (unstored := store_end(job)):
        print(f"meshwright: {unstored}", file=sys.stderr)
    return code, found[0] if found else None


def _kept_going(wishes: Wishes, job: TrainingJob, is_gpu: bool, verb: Verb) -> int:
    from meshwright.cli.keep_going import kept_going

    return kept_going(wishes, job, is_gpu, verb)


def settled(wishes: Wishes) -> Wishes:
    """The options with the name of the run and whether it continues; if it does, with all options that it was started with."""
    wishes = with_local_runs(wishes)
    if wishes.resume_if_exists:
        if not wishes.name:
            raise InputError("which run should be started or continued?", where="--resume-if-exists", fix="name it: --name NAME")
        folder = wishes.runs / check_name(wishes.name)
        wishes = replace(wishes, resume=(folder / "run.json").is_file() and not is_unstarted(folder))
    if not wishes.resume:
        return wishes
    if not wishes.name:
        wishes = replace(wishes, name=newest_run(wishes.runs))
        print(f"meshwright: continuing the newest run, {wishes.runs / wishes.name}", file=sys.stderr)
    if not (wishes.runs / check_name(wishes.name)).is_dir():
        fix = "name a run that is there, or start it: --resume-if-exists does either"
        raise InputError(f"no run named {wishes.name!r}", where=str(wishes.remote or wishes.runs), fix=fix)
    return with_kept(wishes)


def is_over(wishes: Wishes) -> bool:
    """Whether a resumed run has nothing left to do: it has reached its target, and no more steps are asked for."""
    if not (wishes.resume_if_exists and wishes.resume) or "steps" in wishes.given:
        return False
    return read_header(wishes.runs / wishes.name).status == "target_reached"


def is_launched(environment: Mapping[str, str]) -> bool:
    """Whether a launcher started this process as a rank."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def run_launched(wishes: Wishes, verb: Verb) -> int:
    """Train as the rank that a launcher started this process as. An error that all ranks find is printed once."""
    from meshwright.train.checks import check_job

    is_first = os.environ["RANK"] == "0"
    if not wishes.name:
        raise InputError("ranks that a launcher starts need the run's name", where="--name", fix="add --name NAME")
    if wishes.keep_going:
        fix = "let the launcher start them again: torchrun --max-restarts N, and --resume-if-exists instead"
        raise InputError("ranks that a launcher starts cannot start others again", where="--keep-going", fix=fix)
    secret = b""
    try:
        secret = secret_of(wishes)
        wishes = settled(wishes)
        job = verb.job_of(wishes)
        if is_over(wishes):
            return 0
        is_gpu = on_gpus(job.plan)
        material = check_job(job, reads_corpus=is_first)
        check_place(job.plan, int(os.environ["WORLD_SIZE"]), is_gpu, job.ranks_per_gpu)
        check_with_torch(job)
    except InputError as error:
        if is_first or is_retried(os.environ):  # torchrun ends rank 0 with the first rank that fails, perhaps before it has printed
            raise
        _report_alone(wishes, secret, error)
        return 2
    from meshwright.train.agreement import agree, check_shared, facts_of, needs_shared_folder
    from meshwright.train.launch import ReportedElsewhere, explain_failure, leave
    from meshwright.train.session import run_rank

    try:
        place = _met(wishes.rendezvous_timeout_s, secret)
        agree(place, facts_of(job, material.digest))
        if needs_shared_folder(job):
            check_shared(place, job.remote or job.runs)
        if is_first:
            show_start(job, layout_reason(wishes, job.plan, verb.reason))
        run_rank(place, job, is_gpu)
    except ReportedElsewhere:
        leave(2)
    except Held as error:
        raise _passing(error) from None
    except MeshwrightError:
        if is_first and not job.resume:
            discard_unstarted(job.folder)
        raise
    except RuntimeError as error:
        print(explain_failure(error, int(os.environ["RANK"]))[1], file=sys.stderr)
        leave(1)  # gloo would wait for the ranks that have gone, and a launcher for this one
    if is_first:
        show_end(job, wishes, verb)
    return 0


def secret_of(wishes: Wishes) -> bytes:
    """The secret of the job; empty if none was given."""
    if not wishes.secret:
        return b""
    from meshwright.train.sealed import read_secret

    return read_secret(wishes.secret)


def check_with_torch(job: TrainingJob) -> None:
    """The checks that need torch, which takes seconds to load: the others have been made before."""
    from meshwright.train.saves import check_steps

    if job.remote:
        apart(lambda: check_steps(job))
    else:
        check_steps(job)
    share_gpus(job)


def _met(timeout_s: float, secret: bytes) -> Place:
    """This rank's place. Ranks that do not meet are not wrong input: they may meet in the next attempt."""
    from meshwright.train.meeting import meet

    try:
        return meet(os.environ, timeout_s, secret)
    except InputError as error:
        raise _passing(error) from None


def _passing(error: InputError) -> MeshwrightError:
    """The same message as an error that may have passed when a launcher tries again."""
    return MeshwrightError(error.what, where=error.where, fix=error.fix)


def _report_alone(wishes: Wishes, secret: bytes, error: InputError) -> None:
    """Tell rank 0 what this rank finds wrong. If rank 0 finds the same, it has printed it and does not come."""
    from meshwright.train.agreement import agree
    from meshwright.train.meeting import meet

    with suppress(MeshwrightError, RuntimeError):
        agree(meet(os.environ, wishes.rendezvous_timeout_s, secret), {}, trouble=f"{error.what} ({error.where})")


def show_end(job: TrainingJob, wishes: Wishes, verb: Verb) -> None:
    """Print how the run went, and how to continue a run that was stopped."""
    status = show_run(job.folder, job.plan, as_json=wishes.as_json)
    show_next(job)
    if status in ENDED_WELL:
        verb.finish(job)
    if status == "stopped" and not job.saves_at_end:
        print("meshwright: stopped; nothing was saved, as --no-save asks, so the run cannot be continued", file=sys.stderr)
    elif status == "stopped":
        where = str(job.remote or job.runs)
        again = shlex.join(["meshwright", verb.name, "--runs", where, "--name", job.name, "--resume", *more_money(job)])
        print(f"meshwright: stopped and saved; continue with: {again}", file=sys.stderr)


def torch_or_error() -> None:
    """Raise an error that says how to install torch, if it is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "safetensors", "tokenizers") if find_spec(name) is None]
    if missing:
        raise InputError(f"training needs {', '.join(missing)}", where="this Python", fix="pip install 'meshwright[train]'")


def job_of(wishes: Wishes) -> TrainingJob:
    """The job that the command line describes."""
    if wishes.name:
        check_name(wishes.name)
    plan = plan_of(wishes)
    corpus = corpus_of(wishes, plan)
    name = wishes.name or f"{plan.model.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    arguments = kept_arguments(wishes, None if is_embedded(wishes, plan) else named_corpus(wishes, plan))
    return made_job(replace(wishes, name=name), plan, corpus, arguments)


def made_job(wishes: Wishes, plan: Plan, corpus: Path, arguments: Mapping[str, Any], tuned: Tuned | None = None) -> TrainingJob:
    """The job of a plan with everything that the command line asks for."""
    from meshwright.train.benchmark.settings import OWN
    from meshwright.train.job import TrainingJob

    memberships, deals = _memberships(wishes, plan)
    job = TrainingJob(
        plan=plan,
        runs=wishes.runs,
        remote=wishes.remote,
        name=wishes.name,
        corpus=corpus,
        data=tuned.data if tuned else None,
        adapter=tuned.adapter if tuned else None,
        seed=wishes.seed,
        num_steps=wishes.steps,
        resume=wishes.resume,
        benchmark=wishes.benchmark or OWN,
        checkpoint_steps=wishes.checkpoint_every or 0,
        saves_by_clock=wishes.save and wishes.checkpoint_every is None,
        saves_at_end=wishes.save,
        keep_last=wishes.keep,
        keep_every=wishes.keep_every,
        stall_timeout_s=wishes.stall_timeout_s,
        grace_s=wishes.grace_s,
        allow_changed=wishes.allow_changed,
        start_from=wishes.start_from,
        plan_text=plan_bytes(plan),
        arguments=arguments,
        may_start_over=wishes.resume_if_exists,
        prints_json=wishes.as_json,
        ranks_per_gpu=wishes.ranks_per_gpu,
        trace_from=wishes.trace_from,
        skip_batches=wishes.skip_batches,
        spike_deviations=wishes.spike_deviations,
        rebalances=wishes.rebalance,
        bad_nodes=wishes.bad_nodes,
        memory_steps=wishes.memory_every,
        memberships=memberships,
        deals=deals,
    )
    return with_budget(job, wishes.budget, wishes.price)


def _memberships(wishes: Wishes, plan: Plan) -> tuple[tuple[Membership, ...], tuple[Dealt, ...]]:
    """The numbers of replicas that the run follows, if it follows another run's, and how micro-batches were dealt to them."""
    if wishes.memberships is None:
        return (), ()
    from meshwright.train.membership import check_deal, check_replicas, dp_at, layout_with, read_memberships

    where = f"--memberships {wishes.memberships}"
    if wishes.resume or not wishes.keep_going:
        fix = "leave out --resume, and add --keep-going" if wishes.resume else "add --keep-going"
        raise InputError("only a new run that keeps going can follow the memberships of another", where=where, fix=fix)
    found, deals = read_memberships(wishes.memberships)
    for one in found:
        check_replicas(plan.layout, plan.workload, one.dp, where)
    for dealt in deals:
        check_deal(layout_with(plan.layout, dp_at(found, dealt.after_step + 1)), plan.workload, dealt, where)
    return tuple(found), tuple(deals)


def plan_of(wishes: Wishes) -> Plan:
    """The plan that is asked for: from a file, the resumed run's own, or the embedded default made for this machine."""
    path = wishes.plan
    if path is None and wishes.resume:
        path = wishes.runs / wishes.name / "plan.json"
        if path.is_file():  # a missing file is reported where it is needed
            fix = f"put the run's own plan back, or name the plan to continue with: meshwright train PLAN --resume --name {wishes.name}"
            checked_plan(path.parent, fix)
    if path is None:
        return default_plan(wishes.layout, wishes.profile, wishes.ranks_per_gpu)
    plan = read_plan(path)
    return with_layout(plan, wishes.layout, wishes.profile) if wishes.layout or wishes.profile else plan


def with_layout(plan: Plan, text: str, profile: str = "") -> Plan:
    """The plan with other degrees or another hardware profile, priced again; with the plan's own profile if none is named.

    If the degrees need another number of accelerators, the cluster is cut or extended to that number.
    """
    layout = parse_layout(text, plan.layout) if text else plan.layout
    if text and "vp" not in read_choices(text) and layout.pp == 1:
        layout = replace(layout, vp=1)
    cluster, note = sized(plan.cluster, layout.num_ranks)
    own = on_profile(software(), plan.profile) if plan.profile and not profile else ""  # it was checked when the plan was made
    job = Job(plan.model, cluster, plan.workload, own, profile=profile)
    return noted(planned(job.forecast(layout), plan.name), note)


def sized(cluster: Cluster, num_ranks: int) -> tuple[Cluster, str]:
    """The cluster with so many accelerators in use, and a note if this needs more machines than the cluster describes.

    A user who starts ranks on several machines has them. The network between them is not known here; only the price depends on it.
    """
    if num_ranks == cluster.num_accelerators:
        return cluster, ""
    last = cluster.tiers[-1]
    if num_ranks > cluster.num_installed and not cluster.is_fabric(last) and num_ranks % last.num_installed == 0:
        whole = tuple(replace(tier, num_accelerators=tier.num_installed) for tier in cluster.tiers)
        network = replace(last, name="network", num_accelerators=num_ranks, num_installed=num_ranks, routing="adaptive")
        count = num_ranks // last.num_installed
        return replace(
            cluster, tiers=(*whole, network)
        ), f"{count} x {cluster.name}: the network between them is assumed to be as fast as {last.link}"
    try:
        return cluster.resized(num_ranks), ""
    except InputError as error:
        raise InputError(error.what, where="--layout", fix=f"{error.fix} ranks" if error.fix else "use fewer ranks") from error


def noted(plan: Plan, note: str) -> Plan:
    """The plan with one more note."""
    return replace(plan, notes=(*plan.notes, note)) if note else plan


def default_plan(layout_text: str, profile: str = "", ranks_per_gpu: int = 1) -> Plan:
    """The embedded default, planned for this machine: its GPUs, or its cores as two racks of four."""
    model, workload = load_model(DEFAULT_MODEL), load_workload(DEFAULT_WORKLOAD)
    gpus = gpu_names()
    if gpus:
        cluster: Cluster = load_cluster(THIS_MACHINE)
        num_ranks = len(gpus) * ranks_per_gpu
        base = Layout(dp=num_ranks, micro_batch=max(workload.global_batch // num_ranks, 1))
    else:
        cluster, base = load_cluster(EMULATED), DEFAULT_LAYOUT
    layout = fixed_layout(layout_text, base) if layout_text else base
    cluster, note = sized(cluster, layout.num_ranks)
    return noted(planned(Job(model, cluster, workload, profile=profile).forecast(layout)), note)


def wants_profile(wishes: Wishes, plan: Plan) -> bool:
    """Whether the embedded default is about to run on shared cores that were not measured yet."""
    is_default = wishes.plan is None and not wishes.resume and not wishes.profile
    return is_default and not on_gpus(plan) and plan.profile is None and plan.layout.num_ranks > 1


def with_measured_plan(job: TrainingJob, wishes: Wishes) -> TrainingJob:
    """The job planned with a profile of this machine, measured now and kept: only that shows how long processes on shared cores wait."""
    from meshwright.cli.measure import profile_cores
    from meshwright.describe.profile import usual_path

    print(
        f"meshwright: measuring this machine first (about 20 s, once): the profile is kept in {usual_path()}; --profile none skips this",
        file=sys.stderr,
        flush=True,
    )
    try:
        with progress_line() as report:
            profile_cores(report)
    except (MeshwrightError, OSError) as error:
        print(f"meshwright: this machine could not be measured, so the prediction does without it: {error}", file=sys.stderr)
        return job
    plan = default_plan(wishes.layout)
    return replace(job, plan=plan, plan_text=plan_bytes(plan))


def fixed_layout(text: str, base: Layout) -> Layout:
    """The layout in a text; degrees that it leaves out are 1, other choices are those of the default."""
    alone = replace(base, tp=1, cp=1, pp=1, vp=1, dp=1)
    return parse_layout(text, alone)


def layout_reason(wishes: Wishes, plan: Plan, usual: Callable[[Plan], str]) -> str:
    """Where the layout comes from, in words; `usual`: why it is so where nothing was asked for."""
    if wishes.layout:
        return "as --layout asks"
    if wishes.resume:
        return "as the run was started"
    if wishes.plan is not None:
        return f"as in the plan {wishes.plan.name}"
    return usual(plan)


def default_reason(plan: Plan) -> str:
    """Why the embedded default has its layout, in words."""
    if on_gpus(plan):
        return "a full copy of the model on each GPU: it is small enough"
    return "the cores stand for two racks of four accelerators, each with one copy of the model, so that every kind of exchange occurs"


def is_embedded(wishes: Wishes, plan: Plan) -> bool:
    """Whether the run trains on the embedded corpus, which is made on this machine if it is missing."""
    return wishes.corpus is None and plan.workload.training is not None and plan.workload.training.corpus == EMBEDDED_CORPUS


def named_corpus(wishes: Wishes, plan: Plan) -> Path:
    """The corpus as the command line or the workload names it: a folder or a URL."""
    return wishes.corpus or Path(plan.workload.training.corpus if plan.workload.training else "")


def corpus_of(wishes: Wishes, plan: Plan) -> Path:
    """The folder of the corpus; the embedded corpus is made if it does not exist yet."""
    if wishes.corpus is not None:
        return corpus_here(wishes.corpus)
    named = plan.workload.training.corpus if plan.workload.training else ""
    if not named:
        raise InputError(
            "no corpus to train on", where="workload.training.corpus", fix="give one: --corpus DIR (see `meshwright corpus build`)"
        )
    if named != EMBEDDED_CORPUS:
        return corpus_here(Path(named))
    from meshwright.train.data.standard_library import default_corpus

    with progress_bar() as report:
        return default_corpus(cache_folder(), plan.model.vocab_size, report=report).folder


def on_gpus(plan: Plan) -> bool:
    """Whether the plan's accelerators are GPUs."""
    return plan.cluster.accelerator.architecture != "cpu"


def share_gpus(job: TrainingJob) -> None:
    """Prepare for several ranks on one GPU, if they are asked for; an error says what is missing."""
    if job.ranks_per_gpu == 1:
        return
    import torch  # noqa: F401 - loads the NCCL library, whose version is checked below

    from meshwright.train.shared_gpu import allow_sharing, check_sharing, loaded_nccl

    check_sharing(loaded_nccl(), os.environ)
    allow_sharing(os.environ)


def local_ranks(plan: Plan, wishes: Wishes) -> int:
    """The ranks of the plan that run on this node; a spare may have to run those of the largest."""
    sizes = node_sizes(plan, wishes.nodes)
    return sizes[wishes.node] if wishes.node < len(sizes) else max(sizes)


def node_sizes(plan: Plan, num_nodes: int) -> list[int]:
    """The number of ranks of each node: as the plan's rank map has it, or else the same number for all but the last."""
    sizes = Seats.of(plan).sizes
    if num_nodes == len(sizes):
        return sizes
    num_ranks = plan.layout.num_ranks
    size = -(-num_ranks // num_nodes)
    if size * (num_nodes - 1) >= num_ranks:
        raise InputError(
            f"{num_ranks} ranks cannot be dealt to {num_nodes} nodes",
            where=f"--nodes {num_nodes}",
            fix=f"the plan has them on {len(sizes)}",
        )
    return [min(size, num_ranks - first) for first in range(0, num_ranks, size)]


def check_place(plan: Plan, num_ranks: int, is_gpu: bool, ranks_per_gpu: int = 1, num_local: int = 0) -> None:
    """Raise an error if the plan does not fit this machine; it says what the plan needs and what is here."""
    if num_ranks != plan.layout.num_ranks:
        raise InputError(
            f"the plan needs {plan.layout.num_ranks} ranks ({plan.layout.degrees}), and {num_ranks} were started",
            where="the launcher",
            fix=f"start {plan.layout.num_ranks} ranks, or give --layout with degrees whose product is {num_ranks}",
        )
    if not is_gpu:
        if ranks_per_gpu > 1:
            raise InputError(
                f"the plan is for {plan.cluster.accelerator.name}, which is no GPU",
                where=argument("ranks_per_gpu"),
                fix="leave it out: ranks on a processor share its cores anyway",
            )
        return
    here = len(gpu_names())  # not torch's count: after that call, forked ranks could not use a GPU
    num_local = num_local or min(plan.layout.num_ranks, int(os.environ.get("LOCAL_WORLD_SIZE", plan.layout.num_ranks)))
    needed = -(-num_local // ranks_per_gpu)
    if here < needed:
        kind = plan.cluster.accelerator.name
        raise InputError(
            f"the plan needs {needed} {kind} here, and this machine has {f'{here} GPUs' if here else 'no NVIDIA GPU'}",
            where=f"plan {plan.name}",
            fix="start it with torchrun on all nodes of the plan's cluster, plan for this-machine, "
            f"or let ranks share GPUs to try the layout: {argument('ranks_per_gpu')}",
        )


TRAIN = Verb(name="train", job_of=job_of, reason=default_reason, finish=lambda job: None, measures=True)
