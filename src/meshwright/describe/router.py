"""How tokens choose experts, and how the experts' loads are kept even in training."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import InputError

SCORES = ("softmax", "sigmoid")
SCOPES = ("sequence", "batch", "micro-batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How a token's scores become a choice of experts and their weights. The defaults are Mixtral's.

    Args:
        scores: What turns logits into scores: `softmax` over all experts, or `sigmoid` of each.
        chooses_first: Whether experts are chosen by their logits, and the softmax is taken over the chosen ones only (gpt-oss).
        renormalizes: Whether the weights of the chosen experts are divided by their sum.
        scale: Factor on the weights of the chosen experts.
        num_groups: Groups of neighbouring experts; 1: no groups.
        num_chosen_groups: Groups in which a token may choose experts.
        num_group_scores: Of how many experts, the best of a group, scores are added up to choose groups (DeepSeek-V3: 2; V2: 1).
        has_bias: Whether the product of the router has a bias that is trained by its gradient (gpt-oss).
        has_selection_bias: Whether a bias that no gradient trains is added to the scores for the choice alone (DeepSeek-V3).
    """

    scores: str = "softmax"
    chooses_first: bool = False
    renormalizes: bool = True
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1
    num_group_scores: int = 2
    has_bias: bool = False
    has_selection_bias: bool = False

    def __post_init__(self) -> None:
        _check_choice("router.scores", self.scores, SCORES)
        if self.chooses_first and self.scores != "softmax":
            raise InputError(
                "a router that chooses experts before it scores them takes a softmax over the chosen ones, and its scores are sigmoids",
                where="router.chooses_first",
                fix='use scores = "softmax", or chooses_first = false',
            )
        if not 1 <= self.num_chosen_groups <= self.num_groups:
            raise InputError(
                f"a token cannot choose {self.num_chosen_groups} of {self.num_groups} groups of experts",
                where="router.num_chosen_groups",
                fix=f"choose from 1 to {self.num_groups}",
            )

    def check(self, num_experts: int, num_active: int, where: str) -> None:
        """Raise if the experts do not divide into the groups, or a token cannot choose as many experts as it should visit."""
        if num_active > num_experts:
            raise InputError(
                f"a token cannot visit {num_active} of {num_experts} experts",
                where=f"{where}: num_active",
                fix=f"give {num_experts} or less",
            )
        if num_experts % self.num_groups:
            raise InputError(
                f"{num_experts} experts do not divide into {self.num_groups} groups",
                where=f"{where}: router.num_groups",
                fix=f"choose a divisor of {num_experts}",
            )
        per_group = num_experts // self.num_groups
        if num_active > per_group * self.num_chosen_groups:
            raise InputError(
                f"a token cannot visit {num_active} experts in {self.num_chosen_groups} groups of {per_group}",
                where=f"{where}: router.num_chosen_groups",
                fix=f"give {-(-num_active // per_group)} or more",
            )
        if self.num_groups > 1 and not 1 <= self.num_group_scores <= per_group:
            raise InputError(
                f"groups of {per_group} experts cannot be chosen by their best {self.num_group_scores}",
                where=f"{where}: router.num_group_scores",
                fix=f"choose from 1 to {per_group}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What keeps the loads of experts even in training. All of it is off by default.

    Args:
        auxiliary: Factor of the auxiliary loss: the sum over experts of their share of the tokens times their mean score.
        scope: Over what shares and mean scores are taken: each `sequence`, the global `batch` (with the shares of the step before), or each
            `micro-batch`, which makes the loss depend on the layout.
        z: Factor of the z-loss: the mean square of the logarithm of the summed exponentials of a token's logits.
        bias_rate: By how much the selection bias of an expert rises or falls after a step that gave it fewer or more tokens than the mean.
        capacity: An expert takes at most this multiple of the mean number of tokens of a rank's micro-batch, and others are dropped; 0: no
            token is dropped.
    """

    auxiliary: float = 0.0
    scope: str = "sequence"
    z: float = 0.0
    bias_rate: float = 0.0
    capacity: float = 0.0

    def __post_init__(self) -> None:
        _check_choice("balance.scope", self.scope, SCOPES)


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{key.partition('.')[2]} cannot be {value!r}", where=key, fix=f"choose from {', '.join(choices)}")
