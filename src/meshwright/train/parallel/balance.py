"""The routers of a rank over a step: what they count, summed over all ranks, and what changes by it after the update.

Counts travel with the other sums of the step. A selection bias changes by the loads of the whole batch, so it does not depend on how the
batch was divided, and a balance over the global batch uses the loads of the step before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.describe.model import Model
from meshwright.describe.router import Balance
from meshwright.train.checkpoint import Piece
from meshwright.train.model.experts import ExpertLayer
from meshwright.train.model.router import COUNTED, Tally, TokenRouter
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.mesh import Mesh

NUM_BESIDES = len(COUNTED) + 1  # after the loads of a layer: `COUNTED`, and the squares of its selection bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What the router of one layer did in a step, over all ranks."""

    layer: int
    loads: tuple[int, ...]  # tokens of each expert
    num_dropped: int  # visits of tokens that an expert had no room for
    auxiliary: float  # the auxiliary loss without its factor, mean over tokens; 1 at an even load
    z: float  # the z-loss without its factor, mean over tokens
    entropy: float  # of a token's probabilities, mean over tokens, in nats
    bias_norm: float  # of the selection bias that the step used

    @property
    def peak(self) -> float:
        """Tokens of the busiest expert over the mean."""
        return max(self.loads) * len(self.loads) / max(sum(self.loads), 1)


class Routers:
    """The routers of this rank's chunks, ready to count."""

    def __init__(self, model: Model, chunks: Sequence[Transformer], mesh: Mesh, balance: Balance) -> None:
        self.model, self.mesh, self.balance = model, mesh, balance
        self.num_experts = model.experts.num_experts if model.experts else 0
        self.routers: dict[int, TokenRouter] = {}
        for chunk in chunks:
            for name, module in chunk.named_modules():
                if isinstance(module, ExpertLayer):
                    self.routers[int(name.split(".")[1])] = self._prepared(module.router)

    def _prepared(self, router: TokenRouter) -> TokenRouter:
        """A router with storage for what no gradient trains."""
        device = self.mesh.device
        if router.selection_bias is not None:
            router.selection_bias = torch.zeros(self.num_experts, device=device)
        if self.balance.scope == "batch" and self.balance.auxiliary:
            router.shares = torch.ones(self.num_experts, device=device)
        router.balance = self.balance
        router.tally = Tally(torch.zeros(self.num_experts + len(COUNTED), dtype=torch.float64, device=device))
        return router

    @property
    def size(self) -> int:
        """Numbers that the layers of the whole model count."""
        return self.model.num_routers * (self.num_experts + NUM_BESIDES)

    def begin(self, seed: float) -> None:
        """Begin a step; `seed` is the gradient of its loss by the loss of one token."""
        for router in self.routers.values():
            assert router.tally is not None, "a prepared router counts"
            router.tally.begin(seed)

    def counted(self) -> Tensor | None:
        """What this rank counted in the step, by layer; zeros for layers of other stages. None: there are no experts."""
        if not self.size:
            return None
        rows = torch.zeros(self.model.num_routers, self.num_experts + NUM_BESIDES, dtype=torch.float64, device=self.mesh.device)
        is_first = self.mesh.tp.index == self.mesh.cp.index == self.mesh.dp.index == 0
        for layer, router in self.routers.items():
            assert router.tally is not None, "a prepared router counts"
            row = rows[self._row(layer)]
            row[:-1] = router.tally.counts
            if router.selection_bias is not None and is_first:
                row[-1] = router.selection_bias.double().square().sum()
        return rows.flatten()

    def update(self, totals: Tensor, applies: bool | Tensor) -> None:
        """Change what follows from the loads of a step, unless its update was left out; the loads are on the device."""
        rows = totals.view(self.model.num_routers, -1)
        for layer, router in self.routers.items():
            loads = rows[self._row(layer), : self.num_experts]
            if router.selection_bias is not None and self.balance.bias_rate:
                moved = router.selection_bias + self.balance.bias_rate * torch.sign(loads.mean() - loads).float()
                _put(router.selection_bias, moved, applies)
            if router.shares is not None:
                _put(router.shares, (loads / loads.mean()).float(), applies)

    def results(self, totals: Tensor, num_tokens: int) -> tuple[Routing, ...]:
        """What each router did, from sums on the host; `num_tokens` went through each layer."""
        found = []
        for number, row in enumerate(totals.view(self.model.num_routers, -1).tolist()):
            dropped, auxiliary, z, entropy, squares = row[self.num_experts :]
            found.append(
                Routing(
                    layer=number + self.model.num_dense_layers,
                    loads=tuple(round(load) for load in row[: self.num_experts]),
                    num_dropped=round(dropped),
                    auxiliary=auxiliary / num_tokens,
                    z=z / num_tokens,
                    entropy=entropy / num_tokens,
                    bias_norm=math.sqrt(squares),
                )
            )
        return tuple(found)

    def weights(self) -> Iterator[Piece]:
        """The selection biases; every rank of a stage holds the same."""
        for layer, router in self.routers.items():
            if router.selection_bias is not None:
                yield _whole(f"weights/{router_name(self.model, layer)}.selection_bias", router.selection_bias)

    def state(self) -> Iterator[Piece]:
        """What the next step needs besides: the shares of the last one."""
        for layer, router in self.routers.items():
            if router.shares is not None:
                yield _whole(f"{SHARES}/{router_name(self.model, layer)}", router.shares)

    def _row(self, layer: int) -> int:
        return layer - self.model.num_dense_layers


SHARES = "router_shares"  # kind of state


def is_untrained(name: str) -> bool:
    """Whether a tensor belongs to a router and is trained by no gradient: every rank of a stage holds it whole."""
    return name.endswith((".mlp.router.selection_bias", ".mlp.router"))


def state_names(model: Model, balance: Balance) -> set[str]:
    """Names of what `Routers.state` gives over all ranks."""
    if not (model.experts and balance.auxiliary and balance.scope == "batch"):
        return set()
    first = model.num_dense_layers
    return {f"{SHARES}/{router_name(model, layer)}" for layer in range(first, first + model.num_routers)}


def router_name(model: Model, layer: int) -> str:
    """The name of a layer's router; layers of multi-token prediction are numbered after the others, and have a block."""
    return f"layers.{layer}.{'block.' if layer >= model.num_layers else ''}mlp.router"


def _put(held: Tensor, new: Tensor, applies: bool | Tensor) -> None:
    held.copy_(torch.where(applies, new, held) if isinstance(applies, Tensor) else new if applies else held)


def _whole(name: str, tensor: Tensor) -> Piece:
    return Piece(name=name, shape=tuple(tensor.shape), start=(0,) * tensor.dim(), tensor=tensor)
