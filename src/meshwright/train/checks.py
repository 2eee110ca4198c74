"""Checks of a job that are made before ranks start and before torch is loaded, because loading torch takes seconds."""

from __future__ import annotations

from pathlib import Path

from meshwright.describe.config_json import CONFIG
from meshwright.errors import InputError
from meshwright.plan.stack.own import check_trainable
from meshwright.train.benchmark.settings import check_settings
from meshwright.train.data.corpus import Corpus
from meshwright.train.folders import PLAN
from meshwright.train.job import TrainingJob, log_settings
from meshwright.train.material import Material, corpus_material, tuning_material


def check_job(job: TrainingJob, *, reads_corpus: bool = False) -> Material:
    """Check everything about a job that can be checked before ranks start, and return what it is trained on.

    `reads_corpus` compares all its hashes, which can take seconds.
    """
    workload = job.plan.workload
    check_trainable(job.plan.model, workload, job.plan.layout)  # a plan file may have been written by hand, or for another stack
    if job.data:
        material = tuning_material(job.data)
        material.train.check_holds(workload.global_batch)
    else:
        material = corpus_material(_corpus(job, reads_corpus), workload, job.seed)
    check_settings(job.benchmark, log_settings(job, len(material.train), machine=""))
    if job.start_from is not None:
        _check_first_weights(job.start_from)
    return material


def _corpus(job: TrainingJob, reads_corpus: bool) -> Corpus:
    corpus = Corpus.open_checked(job.corpus) if reads_corpus else Corpus.open(job.corpus)
    if corpus.vocab_size > job.plan.model.vocab_size:
        raise InputError(
            f"the corpus has tokens up to {corpus.vocab_size - 1} and the model a vocabulary of {job.plan.model.vocab_size}",
            where=str(job.corpus),
            fix=f"build the corpus with --tokenizer train:{job.plan.model.vocab_size}, or choose a model with a larger vocabulary",
        )
    return corpus


def _check_first_weights(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError("no such folder", where=str(folder), fix=f"give the folder that holds {CONFIG} and the weights")
    from meshwright.train.interop.huggingface import load_huggingface

    if not (folder / PLAN).is_file():
        load_huggingface(folder)
