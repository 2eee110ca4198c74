from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from meshwright.describe.model import Experts
from meshwright.describe.router import Balance, Router
from meshwright.train.kernels.routes import NOWHERE
from meshwright.train.model.router import COUNTED, Tally, TokenRouter, within

EXPERTS = Experts(num_experts=8, num_active=2, hidden=4)
HIDDEN = 6


def router_of(router: Router = EXPERTS.router, balance: Balance | None = None, **experts: int) -> TokenRouter:
    made = TokenRouter(HIDDEN, replace(EXPERTS, router=router, **experts))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    if balance:
        made.balance = balance
        made.tally = Tally(torch.zeros(EXPERTS.num_experts + len(COUNTED), dtype=torch.float64), seed=1.0)
    return made


def states(num_tokens: int = 5, seed: int = 1) -> torch.Tensor:
    return torch.randn(2, num_tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


def logits_of(router: TokenRouter, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, router.weight, router.bias).flatten(0, 1)


def test_softmax_of_all_then_the_best_renormalized() -> None:
    router, x = router_of(), states()
    weights, experts = logits_of(router, x).softmax(-1).topk(2)
    choice = router(x)
    assert torch.equal(choice.experts, experts)
    assert torch.allclose(choice.weights, weights / weights.sum(-1, keepdim=True))


def test_weights_that_are_not_renormalized_are_scaled() -> None:
    router, x = router_of(Router(renormalizes=False, scale=16.0)), states()
    assert torch.allclose(router(x).weights, 16 * logits_of(router, x).softmax(-1).topk(2).values)


def test_the_best_first_then_a_softmax_over_them() -> None:
    router, x = router_of(Router(chooses_first=True, has_bias=True)), states()
    logits, experts = logits_of(router, x).topk(2)
    choice = router(x)
    assert torch.equal(choice.experts, experts) and torch.allclose(choice.weights, logits.softmax(-1))


def test_sigmoids_with_a_bias_for_the_choice_alone() -> None:
    router, x = router_of(Router(scores="sigmoid", scale=2.5, has_selection_bias=True)), states()
    scores = logits_of(router, x).sigmoid()
    experts = (scores + router.selection_bias).topk(2).indices
    weights = scores.gather(1, experts)
    choice = router(x)
    assert torch.equal(choice.experts, experts)
    assert torch.allclose(choice.weights, 2.5 * weights / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize("num_group_scores", [1, 2])
def test_experts_are_chosen_in_the_best_groups(num_group_scores: int) -> None:
    shape = Router(num_groups=4, num_chosen_groups=1, num_group_scores=num_group_scores)
    router, x = router_of(shape), states(40)
    scores = logits_of(router, x).softmax(-1)
    for row, experts in zip(scores.tolist(), router(x).experts.tolist(), strict=True):
        groups = [sum(sorted(row[2 * g : 2 * g + 2], reverse=True)[:num_group_scores]) for g in range(4)]
        best = groups.index(max(groups))
        assert sorted(experts) == [2 * best, 2 * best + 1]


def test_equal_scores_go_to_the_lower_expert() -> None:
    router = router_of(Router(num_groups=2, num_chosen_groups=1))
    with torch.no_grad():
        router.weight.zero_()
    assert router(states()).experts.tolist() == [[0, 1]] * 10


def test_an_expert_takes_its_first_tokens_up_to_its_capacity() -> None:
    experts = torch.tensor([[0, 1], [0, 2], [1, 0], [0, 3]])
    assert within(experts, 2, 4).tolist() == [[0, 1], [0, 2], [1, NOWHERE], [NOWHERE, 3]]


def test_dropped_visits_are_counted_and_have_no_weight() -> None:
    router = router_of(balance=Balance(capacity=1.0))
    with torch.no_grad():
        router.weight.zero_()
    choice = router(states(8))  # 16 tokens, all to experts 0 and 1, which take 16 x 2 / 8 = 4 each
    choice.weights.sum().backward()
    assert (choice.experts != NOWHERE).sum(0).tolist() == [4, 4]
    assert choice.weights.count_nonzero() == 8
    assert router.tally is not None and router.tally.counts.tolist()[: 8 + 1] == [16.0, 16.0, *([0.0] * 6), 24.0]


def auxiliary_of(router: TokenRouter, x: torch.Tensor) -> torch.Tensor:
    """The loss of DeepSeek-V3 (arXiv:2412.19437, equations 17 to 20), once for each token of a sequence."""
    total = torch.zeros(())
    for sequence in x:
        scores = F.linear(sequence, router.weight).softmax(-1)
        chosen = F.one_hot(scores.topk(2).indices, 8).sum((0, 1))
        shares, means = chosen * 8 / (2 * len(sequence)), scores.mean(0)
        total = total + len(sequence) * (shares * means).sum()
    return total


def test_the_auxiliary_loss_and_its_gradient_are_those_of_each_sequence() -> None:
    router, x = router_of(balance=Balance(auxiliary=0.5, z=0.1)), states(7)
    wanted = 0.5 * auxiliary_of(router, x) + 0.1 * logits_of(router, x).logsumexp(-1).square().sum()
    (gradient,) = torch.autograd.grad(wanted, router.weight)
    (router(x).weights.sum() * 0.0).backward()
    assert torch.allclose(router.weight.grad, gradient, atol=1e-5)
    assert router.tally is not None
    counted = dict(zip(COUNTED, router.tally.counts[8:].tolist(), strict=True))
    assert counted["auxiliary"] == pytest.approx(auxiliary_of(router, x).item(), rel=1e-5)
    assert 0 < counted["entropy"] < 14 * float(torch.tensor(8.0).log())


def test_an_even_load_has_an_auxiliary_loss_of_one_for_a_token() -> None:
    router = router_of(balance=Balance(auxiliary=1.0, scope="batch"))
    router.shares = torch.ones(8)
    (router(states(4)).weights.sum() * 0.0).backward()
    assert router.tally is not None and router.tally.counts[9].item() == pytest.approx(8.0)


def test_a_balance_over_the_batch_uses_the_shares_of_the_step_before() -> None:
    router, x = router_of(balance=Balance(auxiliary=1.0, scope="batch")), states(4)
    router.shares = torch.arange(8.0)
    (gradient,) = torch.autograd.grad((logits_of(router, x).softmax(-1) * router.shares).sum(), router.weight)
    (router(x).weights.sum() * 0.0).backward()
    assert torch.allclose(router.weight.grad, gradient, atol=1e-5)


def test_a_balance_over_a_micro_batch_joins_its_sequences() -> None:
    router, x = router_of(balance=Balance(auxiliary=1.0, scope="micro-batch")), states(4)
    (router(x).weights.sum() * 0.0).backward()
    assert router.tally is not None
    assert router.tally.counts[9].item() == pytest.approx(auxiliary_of(router, x.view(1, 8, HIDDEN)).item(), rel=1e-5)


def test_nothing_is_counted_without_a_backward_pass() -> None:
    router = router_of(balance=Balance(auxiliary=1.0))
    with torch.no_grad():
        router(states())
    router(states())
    assert router.tally is not None and router.tally.counts.count_nonzero() == 0
