"""What a run is trained on: samples of a corpus, or of conversations, with the files of the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from small_run import Small
from tuned import write_data, write_model

from meshwright.train.data.corpus import Corpus
from meshwright.train.data.tokenizer import read_tokenizer
from meshwright.train.material import corpus_material, tuning_material
from meshwright.train.tuning.dataset import Choices, prepare
from meshwright.train.tuning.marking import Marker
from meshwright.train.tuning.template import read_template


def test_a_corpus_is_evaluated_only_if_the_workload_says_so(small: Small) -> None:
    plan = small.plan("dp=2")
    corpus = Corpus.open(small.corpus)
    material = corpus_material(corpus, plan.workload, 0)
    assert (material.valid is None) == (plan.workload.evaluation is None)
    assert material.digest == corpus.digest and not material.counts_correct
    assert set(material.files) == {"tokenizer.json", "tokenizer_config.json"}


def test_conversations_bring_their_template(tmp_path: Path) -> None:
    model, data = write_model(tmp_path / "model"), write_data(tmp_path)
    tokenizer = read_tokenizer(model)
    marker = Marker(tokenizer, read_template(model, tokenizer.special_tokens, tokenizer.end_of_document_token))
    material = tuning_material(prepare(data, marker, Choices()))
    assert material.counts_correct and material.valid is not None and len(material.train) == 22
    assert material.files["chat_template.jinja"] == marker.template.source
    assert json.loads(material.files["tokenizer_config.json"])["bos_token"] == "<|endoftext|>"
