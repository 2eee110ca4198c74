"""What can be known of a job is said before its ranks start: of corpus, batch, evaluation, the log's name, the first weights."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from llamas import MODEL as SAVED
from llamas import weights_of
from small_run import EVALUATION, MODEL, Small, make_corpus

from meshwright.errors import InputError
from meshwright.train.checks import check_job
from meshwright.train.data.corpus import Corpus
from meshwright.train.interop.huggingface_save import save_huggingface
from meshwright.train.job import TrainingJob


def job(small: Small, corpus: Path | None = None, **changes: Any) -> TrainingJob:
    plan = small.plan("dp=2", model=changes.pop("model", MODEL), **changes.pop("workload", {}))
    return TrainingJob(plan=plan, runs=Path("runs"), name="a", corpus=corpus or small.corpus, **changes)


def refusal(wrong: TrainingJob, **options: bool) -> InputError:
    with pytest.raises(InputError) as caught:
        check_job(wrong, **options)
    return caught.value


@pytest.mark.parametrize("reads_corpus", [False, True])
def test_a_job_that_can_run_gives_its_corpus_opened(small: Small, reads_corpus: bool) -> None:
    found = check_job(job(small, workload={"evaluation": EVALUATION}), reads_corpus=reads_corpus)
    assert found.tokenizer.vocab_size == MODEL.vocab_size and len(found.train.batch([0]).tokens[0]) == found.train.seq_len
    assert found.valid is not None and not found.counts_correct


def test_a_plan_written_by_hand_must_divide(small: Small) -> None:
    good = job(small)
    layout = replace(good.plan.layout, micro_batch=8)  # two replicas of 8 would need 16 sequences a step
    error = refusal(replace(good, plan=replace(good.plan, layout=layout)))
    assert "8" in error.what and error.fix


def test_a_corpus_with_more_tokens_than_the_model_has_is_refused(small: Small) -> None:
    error = refusal(job(small, model=replace(MODEL, vocab_size=256)))
    assert error.what == "the corpus has tokens up to 511 and the model a vocabulary of 256"
    assert error.where == str(small.corpus) and "--tokenizer train:256" in error.fix


def test_a_model_with_a_larger_vocabulary_than_the_corpus_is_fine(small: Small) -> None:
    check_job(job(small, model=replace(MODEL, vocab_size=1024)))


def test_a_corpus_that_is_not_there(small: Small, tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refusal(job(small, tmp_path / "none")).where


def test_a_corpus_of_less_than_a_batch_is_refused(small: Small, tmp_path: Path) -> None:
    few = make_corpus(tmp_path, num_documents=2, num_words=60, vocab_size=300)
    error = refusal(job(small, few))
    assert "one batch needs 8" in error.what


def test_an_evaluation_needs_its_samples(small: Small) -> None:
    evaluation = replace(EVALUATION, num_samples=10**6)
    assert "an evaluation needs 1000000" in refusal(job(small, workload={"evaluation": evaluation})).what


def test_bytes_that_were_changed_are_found_where_hashes_are_read(small: Small, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, num_documents=20)
    tokens = Corpus.open(corpus).train.token_file.path
    content = bytearray(tokens.read_bytes())
    content[len(content) // 2] ^= 1
    tokens.write_bytes(content)
    check_job(job(small, corpus))  # sizes alone are the same
    assert tokens.name in str(refusal(job(small, corpus), reads_corpus=True))


def test_an_official_name_needs_the_benchmarks_settings(small: Small) -> None:
    assert "the run is not MLPerf's llama31_8b" in refusal(job(small, benchmark="llama31_8b")).what
    assert "no benchmark named 'mine'" in refusal(job(small, benchmark="mine")).what


def test_first_weights_are_looked_at_too(small: Small, tmp_path: Path) -> None:
    error = refusal(job(small, start_from=tmp_path / "none"))
    assert (error.what, error.where) == ("no such folder", str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refusal(job(small, start_from=tmp_path / "empty")).where
    save_huggingface(tmp_path / "saved", SAVED, weights_of(SAVED), context=64, dtype=torch.float32)
    check_job(job(small, start_from=tmp_path / "saved"))
    (tmp_path / "saved" / "model.safetensors").write_bytes(b"no weights")
    assert "model.safetensors" in str(refusal(job(small, start_from=tmp_path / "saved")))


def test_a_job_is_checked_before_torch_is_loaded() -> None:
    code = "import sys, meshwright.train.checks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
