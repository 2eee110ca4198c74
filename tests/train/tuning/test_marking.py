"""Examples to tokens: prompts carry no loss, completions and their end do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from chats import STYLES, write_tokenizer

from meshwright.train.data.tokenizer import read_tokenizer
from meshwright.train.tuning.formats import Conversation, Plain
from meshwright.train.tuning.marking import Marker, covered, decoded
from meshwright.train.tuning.template import read_template


def marker_of(folder: Path) -> Marker:
    template, bos, eos = STYLES["mistral"]
    write_tokenizer(folder, template, bos, eos)
    tokenizer = read_tokenizer(folder)
    return Marker(tokenizer, read_template(folder, tokenizer.special_tokens, eos))


def test_a_completion_and_its_end_carry_loss(tmp_path: Path) -> None:
    marker = marker_of(tmp_path)
    sample = marker.sample(Plain(prompt="2 + 2 = ", completion="4", where="row 1"))
    text = decoded(marker)
    assert "".join(text(token) for token in sample.tokens[sample.trained]) == "4</s>"
    assert "".join(text(token) for token in sample.tokens) == "2 + 2 = 4</s>"


def test_a_plain_text_carries_loss_from_its_second_token_on(tmp_path: Path) -> None:
    sample = marker_of(tmp_path).sample(Plain(prompt="", completion="a few words", where="row 1"))
    assert not sample.trained[0] and sample.trained[1:].all()


def test_answers_in_a_prompt_of_messages_carry_no_loss(tmp_path: Path) -> None:
    marker = marker_of(tmp_path)
    turns = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two"))]
    sample = marker.sample(Conversation(messages=turns, where="row 1", num_given=3))
    assert "".join(map(decoded(marker), sample.tokens[sample.trained])) == " two</s>"


def test_a_token_that_is_partly_in_a_span_is_covered() -> None:
    offsets = np.array([[0, 2], [2, 5], [5, 9], [9, 9]])
    assert covered(offsets, [(4, 6)]).tolist() == [False, True, True, False]
    assert not covered(offsets, [(3, 3)]).any()
