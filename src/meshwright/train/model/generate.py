"""Continues a text with a trained transformer, token by token.

Keys and values of earlier tokens are kept, so that each new token costs the work of one token. The cache is connected to the `attend` ports
of the transformer only while a step runs; between two tokens the model is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.errors import InputError
from meshwright.train.kernels.banded import Band, banded
from meshwright.train.kernels.sinks import with_sinks
from meshwright.train.model.attention import Context, Reach
from meshwright.train.model.sampling import check_sampling
from meshwright.train.model.transformer import Transformer


def generate(
    model: Transformer,
    tokens: Sequence[int],
    num_new: int,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_tokens: Collection[int] = (),
    vocab_size: int | None = None,
) -> Iterator[int]:
    """Each new token as it is drawn, up to `num_new` of them; one of `stop_tokens`, if it is drawn, is the last one.

    Temperature 0 always chooses the most probable token. `top_k` draws from the k most probable tokens (0: all), `top_p` from the fewest
    tokens whose probabilities add up to it. `vocab_size` is the number of entries that are real tokens, if the vocabulary was padded. The
    same seed draws the same tokens from the same logits.
    """
    _check(model, tokens, num_new, vocab_size)
    check_sampling(temperature, top_k, top_p)
    generator = torch.Generator().manual_seed(seed)
    draw = partial(sample, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
    return _drawn(model, [int(token) for token in tokens], num_new, draw, stop_tokens, vocab_size)


def _drawn(
    model: Transformer, tokens: list[int], num_new: int, draw: Callable[[Tensor], int], stop_tokens: Collection[int], vocab_size: int | None
) -> Iterator[int]:
    caches = [Cache(len(tokens) + num_new) for _ in model.layers]
    fresh, first = tokens, 0
    for _ in range(num_new):
        token = draw(next_logits(model, fresh, first, caches)[:vocab_size])
        yield token
        if token in stop_tokens:
            return
        first, fresh = first + len(fresh), [token]


class Cache:
    """Keys and values of one layer, for a sequence of at most `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._held: Tensor | None = None  # [2, B, capacity, N, D]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, context: Context, reach: Reach) -> Tensor:
        """Attention of the newest tokens to all so far; [B, T, N, D]."""
        if self._held is None:
            self._held = key.new_empty(2, key.shape[0], self.capacity, *key.shape[2:])
        num_old, self.length = self.length, self.length + key.shape[1]
        self._held[0, :, num_old : self.length] = key
        self._held[1, :, num_old : self.length] = value
        keys, values = self._held[:, :, : self.length]
        window = reach.within(self.length)
        if window or reach.sinks is not None:
            out, log_sums = banded(query, keys, values, Band(window or self.length, shift=num_old))
            return out if reach.sinks is None else with_sinks(out, log_sums, reach.sinks)[0]
        q, k, v = (x.transpose(1, 2) for x in (query, keys, values))
        # The first call has the whole prompt. Later calls have one token, which may attend to all earlier ones.
        out = F.scaled_dot_product_attention(q, k, v, is_causal=num_old == 0 and q.shape[2] > 1, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2)


@contextmanager
def cached(model: Transformer, caches: Sequence[Cache]) -> Iterator[None]:
    """Let the model attend through the caches inside the block."""
    layers = [block.attention for block in model.blocks()]
    before = [attention.attend for attention in layers]
    for attention, cache in zip(layers, caches, strict=True):
        attention.attend = cache.attend
    try:
        yield
    finally:
        for attention, port in zip(layers, before, strict=True):
            attention.attend = port


def next_logits(model: Transformer, fresh: Sequence[int], first: int, caches: Sequence[Cache]) -> Tensor:
    """Scores of the token that follows the `fresh` tokens, which are at positions from `first` on; [V] in fp32 on the CPU."""
    assert model.embed is not None and model.head is not None, "`generate` works on whole models only"
    device = model.embed.weight.device
    context = Context(positions=torch.arange(first, first + len(fresh), device=device))
    with torch.no_grad(), cached(model, caches):
        hidden = model.hidden(torch.tensor([fresh], device=device), context)
        return model.head.logits(hidden[:, -1:])[0, 0].float().cpu()


def sample(logits: Tensor, *, temperature: float, top_k: int, top_p: float, generator: torch.Generator) -> int:
    """One token: the most probable one at temperature 0, otherwise drawn from those that `top_k` and `top_p` allow."""
    if not bool(torch.isfinite(logits).all()):
        raise InputError("the model's logits are not finite", where="the weights", fix="use an earlier checkpoint")
    if temperature == 0:
        return int(logits.argmax())
    likeliest, order = (logits.double() / temperature).sort(descending=True, stable=True)
    probabilities = likeliest.softmax(dim=0)
    if top_k:
        probabilities[top_k:] = 0
    if top_p < 1:
        reached_before = probabilities.cumsum(0) - probabilities
        probabilities[reached_before >= top_p * float(probabilities.sum())] = 0
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def _check(model: Transformer, tokens: Sequence[int], num_new: int, vocab_size: int | None) -> None:
    if model.embed is None or model.head is None:
        raise InputError("this is one stage of a model, not the whole", where="generate", fix="load the model on one rank")
    if not tokens:
        raise InputError("there is no token to continue from", where="the prompt", fix="give a prompt of at least one token")
    known = model.model.vocab_size
    for token in tokens:
        if not 0 <= token < known:
            what = f"token {token} of the prompt is beyond the model's vocabulary of {known}"
            raise InputError(what, where="the prompt", fix="use the tokenizer the model was trained with")
    if vocab_size is not None and not 0 < vocab_size <= known:
        what = f"the tokenizer knows {vocab_size} tokens, the model {known}"
        raise InputError(what, where="the tokenizer", fix="use the tokenizer the model was trained with")
    if num_new < 0:
        raise InputError(f"cannot make {num_new} new tokens", where="the number of tokens", fix="ask for 0 or more")
    positions = model.model.num_positions
    if positions and len(tokens) + num_new > positions:
        what = f"{len(tokens)} tokens and {num_new} new ones are more than the model's {positions} positions"
        raise InputError(
            what, where="the prompt", fix=f"ask for at most {max(positions - len(tokens), 0)} new tokens, or shorten the prompt"
        )
