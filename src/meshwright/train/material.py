"""What a run is trained and evaluated on, wherever it comes from: a corpus, or a data set of conversations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.describe.workload import Workload
from meshwright.train.data.corpus import Corpus
from meshwright.train.data.samples import Samples, SampleSource, validation_samples
from meshwright.train.data.tokenizer import FILE_NAME, Tokenizer, tokenizer_config
from meshwright.train.tuning.dataset import DataSet
from meshwright.train.tuning.template import CONFIG, FILE


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """Samples to train on, samples to evaluate on, and the tokenizer that they were made with."""

    train: SampleSource
    valid: SampleSource | None  # None: nothing is evaluated
    digest: str  # identifies all of it
    tokenizer: Tokenizer
    files: Mapping[str, str]  # of the tokenizer, for the run folder
    counts_correct: bool = False  # whether evaluations also count tokens that are predicted correctly


def corpus_material(corpus: Corpus, workload: Workload, seed: int) -> Material:
    """The samples of a corpus."""
    evaluation = workload.evaluation
    train = Samples(corpus.train, workload.seq_len, seed)
    train.check_holds(workload.global_batch)  # first: more text also gives more to evaluate on
    return Material(
        train=train,
        valid=validation_samples(corpus.valid, workload.seq_len, evaluation.num_samples) if evaluation else None,
        digest=corpus.digest,
        tokenizer=corpus.tokenizer,
        files=tokenizer_files(corpus.tokenizer, workload.seq_len),
    )


def tuning_material(data: DataSet) -> Material:
    """The samples of a data set for fine-tuning."""
    tokenizer, template = data.marker.tokenizer, data.marker.template
    more = {"bos_token": template.tokens["bos_token"]} if template.tokens.get("bos_token") else {}
    return Material(
        train=data.train,
        valid=data.valid,
        digest=data.digest,
        tokenizer=tokenizer,
        files={**tokenizer_files(tokenizer, data.train.seq_len, more), FILE: template.source},
        counts_correct=True,
    )


def tokenizer_files(tokenizer: Tokenizer, context: int, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The files of a tokenizer, with its end-of-document token, so that a folder is complete."""
    config = {**tokenizer_config(tokenizer, context), **(more or {})}
    return {FILE_NAME: tokenizer.content.decode(), CONFIG: json.dumps(config, indent=2) + "\n"}
