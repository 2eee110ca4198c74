"""All that can be known of a job or a folder before ranks start and before torch is loaded, which takes seconds."""

from __future__ import annotations

import math
import os
from pathlib import Path

from meshwright.describe.config_json import CONFIG
from meshwright.errors import InputError
from meshwright.record.header import check_name
from meshwright.record.lock import check_free
from meshwright.record.writer import is_free, is_unstarted
from meshwright.train.data.corpus import Corpus
from meshwright.train.data.samples import Samples, validation_samples
from meshwright.train.job import Job, log_settings
from meshwright.train.record.mlperf import check_settings

PLAN = "plan.json"


def check_job(job: Job, *, reads_corpus: bool = False) -> Corpus:
    """Check all that can be known before ranks start; the corpus, opened. `reads_corpus`: compare its hashes, where that takes seconds."""
    workload = job.plan.workload
    corpus = Corpus.open_checked(job.corpus) if reads_corpus else Corpus.open(job.corpus)
    if corpus.vocab_size > job.plan.model.vocab_size:
        raise InputError(
            f"the corpus has tokens up to {corpus.vocab_size - 1} and the model a vocabulary of {job.plan.model.vocab_size}",
            where=str(job.corpus),
            fix=f"build the corpus with --tokenizer train:{job.plan.model.vocab_size}, or choose a model with a larger vocabulary",
        )
    samples = Samples(corpus.train, workload.seq_len, job.seed)
    samples.check_holds(workload.global_batch)
    if workload.evaluation:
        validation_samples(corpus.valid, workload.seq_len, workload.evaluation.num_samples)
    check_settings(job.benchmark, log_settings(job, len(samples), machine=""))
    if job.start_from is not None:
        _check_first_weights(job.start_from)
    return corpus


def _check_first_weights(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError("no such folder", where=str(folder), fix=f"give the folder that holds {CONFIG} and the weights")
    from meshwright.train.interop.huggingface import load_huggingface

    load_huggingface(folder)


def check_folder(runs: Path, name: str, *, resume: bool) -> None:
    """Pass where a new run can be made, or one to go on with is there; changes nothing."""
    folder = runs / check_name(name)
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        what = "is no folder" if not nearest.is_dir() else "cannot be written to"
        raise InputError(f"{nearest.name or nearest} {what}", where=str(folder), fix="choose another place: --runs DIR")
    is_there = folder.is_dir() and not is_free(folder) and not is_unstarted(folder)
    if resume and not is_there:
        raise InputError(f"no run named {name!r}", where=str(runs), fix="name the run to go on with: --name NAME --resume")
    if is_there and not resume:
        raise InputError("the run's folder exists and is not empty", where=str(folder), fix="use another name, or go on with --resume")
    if folder.is_dir():
        check_free(folder)


def check_new_folder(folder: Path) -> None:
    """Pass where nothing is at `folder`, or an empty folder."""
    if os.path.lexists(folder) and not (folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())):
        raise InputError("there is something already", where=str(folder), fix="name a folder that does not exist yet")


def check_trained(folder: Path) -> None:
    """Pass where `folder` is a run's or a Hugging Face model's."""
    if (folder / PLAN).is_file() or (folder / CONFIG).is_file():
        return
    raise InputError(
        f"this holds neither a run ({PLAN}) nor a Hugging Face model ({CONFIG})" if folder.is_dir() else "no such folder",
        where=str(folder),
        fix="give a folder that meshwright train wrote (runs/NAME), or one with config.json, model.safetensors and tokenizer.json",
    )


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Pass where tokens can be drawn so."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"temperature {temperature:g} is not 0 or more", where="temperature", fix="0 is greedy; 0.8 is common")
    if top_k < 0:
        raise InputError(f"top_k {top_k} is not 0 or more", where="top_k", fix="0 draws from all tokens")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p {top_p:g} is not above 0 and at most 1", where="top_p", fix="1 draws from all tokens")
