"""A transformer as shapes. All counts of parameters and FLOPs are derived from the shapes in this module only.

FLOPs are those of matrix multiplications (2 per multiply-add) and of attention. Causal attention is counted
once: a token attends to half of the sequence on average. Norms, activations and the softmax are not
counted, as is usual for MFU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from meshwright.arguments import check_types, typed
from meshwright.describe.bounds import check_numbers
from meshwright.describe.router import Router
from meshwright.describe.source import Sources
from meshwright.errors import InputError
from meshwright.units import parameters

YARN = "yarn"
ROTARY_KINDS = ("llama3", YARN)


def spread_layers(num_chosen: int, num_layers: int) -> tuple[int, ...]:
    """Layers spread evenly over a model, beginning with the first: every second one for half of them."""
    ends = [-(-layer * num_chosen // num_layers) for layer in range(num_layers + 1)]
    return tuple(layer for layer in range(num_layers) if ends[layer + 1] > ends[layer])


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in the place of the dense MLP."""

    num_experts: int
    num_active: int  # routed experts a token visits
    hidden: int  # width of one expert
    num_shared: int = 0  # experts of the same width that every token visits
    num_dense_layers: int = 0  # leading layers that keep the dense MLP
    router: Router = field(default_factory=Router)  # how tokens choose experts
    activation_limit: float = 0.0  # gpt-oss clamps what its gates and inputs may be, and gates otherwise; 0: SwiGLU


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """DeepSeek's multi-head latent attention: queries, keys and values come from low-rank vectors."""

    query_rank: int  # 0: queries are projected directly
    key_value_rank: int
    nope_dim: int  # per head, without rotary position
    rope_dim: int
    value_dim: int
    interleaved: bool = True  # whether rotary dimension 2i turns with 2i + 1, as in DeepSeek's weights; otherwise i with i + rope_dim / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How rotary positions are scaled for contexts longer than the original one.

    Dimensions that turn fewer than `low_turns` times over the original context are slowed down by `factor`; those that turn more than
    `high_turns` times are not changed. Between the two, Llama 3 interpolates by the number of turns, and YaRN by that of the dimension.
    YaRN also multiplies queries and keys by `magnitude`, and DeepSeek the scores by `score_factor`.
    """

    factor: float
    original_positions: int
    low_turns: float = 1.0
    high_turns: float = 4.0
    kind: str = "llama3"  # or yarn
    truncates: bool = True  # YaRN: whether the first and the last dimension of the ramp are rounded to whole numbers
    mscale: float = 0.0  # YaRN: weights of log(factor) in the magnitude; 0: not stated
    mscale_all_dim: float = 0.0
    stated_magnitude: float = 0.0  # YaRN: 0: it follows from the others

    def __post_init__(self) -> None:
        if self.kind not in ROTARY_KINDS:
            raise InputError(
                f"rotary positions cannot be scaled by {self.kind!r}",
                where="rotary_scaling.kind",
                fix=f"use one of {', '.join(ROTARY_KINDS)}",
            )

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.kind != YARN:
            return 1.0
        if self.stated_magnitude:
            return self.stated_magnitude
        if self.mscale and self.mscale_all_dim:
            return self._length(self.mscale) / self._length(self.mscale_all_dim)
        return self._length(1.0)

    @property
    def score_factor(self) -> float:
        """What scores of latent attention are multiplied by, besides the usual scale."""
        return self._length(self.mscale_all_dim) ** 2 if self.kind == YARN and self.mscale_all_dim else 1.0

    def _length(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The shapes of a decoder-only transformer.

    Args:
        name: Name of the model.
        num_layers: Number of layers, without prediction layers.
        hidden: Width of the hidden states.
        ffn_hidden: Width of the dense MLP.
        num_heads: Number of query heads.
        num_kv_heads: Number of key-value heads.
        head_dim: Width of one head.
        vocab_size: Number of tokens in the vocabulary.
        gated: Whether the MLP is gated (SwiGLU): three matrices instead of two.
        biases: Whether every linear layer has a bias.
        attention_biases: Whether only the four projections of attention have biases.
        qkv_biases: Whether only queries, keys and values have biases.
        tied_embeddings: Whether the output projection uses the weights of the embedding.
        num_positions: Number of learned positions; 0: positions are rotary.
        rotary_theta: Base of the rotary wavelengths.
        rotary_scaling: Llama 3's scaling of rotary positions or YaRN, if used.
        norm_epsilon: Epsilon of the norms.
        layer_norm: Whether norms are LayerNorm (weight and bias) instead of RMSNorm (weight).
        qk_norm: Whether queries and keys are normalized.
        attention_sinks: Whether each head has a learned logit as a sink.
        window: Number of tokens that a token of a windowed layer attends to, itself included; 0: no layer has a window.
        num_windowed_layers: Number of layers with a window.
        windowed_layers: The numbers of these layers, counted from 0; empty: they are spread evenly, beginning with the first layer.
        num_prediction_layers: Number of additional layers for multi-token prediction.
        experts: The mixture of experts, if the model has one.
        latent: Multi-head latent attention, if the model has it.
        sources: Where the numbers come from.
    """

    name: str
    num_layers: int
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    gated: bool = True  # SwiGLU: three MLP matrices instead of two
    biases: bool = False  # on every linear layer
    attention_biases: bool = False  # on the four attention projections only
    qkv_biases: bool = False  # on queries, keys and values only, as in Qwen2
    tied_embeddings: bool = False
    num_positions: int = 0  # learned positions; 0 where they are rotary
    rotary_theta: float = 10000.0  # base of the rotary wavelengths
    rotary_scaling: RotaryScaling | None = None
    norm_epsilon: float = 1e-5
    layer_norm: bool = False  # LayerNorm (weight and bias) instead of RMSNorm (weight)
    qk_norm: bool = False
    attention_sinks: bool = False  # one learned logit per head
    window: int = 0  # tokens that a token of a windowed layer attends to, itself included; 0: no layer has a window
    num_windowed_layers: int = 0
    windowed_layers: tuple[int, ...] = ()  # their numbers; empty: spread evenly, from the first layer on
    num_prediction_layers: int = 0  # extra multi-token-prediction layers
    experts: Experts | None = None
    latent: LatentAttention | None = None
    sources: Sources = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_types(self)
        for key in ("num_layers", "hidden", "ffn_hidden", "num_heads", "num_kv_heads", "head_dim", "vocab_size"):
            if getattr(self, key) < 1:
                raise InputError(f"{key} is {getattr(self, key)}", where=f"model {self.name}: {key}", fix="give 1 or more")
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads evenly",
                where=f"model {self.name}: num_kv_heads",
                fix="choose a divisor of num_heads",
            )
        if self.experts is not None:
            self._check_experts(self.experts)
            self.experts.router.check(self.experts.num_experts, self.experts.num_active, f"model {self.name}: experts")
        check_numbers(self, f"model {self.name}")
        self._check_windows()

    def _check_experts(self, experts: Experts) -> None:
        for key in ("num_experts", "num_active", "hidden"):
            if getattr(experts, key) < 1:
                raise InputError(f"{key} is {getattr(experts, key)}", where=f"model {self.name}: experts: {key}", fix="give 1 or more")
        if experts.num_dense_layers > self.num_layers:
            raise InputError(
                f"{experts.num_dense_layers} leading layers cannot be dense, where there are {self.num_layers}",
                where=f"model {self.name}: experts: num_dense_layers",
                fix=f"give {self.num_layers} or less",
            )

    def _check_windows(self) -> None:
        given, where = self.windowed_layers, f"model {self.name}: windowed_layers"
        if self.num_windowed_layers > self.num_layers:
            what = f"{self.num_windowed_layers} layers have a window, and the model has {self.num_layers}"
            raise InputError(what, where=f"model {self.name}: num_windowed_layers", fix=f"give at most {self.num_layers}")
        if given and (len(set(given)) != self.num_windowed_layers or len(given) != self.num_windowed_layers):
            what = f"windowed_layers names {len(set(given))} layers, and num_windowed_layers is {self.num_windowed_layers}"
            raise InputError(what, where=where, fix="name each windowed layer once, or leave windowed_layers out")
        if given and max(given) >= self.num_layers:
            what = f"layer {max(given)} has a window, and the last layer is {self.num_layers - 1}"
            raise InputError(what, where=where, fix="count layers from 0")

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {parameters(self.num_parameters)} parameters, {self.num_layers} layers, hidden {self.hidden})"

    @property
    def query_dim(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * (self.latent.nope_dim + self.latent.rope_dim if self.latent else self.head_dim)

    @property
    def value_dim(self) -> int:
        """Width of the attention output before its projection."""
        return self.num_heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def kv_dim(self) -> int:
        """Width of keys (or of values) of all key-value heads together, as attention reads them."""
        return self.query_dim if self.latent else self.num_kv_heads * self.head_dim

    @property
    def attended_dim(self) -> int:
        """Width of one head in attention itself: latent heads are as wide as the wider of keys and values."""
        latent = self.latent
        return max(latent.nope_dim + latent.rope_dim, latent.value_dim) if latent else self.head_dim

    @typed
    def window_of(self, layer: int) -> int:
        """Tokens that a token of this layer attends to, itself included; 0: all earlier ones. Prediction layers are like the last layer."""
        if not self.window or not self.num_windowed_layers:
            return 0
        layer = min(layer, self.num_layers - 1)
        return self.window if layer in (self.windowed_layers or spread_layers(self.num_windowed_layers, self.num_layers)) else 0

    @typed
    def key_copies(self, tp: int) -> int:
        """How many of `tp` tensor-parallel ranks hold the same key-value head: one, unless there are more ranks than heads."""
        return 1 if self.latent else max(tp // self.num_kv_heads, 1)

    @typed
    def vocab_rows(self, tp: int) -> int:
        """Entries of the vocabulary on each of `tp` tensor-parallel ranks. Where they do not divide, the last ones are padding."""
        if tp < 1:
            raise InputError(f"tp is {tp}", where="tp", fix="give a number of ranks: 1 or more")
        return -(-self.vocab_size // tp)

    @property
    def attention_matrix_parameters(self) -> int:
        """Weights of one layer's attention matrices."""
        if self.latent is None:
            return self.hidden * (self.query_dim + 2 * self.kv_dim) + self.query_dim * self.hidden
        latent = self.latent
        if latent.query_rank:
            queries = self.hidden * latent.query_rank + latent.query_rank * self.query_dim
        else:
            queries = self.hidden * self.query_dim
        down = self.hidden * (latent.key_value_rank + latent.rope_dim)
        up = latent.key_value_rank * self.num_heads * (latent.nope_dim + latent.value_dim)
        return queries + down + up + self.value_dim * self.hidden

    @typed
    def attended_tokens(self, seq_len: int) -> float:
        """Mean number of earlier tokens that a token attends to, over all layers: half of the sequence, or less with a window."""
        full = seq_len / 2
        if not self.window or not self.num_windowed_layers:
            return full
        window = min(self.window, seq_len)
        windowed = window - window * window / (2 * seq_len)
        share = self.num_windowed_layers / self.num_layers
        return share * windowed + (1 - share) * full

    @typed
    def attention_flops_per_token(self, seq_len: int) -> float:
        """Forward FLOPs of one layer's score and value products for one token."""
        return 2 * (self.query_dim + self.value_dim) * self.attended_tokens(seq_len)

    @property
    def mlp_matrices(self) -> int:
        """Matrices of one MLP: gate, up and down, or up and down."""
        return 3 if self.gated else 2

    @property
    def dense_mlp_parameters(self) -> int:
        """Weights of one dense MLP."""
        return self.mlp_matrices * self.hidden * self.ffn_hidden

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert; 0 in a dense model."""
        return self.mlp_matrices * self.hidden * self.experts.hidden if self.experts else 0

    @property
    def num_expert_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.num_layers - self.experts.num_dense_layers if self.experts else 0

    @property
    def num_routers(self) -> int:
        """Layers of the model and of multi-token prediction that have a router: prediction layers are like the last layer."""
        return self.num_expert_layers + self.num_prediction_layers if self.experts else 0

    @property
    def ends_share_table(self) -> bool:
        """Whether the first and the last pipeline stage both hold the embedding: as a tied head, or for multi-token prediction."""
        return self.tied_embeddings or self.num_prediction_layers > 0

    @property
    def num_dense_layers(self) -> int:
        """Layers whose MLP is dense."""
        return self.num_layers - self.num_expert_layers

    @property
    def shared_expert_parameters(self) -> int:
        """Weights of the experts of one layer that every token visits."""
        return self.expert_parameters * self.experts.num_shared if self.experts else 0

    @property
    def router_parameters(self) -> int:
        """Weights of one layer's router."""
        return self.hidden * self.experts.num_experts if self.experts else 0

    @property
    def small_parameters_per_layer(self) -> int:
        """Parameters of the norms, biases and sinks of one layer. They count in memory and in totals, but not in FLOPs."""
        norm = (2 if self.layer_norm else 1) * self.hidden
        count = 2 * norm
        if self.qk_norm:
            count += 2 * self.head_dim
        if self.attention_sinks:
            count += self.num_heads
        if self.latent:
            count += self.latent.query_rank + self.latent.key_value_rank
        if self.biases or self.attention_biases or self.qkv_biases:
            count += self.query_dim + 2 * self.kv_dim
        if self.biases or self.attention_biases:
            count += self.hidden
        if self.biases and not self.experts:
            count += (self.mlp_matrices - 1) * self.ffn_hidden + self.hidden
        if self.biases and self.experts:
            count += self.experts.num_experts * (self.expert_bias_parameters + 1)  # and the router's
        return count

    @property
    def expert_bias_parameters(self) -> int:
        """Biases of one routed expert; 0 where there are none."""
        return (self.mlp_matrices - 1) * self.experts.hidden + self.hidden if self.biases and self.experts else 0

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding (and learned positions)."""
        return (self.vocab_size + self.num_positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Weights of the output projection: vocab x hidden, also where they are shared with the embedding."""
        return self.vocab_size * self.hidden

    @property
    def dense_layer_parameters(self) -> int:
        """Matrix weights of a layer with a dense MLP."""
        return self.attention_matrix_parameters + self.dense_mlp_parameters

    @property
    def num_parameters(self) -> int:
        """Number of all parameters. Tied ones count once; prediction layers are left out, as in the published counts."""
        count = self.num_layers * (self.attention_matrix_parameters + self.small_parameters_per_layer)
        count += self.num_dense_layers * self.dense_mlp_parameters
        if self.experts:
            per_layer = self.experts.num_experts * self.expert_parameters + self.shared_expert_parameters + self.router_parameters
            count += self.num_expert_layers * per_layer
        count += self.embedding_parameters + (2 if self.layer_norm else 1) * self.hidden
        return count if self.tied_embeddings else count + self.head_parameters

    @property
    def prediction_parameters(self) -> int:
        """Parameters of all prediction layers: a block like the last one, a projection and three norms each. Tables are shared."""
        block = self.attention_matrix_parameters + self.small_parameters_per_layer
        if self.experts:
            block += self.experts.num_experts * self.expert_parameters + self.shared_expert_parameters + self.router_parameters
        else:
            block += self.dense_mlp_parameters
        norms = 3 * (2 if self.layer_norm else 1) * self.hidden
        return self.num_prediction_layers * (block + 2 * self.hidden**2 + norms)

    @property
    def num_active_parameters(self) -> int:
        """Number of parameters that one token uses: of the routed experts only those that it visits, and the whole embedding."""
        if not self.experts:
            return self.num_parameters
        idle = (self.experts.num_experts - self.experts.num_active) * (self.expert_parameters + self.expert_bias_parameters)
        return self.num_parameters - self.num_expert_layers * idle

    @property
    def layer_matrix_parameters_per_token(self) -> float:
        """Matrix weights that a token uses in a layer, averaged over the layers."""
        count = float(self.num_layers * self.attention_matrix_parameters + self.num_dense_layers * self.dense_mlp_parameters)
        if self.experts:
            visited = self.experts.num_active * self.expert_parameters + self.shared_expert_parameters + self.router_parameters
            count += self.num_expert_layers * visited
        return count / self.num_layers

    @typed
    def flops_per_token(self, seq_len: int) -> float:
        """Forward and backward FLOPs of one token in pre-training, without recompute, with causal attention counted once."""
        layer = 2 * self.layer_matrix_parameters_per_token + self.attention_flops_per_token(seq_len)
        return 3 * (self.num_layers * layer + 2 * self.head_parameters)

    @typed
    def cut_to(self, num_layers: int) -> Model:
        """The same model with fewer layers, for a small machine."""
        kept = tuple(layer for layer in self.windowed_layers if layer < num_layers)
        windowed = len(kept) if self.windowed_layers else round(self.num_windowed_layers * num_layers / self.num_layers)
        experts = self.experts and replace(self.experts, num_dense_layers=min(self.experts.num_dense_layers, num_layers))
        return replace(
            self,
            name=f"{self.name}-l{num_layers}",
            num_layers=num_layers,
            num_windowed_layers=windowed,
            windowed_layers=kept,
            experts=experts,
        )
