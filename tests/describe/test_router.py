from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.describe.load import load_model
from meshwright.describe.model import Experts
from meshwright.describe.router import Balance, Router
from meshwright.errors import InputError

MIXTRAL = load_model("mixtral-8x7b")


def test_the_catalogue_has_the_routers_of_the_families() -> None:
    assert MIXTRAL.experts is not None and MIXTRAL.experts.router == Router()
    found = {name: load_model(name).experts for name in ("deepseek-v3", "deepseek-v2", "gpt-oss-20b")}
    assert found["deepseek-v3"].router.scores == "sigmoid" and found["deepseek-v3"].router.has_selection_bias
    assert found["deepseek-v2"].router.num_group_scores == 1
    assert found["gpt-oss-20b"].router.chooses_first and found["gpt-oss-20b"].activation_limit == 7.0


@pytest.mark.parametrize(
    "experts, message",
    [
        (Experts(num_experts=8, num_active=0, hidden=16), "num_active is 0"),
        (Experts(num_experts=8, num_active=1, hidden=16, num_dense_layers=99), "99 leading layers cannot be dense"),
        (Experts(num_experts=8, num_active=9, hidden=16), "a token cannot visit 9 of 8 experts"),
        (Experts(num_experts=8, num_active=2, hidden=16, router=Router(num_groups=3)), "8 experts do not divide into 3 groups"),
        (Experts(num_experts=8, num_active=3, hidden=16, router=Router(num_groups=4)), "cannot visit 3 experts in 1 groups of 2"),
        (
            Experts(num_experts=8, num_active=1, hidden=16, router=Router(num_groups=8, num_group_scores=2)),
            "groups of 1 experts cannot be chosen by their best 2",
        ),
    ],
)
def test_a_choice_that_is_not_possible_is_one_message(experts: Experts, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(MIXTRAL, experts=experts)


def test_words_that_do_not_exist_are_named() -> None:
    with pytest.raises(InputError, match="scores cannot be 'tanh'"):
        Router(scores="tanh")
    with pytest.raises(InputError, match="scope cannot be 'layer'"):
        Balance(scope="layer")
    with pytest.raises(InputError, match="cannot choose 3 of 2 groups"):
        Router(num_groups=2, num_chosen_groups=3)
    with pytest.raises(InputError, match="softmax over the chosen ones"):
        Router(scores="sigmoid", chooses_first=True)
