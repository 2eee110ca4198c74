from __future__ import annotations

import pytest
import torch
from on_experts import here_and_there
from ranks import Pools

from meshwright.train.kernels.routes import NOWHERE
from meshwright.train.parallel.expert import in_parts, once

CASES = {
    "tokens visit experts of several ranks": [[[0, 4, 5], [7, 1, 2]], [[3, 2, 6]]],
    "all tokens visit one rank": [[[0, 1, 2], [2, 1, 0]], [[1, 3, 0]]],
    "one token in all": [[], [[6, 0, 7]]],
    "a rank has no tokens, and none visits it": [[[0, 1, 2]], []],
    "no tokens at all": [[], []],
    "dropped visits": [[[0, NOWHERE, 5], [NOWHERE, NOWHERE, NOWHERE]], [[NOWHERE, 7, 6]]],
    "four ranks": [[[0, 2, 4], [1, 3, 5]], [[7, 6, 5]], [], [[0, 1, 7], [2, 3, 4], [0, 3, 6]]],
}


@pytest.mark.parametrize("choices", CASES.values(), ids=CASES)
def test_experts_on_other_ranks_do_what_experts_here_do(choices: list[list[list[int]]], pools: Pools) -> None:
    for there, here in pools.of(len(choices)).run(here_and_there, choices):
        assert there.keys() == here.keys()
        for name, tensor in here.items():
            assert torch.allclose(there[name], tensor, atol=1e-5), name


def test_a_token_is_sent_once_to_a_rank() -> None:
    ranks = torch.tensor([[1, 1, 0], [2, 0, 2], [NOWHERE, 1, NOWHERE]])
    assert once(ranks).tolist() == [[1, NOWHERE, 0], [2, 0, NOWHERE], [NOWHERE, 1, NOWHERE]]


def test_a_token_is_sent_to_every_part_of_an_expert() -> None:
    places = torch.tensor([[1, NOWHERE], [0, 2]])
    assert in_parts(places, 2).tolist() == [[2, 3, NOWHERE, NOWHERE], [0, 1, 4, 5]]
    assert in_parts(places, 1).tolist() == places.tolist()
