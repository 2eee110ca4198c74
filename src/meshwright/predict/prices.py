"""The price of each part of a step: a layer, the ends of the model, a message, the traffic between replicas, the optimizer.

`Pricer` uses rates from data sheets and fitted constants; `predict.measured_prices` has the same from a hardware profile. Both can price
all traffic, or only what is not hidden (`unhidden`), so that exposed and total traffic come from the same prices.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.collectives import all_to_all_s, gather_s, neighbour_s, sent_once_s
from meshwright.cost.compute import layer_backward_bytes, layer_forward_bytes, matmul_flops_per_s, matmul_s
from meshwright.cost.overlap import exposed_s
from meshwright.cost.pipeline import ChunkTimes
from meshwright.layout import CP_KINDS, OPS, Layouts
from meshwright.predict import software as sw
from meshwright.predict.footprint import OFFLOADED_SHARE
from meshwright.predict.inputs import BY_COLUMNS, BY_ROWS, DENSE_MLP, EXPERT, SHARED_MLP, UP_PROJECTION, Inputs
from meshwright.predict.placement import Placement, place
from meshwright.predict.software import Constants
from meshwright.predict.stages import Split

Column = NDArray[np.float64]
BF16_BYTES = 2.0
FP8_BYTES = 1.0


@dataclass(frozen=True, slots=True)
class Layer:
    """Seconds of one micro-batch in one layer on one rank, forward and backward separately."""

    matmul: tuple[Column, Column]
    attention: tuple[Column, Column]
    memory: tuple[Column, Column]
    gaps: tuple[Column, Column]
    exposed_tp: tuple[Column, Column]
    exposed_cp: tuple[Column, Column]
    exposed_ep: tuple[Column, Column]
    weight_s: Column  # of the backward: weight gradients
    parts_s: Column  # of the backward: compute of single parts that is repeated
    offload_s: Column  # of the gaps, both ways: waiting for activations on their way to the host's memory and back

    @property
    def exposed(self) -> dict[str, tuple[Column, Column]]:
        """Seconds that each axis within the layer adds, both ways."""
        return {"tp": self.exposed_tp, "cp": self.exposed_cp, "ep": self.exposed_ep}

    def compute_s(self, way: int) -> Column:
        """Seconds that compute takes, forward (0) or backward (1)."""
        return self.matmul[way] + self.attention[way] + self.memory[way] + self.gaps[way]

    def exposed_s(self, way: int) -> Column:
        """Seconds that communication within the layer adds."""
        return self.exposed_tp[way] + self.exposed_cp[way] + self.exposed_ep[way]

    def total_s(self, way: int) -> Column:
        """Seconds of the layer."""
        return self.compute_s(way) + self.exposed_s(way)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Seconds of traffic between replicas, hidden or not, and how often it occurs in a step by its ZeRO stage; one row per layout."""

    forward_s: Column  # weights gathered for forwards, each time
    num_forward: Column
    reduce_s: Column  # gradients, each time
    backward_s: Column  # weights gathered again with them, each time
    num_backward: Column

    @property
    def gathered_s(self) -> Column:
        """Seconds of all gathering of weights in a step."""
        return np.asarray(self.num_forward * self.forward_s + self.num_backward * self.backward_s)

    @property
    def reduced_s(self) -> Column:
        """Seconds of all reducing of gradients in a step."""
        return np.asarray(self.num_backward * self.reduce_s)


class Pricer:
    """The intermediate quantities of one call: rates, tokens, bandwidths."""

    hides = True  # whether traffic is hidden behind compute if the layout allows it

    def __init__(self, inputs: Inputs, layouts: Layouts, constants: Constants) -> None:
        self.q, self.l, self.c = inputs, layouts, constants
        q, c = inputs, constants
        blackwell = np.asarray(q.is_blackwell) > 0
        self.slowdown = np.exp(q.log_factor)
        blackwell_fp8_pj = np.where(np.asarray(q.is_ultra) > 0, c.ultra_fp8_pj, c.blackwell_fp8_pj)
        low_pj = np.where(blackwell, np.where(np.asarray(q.is_fp4) > 0, c.blackwell_fp4_pj, blackwell_fp8_pj), c.hopper_fp8_pj)
        pj = np.where(np.asarray(q.is_bf16) > 0, q.bf16_pj, low_pj)
        self.matmul_flops_per_s = matmul_flops_per_s(q.peak_flops_per_s, sw.MATMUL_CEILING, pj * 1e-12, q.power_cap_w)
        self.bf16_flops_per_s = matmul_flops_per_s(q.bf16_flops_per_s, sw.MATMUL_CEILING, np.asarray(q.bf16_pj) * 1e-12, q.power_cap_w)
        share = np.where(blackwell, c.blackwell_attention, c.hopper_attention) * np.power(q.softmax_speedup, c.softmax_exponent)
        fp8 = np.where(np.asarray(q.fp8_attention) > 0, sw.FP8_ATTENTION_SPEEDUP, 1.0)
        self.attention_flops_per_s = self.bf16_flops_per_s * share * fp8 * np.exp(-np.asarray(q.log_attention))
        self.memory_bytes_per_s = q.memory_bytes_per_s * np.asarray(c.memory_efficiency) * np.exp(-np.asarray(q.log_memory))
        self.contention = np.where(blackwell, c.blackwell_contention, c.hopper_contention)
        fabric = np.where(q.tier_is_hashed > 0, c.fabric_efficiency * c.hashed_efficiency, c.fabric_efficiency)
        self.tier_bytes_per_s = q.tier_bytes_per_s * np.where(q.tier_is_scale_up > 0, sw.SCALE_UP_EFFICIENCY, fabric)
        self.placement: Placement = place(layouts, q.tier_size)
        self.tp, self.cp, self.pp = (getattr(layouts, axis).astype(np.float64) for axis in ("tp", "cp", "pp"))
        self.vp, self.dp, self.ep = (getattr(layouts, axis).astype(np.float64) for axis in ("vp", "dp", "ep"))
        self.etp, self.expert_ranks = (getattr(layouts, name).astype(np.float64) for name in ("etp", "expert_ranks"))
        self.imbalance = np.minimum(np.asarray(q.expert_imbalance, dtype=np.float64), self.ep)  # no rank gets more than all tokens
        self.key_copies = np.maximum(self.tp / q.num_kv_heads, 1.0)  # tensor ranks that hold the same key-value head
        self.kv_dim = np.asarray(q.kv_dim) * self.key_copies  # of all ranks together
        self.tokens = layouts.micro_batch * q.seq_len / self.cp  # of a micro-batch on one rank, before tensor parallelism
        self.graphs = layouts.cuda_graphs > 0
        self.num_micro_batches = np.maximum(np.asarray(q.global_batch) // (layouts.dp * layouts.micro_batch), 1).astype(np.int64)
        self.operation_s = np.where(self.graphs, sw.GRAPH_CHUNK_S, c.eager_chunk_s) * self.slowdown  # of the host, each
        self.train_matmuls = 2.0 - np.asarray(q.frozen)  # matrix products of a backward per forward: no weight gradients where frozen

    def unhidden(self) -> Self:
        """The same prices with nothing hidden."""
        bare = copy(self)
        bare.hides = False
        return bare

    def layer(self) -> Layer:
        """Seconds of a layer for one micro-batch."""
        q = self.q
        forward_s, beside_s, again_s, shared_s = self._matmul_forward_s()
        attention_s = self.tokens * q.attention_flops / self.tp / self.attention_flops_per_s
        memory = self._memory_s()
        rounds = (self.cp - 1) * (self.l.cp_kind == CP_KINDS.index("ring"))
        gap_s = self.c.layer_s + np.where(self.graphs, 0.0, self.c.eager_layer_s) + sw.RING_ROUND_S * rounds
        sync_s = np.where(self.graphs, 0.0, q.expert_sync_s) * np.asarray(q.expert_layers)
        matmul = self._slowed(forward_s, self.train_matmuls * forward_s)
        scores_s = self.tokens * q.num_scores * np.asarray(q.score_bytes) / self.tp / self.memory_bytes_per_s
        attention = self._slowed(attention_s + scores_s, sw.BACKWARD_ATTENTION * attention_s + 2 * scores_s)
        exposed_tp = self.exposed_tensor_s(self._slowed(beside_s, self.train_matmuls * beside_s))
        exposed_cp = self.context_s(attention[0])
        once_s, read_s = self._parts_memory_s()
        again_s, _ = self._slowed(again_s + read_s, 0.0)
        moved, gaps = self._slowed(memory[0] + once_s, memory[1]), self._slowed(gap_s + sync_s, 2 * gap_s + sync_s)
        beside = [matmul[way] + attention[way] + moved[way] + gaps[way] for way in (0, 1)]
        shared = self._slowed(shared_s, self.train_matmuls * shared_s)
        layer = self._recompute(
            Layer(
                matmul=matmul,
                attention=attention,
                memory=moved,
                gaps=gaps,
                exposed_tp=exposed_tp,
                exposed_cp=exposed_cp,
                exposed_ep=self.exposed_expert_s((beside[0], beside[1]), shared),
                weight_s=(self.train_matmuls - 1) * matmul[0],
                parts_s=again_s,
                offload_s=np.zeros_like(self.tokens),
            )
        )
        return self._offloaded(self._launched(layer))

    def _launched(self, layer: Layer) -> Layer:
        """The layer with the time for which the accelerator waits for its host, which launches one kernel after another."""
        q = self.q
        host_s = np.where(self.graphs, 0.0, q.host_s) * np.ones_like(self.tokens)
        if not host_s.any():
            return layer
        host_s = host_s * (1 + sw.TP_HOST * (self.tp > 1))
        again = self.l.recomputes_all
        waits = [_waited_s(layer.total_s(way), launched_s) for way, launched_s in enumerate((host_s, host_s * (1.0 + again)))]
        return replace(layer, gaps=(layer.gaps[0] + waits[0], layer.gaps[1] + waits[1]))

    def _offloaded(self, layer: Layer) -> Layer:
        """The layer with the time by which moving activations to the host outlasts it forward, and moving them back backward.

        Copies are taken to run beside everything else that a layer does, so that only what is longer than the layer is waited for.
        """
        moves = self.l.recomputes("offload")
        if not moves.any():
            return layer
        moved_s = self.offload_s()
        waits = [np.where(moves, np.maximum(moved_s - layer.total_s(way), 0.0), 0.0) for way in (0, 1)]
        return replace(layer, gaps=(layer.gaps[0] + waits[0], layer.gaps[1] + waits[1]), offload_s=waits[0] + waits[1])

    def offload_s(self) -> Column:
        """Seconds of moving a layer's share of one micro-batch to the host's memory, or back, where the layout moves it; else 0."""
        q, rows = self.q, np.broadcast_to(self.q.kept_bytes, (len(self.q.kept_bytes), len(self.tokens)))
        kept = np.take_along_axis(rows, self.l.recompute[None], axis=0)[0]
        moves = self.l.recomputes("offload") & (np.asarray(q.host_bytes_per_s) > 0)  # `check_layout` refuses it without a stated rate
        rate = np.where(moves, q.host_bytes_per_s, np.inf)
        return np.asarray(OFFLOADED_SHARE * kept * self.tokens / self.tp / rate)

    def _slowed(self, forward_s: Any, backward_s: Any) -> tuple[Column, Column]:
        """Both directions with the factor of the release, broadcast to all rows."""
        ones = np.ones_like(self.tokens)
        return forward_s * self.slowdown * ones, backward_s * self.slowdown * ones

    def _matmul_forward_s(self) -> tuple[Column, Column, Column, Column]:
        """Seconds of a layer's products: all, those beside tensor traffic (experts' have their own around them), those of parts that the
        backward pass computes again, and those of shared experts."""
        q = self.q
        columns = q.matrix_columns + (self.key_copies - 1) * q.matrix_copied if (self.key_copies > 1).any() else q.matrix_columns
        columns = np.where(q.matrix_cut == BY_COLUMNS, columns / self.tp, columns)
        inner = np.where(q.matrix_cut == BY_ROWS, q.matrix_inner / self.tp, q.matrix_inner)
        is_expert = q.matrix_cut == EXPERT
        columns = np.where(is_expert, columns / self.etp, columns)  # of the second product it is the inner side, which is as many FLOPs
        num_local = np.maximum(np.asarray(q.num_experts) / self.ep, 1.0)
        rows = np.where(is_expert, self.tokens / self.tp * q.experts_per_token / num_local * self.etp, self.tokens)
        count = np.where(is_expert, q.matrix_count * num_local, q.matrix_count)
        each_s = matmul_s(rows, columns, inner, self.matmul_flops_per_s, sw.MATMUL_HALF_SIZE)
        products_s = count * each_s * np.where(is_expert, np.exp(q.log_grouped) * self.imbalance, 1.0) * np.exp(q.log_products)
        up, mlp = q.matrix_part == UP_PROJECTION, q.matrix_part == DENSE_MLP
        again = (up & self.l.recomputes("mla_up_proj")) | (mlp & self.l.recomputes("mlp"))
        repeated = q.matrix_repeated * self.l.recomputes(OPS)
        beside, parts = np.where(is_expert, 0.0, products_s), np.where(again, products_s, products_s * repeated)
        shared = np.where(q.matrix_part == SHARED_MLP, products_s, 0.0)
        whole_s, beside_s, parts_s, shared_s = (np.asarray(np.sum(part, axis=0)) for part in (products_s, beside, parts, shared))
        return whole_s, beside_s, parts_s, shared_s

    def _parts_memory_s(self) -> tuple[Column, Column]:
        """Seconds of moving bytes for parts that are kept in fp8 (forward), and for these and recomputed parts (backward)."""
        q, chosen = self.q, self.l.recomputes
        inner, experts = 1.0 + np.asarray(q.gated), np.asarray(q.expert_layers)
        cast = chosen("act_fp8") * (BF16_BYTES + FP8_BYTES) * inner * q.ffn_active
        activation = (inner + 1.0) * BF16_BYTES * q.ffn_active
        again = cast + chosen("moe_act") * experts * activation + chosen("mlp") * (1 - experts) * activation
        again = again + chosen("layernorm") * 2 * 2 * BF16_BYTES * q.hidden
        again = again + chosen("mla_up_proj") * 2 * BF16_BYTES * (q.query_dim + 2 * self.kv_dim)
        per_token_s = self.tokens / self.tp / self.memory_bytes_per_s
        return cast * per_token_s, again * per_token_s + np.where(chosen(OPS), self._memory_s()[0], 0.0)

    def _memory_s(self) -> tuple[Column, Column]:
        """Seconds of norms, adds, rotary, activation and casts, which sequence and tensor parallelism split equally."""
        q = self.q
        qkv = q.query_dim + 2 * self.kv_dim
        forward = layer_forward_bytes(q.hidden, qkv, q.ffn_active, q.gated, q.cast_bytes, q.query_dim)
        backward = layer_backward_bytes(q.hidden, qkv, q.ffn_active, q.gated, q.cast_bytes)
        ring = (self.cp - 1) * (self.l.cp_kind == CP_KINDS.index("ring"))  # each further round corrects the sums of the one before
        # Tokens to experts and back, read and written, and cast for the products.
        sorted_bytes = (np.asarray(q.expert_bytes) + np.asarray(q.cast_bytes)) * q.hidden * q.experts_per_token * q.expert_layers * self.etp
        sorted_bytes = (sorted_bytes + np.asarray(q.expert_mlp_bytes) * q.ffn_active) * self.imbalance
        per_token_s = self.tokens / self.tp / self.memory_bytes_per_s
        return (forward + ring * q.query_dim * 12 + sorted_bytes) * per_token_s, (backward + ring * qkv * 8 + sorted_bytes) * per_token_s

    def tensor_s(self) -> Column:
        """Seconds of tensor traffic in one direction of a layer, hidden or not: two gathers and two scatters of the hidden states."""
        payload = self.tokens * self.q.hidden * BF16_BYTES
        return np.asarray(4 * (gather_s(payload, self.placement.members["tp"], self.tier_bytes_per_s) + sw.COLLECTIVE_S * (self.tp > 1)))

    def exposed_tensor_s(self, products: tuple[Column, Column]) -> tuple[Column, Column]:
        """Seconds that tensor traffic adds to a layer, both ways: at least the time by which it is longer than the products next to it."""
        whole_s = self.tensor_s()
        open_s = whole_s * (1 - self.hidden_tensor_share())
        return np.maximum(open_s, whole_s - products[0]), np.maximum(open_s, whole_s - products[1])

    def hidden_tensor_share(self) -> Column:
        """The share of tensor traffic that products can hide; none for a group that spans a network.

        Products exchange pieces through memory that ranks map from each other (Transformer Engine's userbuffers, PyTorch's symmetric
        memory), which works only within a node or a scale-up domain.
        """
        own = np.asarray(self.q.tp_hidden, dtype=np.float64)
        share = np.where(np.asarray(self.q.frozen) > 0, sw.ADAPTER_TP_HIDDEN, np.where(np.isnan(own), self.c.tp_hidden, own))
        hides = (self.l.overlap_tp > 0) & self.hides & ~self._crosses_fabric("tp")
        return np.where(hides, share, 0.0)

    def _crosses_fabric(self, axis: str) -> NDArray[np.bool_]:
        """Where a group of an axis has members in several nodes or scale-up domains."""
        members = self.placement.members[axis]
        below = np.concatenate([np.ones_like(members[:1]), members[:-1]])
        return np.asarray(np.any((members > below) & (self.q.tier_is_fabric > 0), axis=0))

    def context_s(self, attention_s: Column) -> tuple[Column, Column]:
        """Seconds that context parallelism adds: a ring is hidden behind attention, a gather and an all-to-all are not."""
        q, members = self.q, self.placement.members["cp"]
        kv_bytes = self.tokens * 2 * self.kv_dim / self.tp * BF16_BYTES  # of one rank
        rounds_s = neighbour_s(kv_bytes, members, self.tier_bytes_per_s, q.tier_latency_s) * (self.cp - 1)
        hiding_s = attention_s if self.hides else np.zeros_like(attention_s)
        ring = (np.maximum(rounds_s - hiding_s, 0.0), np.maximum(2 * rounds_s - sw.BACKWARD_ATTENTION * hiding_s, 0.0))
        gathered_s = gather_s(kv_bytes * self.cp, members, self.tier_bytes_per_s)
        heads_bytes = self.tokens * 2 * (np.asarray(q.query_dim) + q.kv_dim) / self.tp * BF16_BYTES
        switched_s = all_to_all_s(heads_bytes, members, self.tier_bytes_per_s)
        kinds = self.l.cp_kind
        forward = np.select([kinds == 0, kinds == 1], [ring[0], gathered_s], switched_s)
        backward = np.select([kinds == 0, kinds == 1], [ring[1], 2 * gathered_s], switched_s)
        return forward, backward

    def expert_s(self) -> tuple[Column, Column]:
        """Seconds of sending tokens to their experts and back, each way of a layer: until the busiest rank has its own."""
        q = self.q
        sent = self.tokens / self.tp * q.hidden * BF16_BYTES * q.expert_layers * self.etp  # to each part of an expert
        members = np.minimum(self.placement.joint("tp", "cp", "dp"), self.expert_ranks)  # experts take the innermost ranks of a stage
        plain_s = all_to_all_s(sent * q.experts_per_token, members, self.tier_bytes_per_s)
        once_s = sent_once_s(sent, np.asarray(q.experts_per_token, dtype=np.float64), members, self.tier_bytes_per_s)
        ranks = self.ep * (1 - (1 - 1 / self.ep) ** np.asarray(q.experts_per_token))  # of the group that a token has experts on
        own_s = all_to_all_s(sent * ranks, members, self.tier_bytes_per_s)
        each_s = np.where(np.asarray(q.sends_once) > 0, once_s, np.where(np.asarray(q.own_exchange) > 0, own_s, plain_s))
        each_s = 2 * each_s * self.imbalance
        return each_s, each_s

    def exposed_expert_s(self, beside_s: tuple[Column, Column], shared_s: tuple[Column, Column]) -> tuple[Column, Column]:
        """Seconds that the experts' traffic adds to a layer, both ways: at least what outlasts a layer of the other micro-batch.

        meshwright's trainer has the products of shared experts beside the way to the experts, and nothing beside the way back.
        """
        whole_s = self.expert_s()
        share = np.asarray(self.q.expert_hidden) if self.hides else 0.0
        open_s = [np.maximum(whole_s[way] * (1 - share), np.where(share > 0, whole_s[way] - beside_s[way], 0.0)) for way in (0, 1)]
        own = (np.asarray(self.q.own_exchange) > 0) & self.hides
        open_s = [open_s[way] - np.where(own, np.minimum(whole_s[way] / 2, shared_s[way]), 0.0) for way in (0, 1)]
        return open_s[0], open_s[1]

    def _sent_again(self, exposed: tuple[Column, Column]) -> tuple[Column, Column]:
        """The experts' traffic where a layer is computed again: meshwright's trainer does not send what returns a second time."""
        back_s = np.where(np.asarray(self.q.own_exchange) > 0, self.expert_s()[0] / 2, 0.0)
        return exposed[0], exposed[1] + np.where(self.l.recomputes_all, exposed[0] - back_s, 0.0)

    def _recompute(self, layer: Layer) -> Layer:
        """The layer with what recomputing adds to its backward: attention (selective), other parts, or the whole forward (full).

        Computing a dense MLP again gathers its input and scatters its output again.
        """
        full, some, mlp = self.l.recomputes_all, self.l.recomputes("selective"), self.l.recomputes("mlp")

        def again(pair: tuple[Column, Column], which: NDArray[np.bool_]) -> tuple[Column, Column]:
            return pair[0], pair[1] + np.where(which, pair[0], 0.0)

        matmul, exposed_tp = again(layer.matmul, full), again(layer.exposed_tp, full)
        return Layer(
            matmul=(matmul[0], matmul[1] + layer.parts_s),
            attention=again(layer.attention, full | some),
            memory=again(layer.memory, full),
            gaps=again(layer.gaps, full),
            exposed_tp=(exposed_tp[0], exposed_tp[1] + np.where(mlp, layer.exposed_tp[0] / 2, 0.0)),
            exposed_cp=again(layer.exposed_cp, full | some),
            exposed_ep=self._sent_again(layer.exposed_ep),
            weight_s=layer.weight_s,
            parts_s=layer.parts_s,
            offload_s=layer.offload_s,
        )

    def hiding_s(self, layer: Layer) -> tuple[Column, Column]:
        """Compute of a layer that messages may hide behind, both ways: what is done once, or doing it again would seem to pay."""
        some_s = np.where(self.l.recomputes("selective"), layer.attention[0], 0.0) + layer.parts_s
        return layer.compute_s(0), layer.compute_s(1) - np.where(self.l.recomputes_all, layer.compute_s(0), some_s)

    def head_s(self) -> tuple[Column, Column]:
        """Seconds of the output projection (bf16) and the loss, forward and backward, of one micro-batch."""
        q = self.q
        columns = np.ceil(np.asarray(q.vocab) / self.tp)  # with padding, where the vocabulary does not divide
        product_s = matmul_s(self.tokens, columns, q.hidden, self.bf16_flops_per_s, 0.0)
        loss_s = self.tokens * columns * sw.LOSS_BYTES / self.memory_bytes_per_s
        return self._slowed(product_s + loss_s, self.train_matmuls * product_s + loss_s)

    def projection_s(self) -> tuple[Column, Column]:
        """Seconds of the projection of a prediction layer, forward and backward, of one micro-batch; tensor ranks share its work."""
        product_s = matmul_s(self.tokens / self.tp, self.q.hidden, np.asarray(self.q.prediction_inner), self.bf16_flops_per_s, 0.0)
        return self._slowed(product_s, self.train_matmuls * product_s)

    def embedding_s(self) -> Column:
        """Seconds of looking up (or scattering into) the embedding: each token's vector read and written."""
        return np.asarray(self.tokens * self.q.hidden / self.tp * 2 * BF16_BYTES / self.memory_bytes_per_s * self.slowdown)

    def message_s(self) -> Column:
        """Seconds of the hidden states of one micro-batch from one stage to the next."""
        message = self.tokens * self.q.hidden / self.tp * BF16_BYTES
        return np.asarray(neighbour_s(message, self.placement.members["pp"], self._message_bytes_per_s(), self.q.tier_latency_s))

    def _message_bytes_per_s(self) -> Column:
        """Rates of the tiers for messages between stages. Flows that are hashed onto single paths slow each other down only while several
        are on their way, and the ports are idle for most of a step: so a hashed fabric slows messages by the share of time in use."""
        hashed = self.q.tier_is_hashed > 0
        if not hashed.any():
            return self.tier_bytes_per_s
        alone = self.tier_bytes_per_s * np.where(hashed, 1 / np.asarray(self.c.hashed_efficiency), 1.0)
        crowded = 1 + (1 / np.asarray(self.c.hashed_efficiency) - 1) * self._port_share()
        return np.asarray(alone / np.where(hashed, crowded, 1.0))

    def message_share(self) -> Column:
        """Share of time in which a rank's port to the fabric carries messages between stages, beside the traffic of replicas."""
        both = self._crosses_fabric("pp") & self._crosses_fabric("dp")
        return np.where(both, self._port_share(), 0.0) if both.any() else np.zeros_like(self.tokens)

    def _port_share(self) -> Column:
        """Share of time in which messages between stages use a rank's port, if they go through it.

        A chunk sends one message forward and one back, in the time of its forward and of a backward twice as long.
        """
        q = self.q
        sent_s = 2 * self.tokens * q.hidden / self.tp * BF16_BYTES / q.tier_bytes_per_s[-1]  # at line rate
        active = np.asarray(q.layer_parameters) + q.experts_per_token * np.asarray(q.expert_parameters) / q.num_experts
        flops = (2 * active + q.attention_flops) * self.tokens / self.tp * np.asarray(q.num_layers) / (self.pp * self.vp)
        return np.asarray(sent_s / (sent_s + 3 * flops / self.matmul_flops_per_s))

    def parameters(self, split: Split) -> tuple[Column, Column]:
        """Trained parameters on the fullest rank: those all data-parallel ranks share, and routed experts."""
        q = self.q
        layers = np.maximum(np.maximum(split.first, split.last), split.middle).astype(np.float64)
        frozen = np.asarray(q.frozen) > 0
        copied = 2.0 * np.asarray(q.hidden) * (self.kv_dim - q.kv_dim)
        per_layer = np.where(frozen, q.adapter_parameters, q.layer_parameters + copied)
        tables = np.where(self.pp > 1, 1.0, 2.0 - np.asarray(q.tied))
        padding = (-np.asarray(q.vocab) % self.tp) * np.asarray(q.hidden)
        ends = np.where(frozen, 0.0, (q.embedding_parameters + padding) * tables)
        experts = np.where(frozen, 0.0, q.expert_parameters)
        return (layers * per_layer + ends) / self.tp, layers * experts / self.expert_ranks

    def data_parallel_s(self, split: Split, layer: Layer, *, contended: bool = True) -> Column:
        """Seconds of gradient reduction and weight gathering that the step does not hide; without what they take from compute, if asked."""
        shared, experts = self.parameters(split)
        return self._exposed_dp_s(split, layer, self.between(split), shared + experts, self.paid_share(contended=contended))

    def between(self, split: Split) -> Between:
        """Gradients reduced and weights gathered: ZeRO 2 reduces every micro-batch, ZeRO 3 also gathers for each forward and backward."""
        shared, experts = self.parameters(split)
        members = self.placement.joint("cp", "dp")
        sharing = np.minimum(members, self.l.sharing_ranks)
        reduce_s, gather_s_ = self._traffic_s(shared, sharing)
        reduce_s = reduce_s + self._across_s(shared, members, sharing)
        per_expert_rank = np.maximum(self.dp * self.cp * self.tp / self.expert_ranks, 1.0)
        members = np.clip(self.placement.joint("cp", "dp") * self.tp / self.expert_ranks, 1.0, per_expert_rank)
        members[-1] = per_expert_rank
        expert_reduce_s, expert_gather_s = self._traffic_s(experts, members)
        reduce_s, weights_s = reduce_s + expert_reduce_s, gather_s_ + expert_gather_s
        zero = self.l.zero_stage
        return Between(
            forward_s=np.where(zero == 0, 0.0, weights_s),
            num_forward=np.where(zero == 3, self.num_micro_batches, 1),
            reduce_s=np.where(zero == 0, 2 * reduce_s, reduce_s),  # an all-reduce is both
            backward_s=np.where(zero == 3, weights_s, 0.0),
            num_backward=np.where(zero >= 2, self.num_micro_batches, 1),
        )

    def _traffic_s(self, parameters: Column, members: Column) -> tuple[Column, Column]:
        """Seconds of reducing all gradients and of gathering all weights once, hidden or not."""
        buckets = np.maximum(parameters / sw.BUCKET_PARAMETERS, (parameters > 0).astype(float))
        rounds_s = np.where(members[-1] > 1, buckets * (members[-1] - 1) * self.c.round_s, 0.0)
        reduce_s = gather_s(parameters * self.q.reduce_bytes, members, self.tier_bytes_per_s) + rounds_s
        weights_s = gather_s(parameters * self.q.gather_bytes, members, self.tier_bytes_per_s) + rounds_s
        return reduce_s, weights_s

    def _across_s(self, parameters: Column, members: Column, sharing: Column) -> Column:
        """Seconds of summing shards over the groups that each hold a whole state: an all-reduce of one rank's share."""
        if not (self.l.zero_ranks > 0).any():
            return np.zeros_like(parameters)
        reduce_s, _ = self._traffic_s(parameters / self.l.sharing_ranks, members / sharing)
        return np.asarray(2 * reduce_s)

    def paid_share(self, *, contended: bool = True) -> Column:
        """Of traffic between replicas that is hidden, what compute pays for all the same; all of it where nothing hides."""
        hidden = (self.l.overlap_dp > 0) & self.hides
        return np.where(hidden, self.contention if contended else 0.0, np.ones_like(self.tokens))

    def _exposed_dp_s(self, split: Split, layer: Layer, between: Between, parameters: Column, contention: Column) -> Column:
        """What stays exposed.

        Gradients of a chunk leave when its last micro-batch has gone backward; weights of a chunk arrive before its first goes forward:
        all but one of `vp` chunks hide behind the others' turns of `pp` micro-batches. Without a pipeline they hide layer by layer
        behind one micro-batch. Messages between stages that go through the same port leave less time to hide behind.
        """
        piped = self.pp > 1
        turns = np.where(piped, np.minimum(self.pp, self.num_micro_batches) * (self.vp - 1) / self.vp, 1 - 1 / split.middle)
        layers = split.middle.astype(np.float64)
        alone = 1 - self.message_share()
        hiding = [turns * layers * layer.total_s(way) * alone for way in (0, 1)]
        pieces = np.where(piped, self.vp, np.maximum(parameters / sw.BUCKET_PARAMETERS, 1.0))
        zero = self.l.zero_stage
        micro_hiding = [layers * layer.total_s(way) for way in (0, 1)]
        hide = [np.where(zero >= 2, np.minimum(micro_hiding[way], hiding[way]), hiding[way]) for way in (0, 1)]
        forward_s = between.num_forward * exposed_s(between.forward_s, hide[0], pieces, contention)
        return np.asarray(forward_s + between.num_backward * exposed_s(between.reduce_s + between.backward_s, hide[1], pieces, contention))

    def owned_parameters(self, split: Split) -> Column:
        """Trained parameters that one rank updates: its share of those that ranks divide among them."""
        shared, experts = self.parameters(split)
        ranks = np.where(self.l.zero_stage > 0, self.l.sharing_ranks, 1.0)
        expert_ranks = np.where(self.l.zero_stage > 0, np.maximum(self.dp * self.cp * self.tp / self.expert_ranks, 1.0), 1.0)
        return np.asarray(shared / ranks + experts / expert_ranks)

    def optimizer_s(self, split: Split) -> Column:
        """Seconds of Adam on this rank's shard, and of what passes over all gradients and weights once a step."""
        shared, experts = self.parameters(split)
        owned = self.owned_parameters(split)
        assumed = sw.OPTIMIZER_BYTES * owned + sw.STEP_BYTES * (shared + experts)
        update = np.asarray(self.q.update_bytes)
        return np.asarray(np.where(np.isnan(update), assumed, update * owned) / self.memory_bytes_per_s)

    def step_s(self) -> Column:
        """Seconds of the host at the end of a step."""
        return np.asarray(sw.STEP_S * self.slowdown * np.ones_like(self.tokens))

    def ends_tp_s(self) -> Column:
        """Seconds of tensor parallelism at the ends of the model, of one micro-batch: counted within the head's."""
        return np.zeros_like(self.tokens)

    def sender_share(self) -> Any:
        """Of a message between stages, what its sender stands still for: little, if the layout overlaps messages and kernels can pass them.

        To overlap tensor traffic, stacks launch everything through one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1), unless the step is
        a CUDA graph: there, kernels wait behind a message. Rows that differ in their number of chunks show it (docs/accuracy.md).
        """
        one_queue = ~self.graphs & (self.l.overlap_tp > 0) & (self.tp > 1)
        return np.where((self.l.overlap_pp > 0) & ~one_queue & self.hides, sw.PP_EXPOSED, 1.0)

    def sent_s(self, message_s: Column, chunk_s: Column) -> Column:
        """Seconds that a sender stands still for a message: never less than what outlasts the chunk computed meanwhile."""
        share = self.sender_share()
        return np.asarray(np.maximum(message_s * share, np.where(share < 1, message_s - chunk_s, 0.0)))

    def working_message_s(self, message_s: Column) -> Column:
        """Of the seconds of a message between stages, those in which cores work: all, where it is not known better."""
        return message_s

    def core_share(self, times: ChunkTimes, message_s: Column) -> Any:
        """What a pipeline's seconds shrink by where ranks that wait leave their cores to the others: 1, where each has its own."""
        return 1.0


def _waited_s(gpu_s: Column, host_s: Column) -> Column:
    """Seconds that a layer takes beyond its kernels where the host needs `host_s` to launch them: it runs ahead while it is faster."""
    return np.asarray((gpu_s**sw.HOST_SHARPNESS + host_s**sw.HOST_SHARPNESS) ** (1 / sw.HOST_SHARPNESS) - gpu_s)
