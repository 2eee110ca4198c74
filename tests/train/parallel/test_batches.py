"""A rank's share of a batch: every sample once, whatever the layout, and of its tokens those of the rank's place."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from meshwright.describe.workload import Workload
from meshwright.layout import parse_layout
from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.parallel.batches import even_deal, micro_batch, micro_batches, sample_numbers, without_loss

WORKLOAD = Workload(name="w", model="", seq_len=8, global_batch=4, precision="fp32")


def mesh(layout: str = "dp=1", cp_index: int = 0, dp_index: int = 0) -> SimpleNamespace:
    """As much of a mesh as batches read."""
    parsed = parse_layout(layout)
    axis = SimpleNamespace(size=parsed.cp, index=cp_index)
    return SimpleNamespace(layout=parsed, cp=axis, dp=SimpleNamespace(index=dp_index), device=torch.device("cpu"))


def arrays(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sample `i` holds the tokens 10 i, 10 i + 1 ... ; the label of each is the next; two documents."""
    tokens = 10 * np.arange(count)[:, None] + np.arange(8)[None, :]
    return tokens, tokens + 1, np.tile(np.array([0] * 3 + [1] * 5), (count, 1))


@pytest.mark.parametrize("layout", ["dp=1", "dp=2", "dp=4", "dp=2,mbs=2", "dp=1,mbs=4"])
def test_a_batch_holds_the_same_samples_however_many_replicas_there_are(layout: str) -> None:
    parsed = parse_layout(layout)
    shares = [sample_numbers(parsed, index, 100, 8) for index in range(parsed.dp)]
    assert sorted(number for share in shares for group in share for number in group) == list(range(100, 108))
    assert all(len(group) == parsed.micro_batch for share in shares for group in share)


@pytest.mark.parametrize("deal", [(2, 2, 2), (1, 3, 2), (4, 1, 1), (1, 1, 4)])
def test_a_batch_holds_the_same_samples_for_any_deal(deal: tuple[int, ...]) -> None:
    parsed = parse_layout("dp=3,mbs=2")
    shares = [sample_numbers(parsed, index, 100, 12, deal) for index in range(3)]
    assert tuple(len(share) for share in shares) == deal
    assert sorted(number for share in shares for group in share for number in group) == list(range(100, 112))


def test_an_even_deal_is_the_usual_one() -> None:
    parsed = parse_layout("dp=3,mbs=2")
    assert even_deal(parsed, 12) == (2, 2, 2)
    assert [sample_numbers(parsed, i, 0, 12, (2, 2, 2)) for i in range(3)] == [sample_numbers(parsed, i, 0, 12) for i in range(3)]
    assert [sample_numbers(parsed, i, 0, 12, (1, 3, 2)) for i in range(3)] == [[[0, 1]], [[2, 3], [6, 7], [10, 11]], [[4, 5], [8, 9]]]


def test_a_deal_that_leaves_samples_out_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"does not give 12 samples to 3 replicas"):
        sample_numbers(parse_layout("dp=3,mbs=2"), 0, 0, 12, (1, 1, 1))


def test_numbers_run_over_where_the_count_does_not_divide() -> None:
    shares = [sample_numbers(parse_layout("dp=2,mbs=2"), index, 0, 6) for index in (0, 1)]
    assert shares == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("index, expected", [(0, [0, 1, 6, 7]), (1, [2, 3, 4, 5])])
def test_a_context_rank_holds_a_piece_and_its_mirror_image(index: int, expected: list[int]) -> None:
    found = micro_batch(arrays(1), [5], WORKLOAD, mesh("cp=2", index))  # type: ignore[arg-type]
    assert found.tokens.tolist() == [expected] and found.labels.tolist() == [[one + 1 for one in expected]]
    assert found.context.positions.tolist() == expected and found.samples == (5,)
    assert found.context.documents is None and found.context.everyones_documents is None


def test_packed_samples_bring_their_documents_and_everyones() -> None:
    packed = Workload(name="w", model="", seq_len=8, global_batch=4, precision="fp32", packed=True)
    context = micro_batch(arrays(1), [0], packed, mesh("cp=2", 1)).context  # type: ignore[arg-type]
    assert context.documents is not None and context.everyones_documents is not None
    assert context.documents.tolist() == [[0, 1, 1, 1]]  # of positions 2 to 5
    assert context.everyones_documents.tolist() == [[0, 0, 1, 1, 0, 1, 1, 1]]  # rank after rank


def test_micro_batches_read_what_they_hold() -> None:
    asked: list[list[int]] = []

    def read(numbers: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        asked.append(list(numbers))
        return arrays(len(numbers))

    found = micro_batches(read, 8, WORKLOAD, mesh("dp=2", dp_index=1))  # type: ignore[arg-type]
    assert asked == [[9], [11]] and [one.samples for one in found] == [(9,), (11,)]


def test_samples_beyond_the_end_carry_no_loss() -> None:
    tokens, labels, documents = arrays(3)
    found = without_loss((tokens, labels, documents), [True, False, True])
    assert np.array_equal(found[1][[0, 2]], labels[[0, 2]]) and (found[1][1] == IGNORED_LABEL).all()
    assert not (labels == IGNORED_LABEL).any()  # the samples themselves are as they were


def test_tokens_ahead_are_found_before_sequences_are_divided() -> None:
    tokens = np.array([[10, 11, 12, 13, 20, 21, 22, 23]])
    labels = np.array([[11, 12, 13, -100, 21, 22, 23, 24]])
    documents = np.array([[0, 0, 0, 0, 1, 1, 1, 1]])
    whole = micro_batch((tokens, labels, documents), [0], WORKLOAD, mesh("cp=1", 0), num_ahead=2)  # type: ignore[arg-type]
    one, two = whole.ahead
    assert one.tokens.tolist() == [[11, 12, 13, 20, 21, 22, 23, 0]]
    assert one.labels.tolist() == [[12, 13, -100, -100, 22, 23, 24, -100]]
    assert two.tokens.tolist() == [[12, 13, 20, 21, 22, 23, 0, 0]]
    assert two.labels.tolist() == [[13, -100, -100, -100, 23, 24, -100, -100]]
    for index in (0, 1):
        part = micro_batch((tokens, labels, documents), [0], WORKLOAD, mesh("cp=2", index), num_ahead=2)  # type: ignore[arg-type]
        positions = part.context.positions
        for mine, everyones in zip(part.ahead, whole.ahead, strict=True):
            assert torch.equal(mine.tokens, everyones.tokens[:, positions])
            assert torch.equal(mine.labels, everyones.labels[:, positions])
