"""What `meshwright tune` does: read model and data, plan, start the ranks, and write what was tuned."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from meshwright.cli.train_arguments import Wishes, kept_arguments, newest_run
from meshwright.cli.train_run import Tuned, Verb, fixed_layout, made_job, noted, sized, torch_or_error
from meshwright.cli.train_run import plan_of as trained_plan
from meshwright.cli.train_run import run as run_ranks
from meshwright.cli.tune_arguments import Tuning, adapters_of, with_kept
from meshwright.describe.config_json import CONFIG
from meshwright.describe.load import EMULATED, THIS_MACHINE, load_cluster
from meshwright.describe.model import Model
from meshwright.describe.products import adapted_matrices
from meshwright.describe.this_machine import gpu_names
from meshwright.describe.workload import Adapters, Evaluation, Training, Workload
from meshwright.errors import InputError, printable
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.ledger import checked_plan
from meshwright.plan.plan import Plan, read_plan
from meshwright.plan.plan import plan_of as planned

if TYPE_CHECKING:
    from meshwright.train.job import TrainingJob
    from meshwright.train.tuning.dataset import Choices, DataSet
    from meshwright.train.tuning.marking import Marker

USUAL_BATCH = 16
USUAL_ANSWERS = 3  # that are shown for the project's own instruction set
FULL_RATE = 2e-5
# Adapters: as in the paper of QLoRA (arXiv:2305.14314), 2e-4 at a width of 4,096 and half of it at 8,192. The small model that the trainer
# makes learns almost nothing at that rate and much at 5e-3 (docs/tune.md), and nothing higher was better.
LORA_RATE, LORA_WIDTH, HIGHEST_RATE = 2e-4, 4096, 5e-3
WARMUP = 0.03  # of all samples
LENGTH_MULTIPLE = 16
MOST_MICRO_BATCH = 16


@dataclass(frozen=True, slots=True)
class Given:
    """The model that is tuned: its folder, its shapes, and the longest sequence it reads."""

    folder: Path
    model: Model
    context: int


def run(tuning: Tuning, wishes: Wishes) -> int:
    """Tune, show the result, and return the exit status."""
    torch_or_error()
    count = tuning.answers if tuning.answers is not None else 0 if wishes.corpus else USUAL_ANSWERS
    verb = Verb(
        name="tune",
        job_of=lambda asked: tuning_job(tuning, asked),
        reason=lambda plan: "planned for this machine",
        finish=lambda job: finish(job, count),
        measures=False,
    )
    return run_ranks(wishes, verb)


def tuning_job(tuning: Tuning, wishes: Wishes) -> TrainingJob:
    """The job that the command line describes."""
    tuning = with_kept(tuning, wishes)
    given, path = given_model(wishes), data_path(wishes)
    plan, data = planned_data(tuning, wishes, given, path)
    for line in data.losses.words(data.train.seq_len):
        print(f"meshwright: {line}", file=sys.stderr)
    asked = replace(wishes, start_from=given.folder)
    arguments = {**kept_arguments(asked, path), **tuning.kept()}
    return made_job(asked, plan, path, arguments, Tuned(data, Path(tuning.adapter) if tuning.adapter else None))


def given_model(wishes: Wishes) -> Given:
    """The model to tune: the named folder, or without one the newest run."""
    folder = wishes.start_from
    if folder is None:
        folder = wishes.runs / newest_run(wishes.runs)
        print(f"meshwright: tuning the newest run, {folder}", file=sys.stderr)
    from meshwright.train.folders import PLAN

    if (folder / PLAN).is_file():
        plan = checked_plan(folder, "put the run's own plan back")
        return Given(folder, plan.model, plan.workload.seq_len)
    if not folder.is_dir() or not (folder / CONFIG).is_file():
        missing = "this is a file, not a folder" if folder.is_file() else "no such folder"
        what = f"this is no model: it has no {CONFIG}" if folder.is_dir() else missing
        raise InputError(what, where=str(folder), fix=f"give a Hugging Face folder with {CONFIG}, weights and tokenizer.json, or a run")
    from meshwright.train.interop.huggingface import load_huggingface, longest_context

    model, _ = load_huggingface(folder)
    return Given(folder, model, longest_context(folder) or 2**20)


def data_path(wishes: Wishes) -> Path:
    """The data set: the named one, or without one the project's own small instruction set."""
    if wishes.corpus is not None:
        return wishes.corpus
    from meshwright.train.tuning.instructions import write_instructions

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"
    return write_instructions(cache)


def marker_of(given: Given, loss: str) -> Marker:
    """How examples become tokens for a model."""
    from meshwright.train.data.tokenizer import read_tokenizer
    from meshwright.train.tuning.marking import Marker
    from meshwright.train.tuning.template import read_template

    tokenizer = read_tokenizer(given.folder)
    if tokenizer.vocab_size > given.model.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {given.model.vocab_size}",
            where=str(given.folder),
            fix="use the model's own tokenizer.json",
        )
    template = read_template(given.folder, tokenizer.special_tokens, tokenizer.end_of_document_token)
    if template.is_plain:
        print("meshwright: the model has no chat template: conversations are written as plain text", file=sys.stderr)
    return Marker(tokenizer, template, loss)


def planned_data(tuning: Tuning, wishes: Wishes, given: Given, path: Path) -> tuple[Plan, DataSet]:
    """The plan, and the data in sequences as long as the plan has them."""
    from meshwright.train.tuning.dataset import prepare

    if tuning.pack and given.model.num_positions:
        what = f"{given.model.name} has learned positions, which would not begin anew for each sample of a pack"
        raise InputError(what, where="--pack", fix="leave it out: samples then have sequences of their own")
    marker = marker_of(given, tuning.loss)
    if wishes.resume:
        plan = trained_plan(wishes)
        return plan, prepare(path, marker, choices_of(tuning, wishes, given, plan.workload.seq_len))
    stated = stated_plan(wishes, given)
    seq_len = tuning.seq_len or (stated.workload.seq_len if stated and stated.workload.adapters else None)
    data = prepare(path, marker, choices_of(tuning, wishes, given, seq_len))
    workload = workload_of(tuning, given.model, data, stated.workload if stated else None)
    return plan_for(wishes, given.model, workload, stated), data


def stated_plan(wishes: Wishes, given: Given) -> Plan | None:
    """The plan that is named, if it is for this model."""
    if wishes.plan is None:
        return None
    plan = read_plan(wishes.plan)
    if replace(plan.model, name=given.model.name, sources=given.model.sources) != given.model:
        fix = f"plan for {given.folder / CONFIG}"
        raise InputError(f"the plan is for {plan.model.name}, another model than that of {given.folder}", where=str(wishes.plan), fix=fix)
    return plan


def choices_of(tuning: Tuning, wishes: Wishes, given: Given, seq_len: int | None) -> Choices:
    """How the data set is prepared."""
    from meshwright.train.tuning.dataset import Choices

    return Choices(
        seq_len=seq_len,
        most_tokens=given.context,
        pack=tuning.pack,
        too_long=tuning.too_long,
        valid=Path(tuning.valid) if tuning.valid else None,
        valid_share=tuning.valid_share,
        seed=wishes.seed,
        multiple=math.gcd(LENGTH_MULTIPLE, given.context),
    )


def workload_of(tuning: Tuning, model: Model, data: DataSet, stated: Workload | None) -> Workload:
    """What is trained and until when. A plan for adapters has all of this; options that are given come first."""
    if stated and stated.adapters and stated.training:
        return replace(stated, seq_len=data.train.seq_len, packed=tuning.pack)
    adapters = started_adapters(tuning, model) if tuning.adapter else adapters_of(tuning, model)
    batch = tuning.batch or (stated.global_batch if stated else min(USUAL_BATCH, len(data.train)))
    num_samples = max(int(tuning.epochs * len(data.train)) // batch, 1) * batch
    usual = min(LORA_RATE * LORA_WIDTH / model.hidden, HIGHEST_RATE) if adapters else FULL_RATE
    return Workload(
        name="tune",
        model="",
        seq_len=data.train.seq_len,
        global_batch=batch,
        precision=tuning.precision or (stated.precision if stated else "bf16" if gpu_names() else "fp32"),
        num_tokens=float(num_samples * data.train.seq_len),
        evaluation=Evaluation(num_samples=len(data.valid), every_samples=float(max(len(data.train), batch))) if data.valid else None,
        adapters=adapters,
        training=Training(
            learning_rate=tuning.learning_rate or usual,
            warmup_samples=WARMUP * num_samples,
            decay_samples=float(num_samples),
            beta2=0.999,
            weight_decay=0.0,
            most_samples=float(num_samples),
        ),
        packed=tuning.pack,
    )


def started_adapters(tuning: Tuning, model: Model) -> Adapters:
    """The adapters of the folder that a run starts from; what is asked for must be the same."""
    from meshwright.train.interop.peft import load_peft

    found = load_peft(Path(tuning.adapter), model).adapters
    asked = adapters_of(tuning, model) if tuning.lora else None
    if asked and (asked.rank, asked.matrices, asked.scale) != (found.rank, found.matrices, found.scale):
        matrices = ", ".join(adapted_matrices(model, found))
        what = f"the adapter has rank {found.rank} on {matrices}, scaled by {found.scale:g}, and --lora asks for others"
        raise InputError(what, where=tuning.adapter, fix="leave out --lora, or ask for the same")
    return replace(found, base=tuning.base, dropout=asked.dropout if asked else found.dropout)


def plan_for(wishes: Wishes, model: Model, workload: Workload, stated: Plan | None) -> Plan:
    """The plan of a run: with the layout that is asked for, that of a plan file, or the best one for this machine."""
    if stated is not None:
        layout = fixed_layout(wishes.layout, stated.layout) if wishes.layout else stated.layout
        cluster, note = sized(stated.cluster, layout.num_ranks)
        return noted(planned(Job(model, cluster, workload, profile=wishes.profile).forecast(layout)), note)
    cluster = load_cluster(THIS_MACHINE if gpu_names() or not wishes.layout else EMULATED)
    if wishes.layout:
        layout = fixed_layout(wishes.layout, Layout())
        cluster, note = sized(cluster, layout.num_ranks)
        return noted(planned(Job(model, cluster, workload, profile=wishes.profile).forecast(layout)), note)
    if cluster.num_accelerators == 1 and not gpu_names():
        size = max(size for size in range(1, MOST_MICRO_BATCH + 1) if workload.global_batch % size == 0)
        return planned(Job(model, cluster, workload, profile=wishes.profile).forecast(Layout(micro_batch=size)))
    (best,) = Job(model, cluster, workload, profile=wishes.profile).search(keep=1, stack="meshwright")
    return planned(best)


def finish(job: TrainingJob, answers: int) -> None:
    """Write what was tuned: the adapter in PEFT's format, or the whole model. Show how it answers some questions, before and after."""
    from meshwright.train.interop.tuned import write_tuned

    path = write_tuned(job.folder)
    out = sys.stderr if job.prints_json else sys.stdout
    if answers:
        show_answers(job, answers, out)
    print(f"meshwright: wrote {path}; talk to it with: meshwright generate {job.folder} --chat --prompt TEXT", file=out)


def show_answers(job: TrainingJob, count: int, out: TextIO) -> None:
    """Print held-out questions with the model's answer before and after, and the answer of the data set."""
    import torch

    from meshwright.train.interop.trained import answer, load_trained

    assert job.data is not None and job.start_from is not None, "a job of tuning has both"
    samples = (job.data.valid or job.data.train).samples[:count]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before, after = load_trained(job.start_from, device), load_trained(job.folder, device)
    for sample in samples:
        start = int(sample.trained.argmax())
        rows = {"question": after.tokenizer.decode(sample.tokens[:start]), "before": answer(before, sample.tokens[:start].tolist())}
        rows |= {"after": answer(after, sample.tokens[:start].tolist()), "wanted": after.tokenizer.decode(sample.tokens[start:])}
        print("\n" + "\n".join(f"{key + ':':10}{printable(text.strip())!r:.300}" for key, text in rows.items()), file=out)


def shown_samples(tuning: Tuning, wishes: Wishes, count: int) -> Iterator[tuple[str, list[tuple[str, int, bool]]]]:
    """The first samples of the data set: the place of each, and every token as text and number with whether it is trained on."""
    from meshwright.train.tuning.dataset import prepare
    from meshwright.train.tuning.marking import decoded

    torch_or_error()
    given = given_model(wishes)
    marker = marker_of(given, tuning.loss)
    data = prepare(data_path(wishes), marker, choices_of(replace(tuning, valid_share=0.0), wishes, given, tuning.seq_len))
    text = decoded(marker)
    for sample in data.train.samples[:count]:
        pairs = zip(sample.tokens.tolist(), sample.trained.tolist(), strict=True)
        yield sample.where, [(text(token), token, trained) for token, trained in pairs]
