"""Generation: the cache against recomputation, seeds, sampling, and what is refused."""

from dataclasses import replace

import pytest
import torch
from llamas import DEEPSEEK_V3, GPT_OSS

from meshwright.describe.model import Model, RotaryScaling
from meshwright.errors import InputError
from meshwright.train.model.attention import Context, attend
from meshwright.train.model.generate import Cache, generate, next_logits, sample
from meshwright.train.model.transformer import Transformer

LLAMA = Model(
    name="small",
    num_layers=3,
    hidden=32,
    ffn_hidden=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=61,
    rotary_scaling=RotaryScaling(factor=8.0, original_positions=16),
)
GPT = replace(LLAMA, num_kv_heads=4, num_positions=48, rotary_scaling=None, gated=False, biases=True, layer_norm=True, tied_embeddings=True)
MODELS = [
    pytest.param(LLAMA, id="Llama"),
    pytest.param(GPT, id="GPT"),
    pytest.param(replace(LLAMA, qk_norm=True, window=6, num_windowed_layers=3), id="norms of heads and a window"),
    *(pytest.param(replace(model, vocab_size=61), id=name) for name, model in {"DeepSeek-V3": DEEPSEEK_V3, "gpt-oss": GPT_OSS}.items()),
]
PROMPT = [5, 17, 60, 0, 3]


def built(model: Model) -> Transformer:
    generator = torch.Generator().manual_seed(0)
    transformer = Transformer(model)
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return transformer


def recomputed(transformer: Transformer, tokens: list[int]) -> torch.Tensor:
    """The next token's logits from a whole forward pass."""
    context = Context(positions=torch.arange(len(tokens)))
    with torch.no_grad():
        return transformer.head.logits(transformer.hidden(torch.tensor([tokens]), context))[0, -1]


@pytest.mark.parametrize("model", MODELS)
def test_the_cache_gives_the_logits_of_recomputation(model):
    transformer = built(model)
    caches = [Cache(40) for _ in transformer.layers]
    tokens, fresh = list(PROMPT), list(PROMPT)
    for _ in range(35):
        found = next_logits(transformer, fresh, len(tokens) - len(fresh), caches)
        torch.testing.assert_close(found, recomputed(transformer, tokens), rtol=1e-5, atol=1e-5)
        fresh = [int(found.argmax())]
        tokens += fresh


@pytest.mark.parametrize("model", MODELS)
def test_greedy_takes_the_likeliest_token_each_time(model):
    transformer = built(model)
    tokens = list(PROMPT)
    for token in generate(transformer, PROMPT, 20, temperature=0):
        assert token == int(recomputed(transformer, tokens).argmax())
        tokens.append(token)
    assert len(tokens) == len(PROMPT) + 20


def test_greedy_is_that_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from meshwright.train.interop.huggingface_save import save_huggingface

    transformer = built(LLAMA)
    save_huggingface(tmp_path / "small", LLAMA, transformer.named_tensors(), context=64, dtype=torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    prompt = torch.tensor([PROMPT])
    expected = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert list(generate(transformer, PROMPT, 30, temperature=0)) == expected[0, len(PROMPT) :].tolist()


def test_a_seed_draws_the_same_tokens_and_another_draws_others():
    transformer = built(LLAMA)
    once = list(generate(transformer, PROMPT, 40, temperature=1.0, seed=7))
    torch.manual_seed(123)  # nobody else's seed matters
    assert list(generate(transformer, PROMPT, 40, temperature=1.0, seed=7)) == once
    assert list(generate(transformer, PROMPT, 40, temperature=1.0, seed=8)) != once


def test_nobody_elses_random_numbers_are_touched():
    before = torch.get_rng_state()
    list(generate(built(LLAMA), PROMPT, 5))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_model_is_itself_between_two_tokens_and_after_an_end_too_early():
    transformer = built(LLAMA)
    expected = recomputed(transformer, PROMPT)
    drawn = generate(transformer, PROMPT, 10)
    next(drawn)
    assert all(block.attention.attend is attend for block in transformer.layers.values())
    assert torch.equal(recomputed(transformer, PROMPT), expected)
    drawn.close()
    assert torch.is_grad_enabled()


def test_the_stop_token_is_the_last():
    transformer = built(LLAMA)
    free = list(generate(transformer, PROMPT, 30, temperature=1.0, seed=1))
    stop = free[10]
    first = free.index(stop)
    assert list(generate(transformer, PROMPT, 30, temperature=1.0, seed=1, stop_tokens=(stop,))) == free[: first + 1]


def test_padding_of_the_vocabulary_is_never_drawn():
    transformer = built(LLAMA)
    drawn = list(generate(transformer, [3], 60, temperature=5.0, vocab_size=20))
    assert max(drawn) < 20
    assert len(set(drawn)) > 10


def draws(logits, num, **settings):
    generator = torch.Generator().manual_seed(0)
    return [
        sample(torch.tensor(logits), generator=generator, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, **settings}) for _ in range(num)
    ]


def test_draws_follow_the_probabilities():
    found = torch.bincount(torch.tensor(draws([0.5, 0.0, -1.0, 0.2], 4_000))) / 4_000
    expected = torch.tensor([0.5, 0.0, -1.0, 0.2]).softmax(0)
    assert (found - expected).abs().max() < 0.03  # four standard deviations


def test_temperature_sharpens():
    found = torch.bincount(torch.tensor(draws([0.5, 0.0], 4_000, temperature=0.5))) / 4_000
    assert (found - torch.tensor([1.0, 0.0]).softmax(0)).abs().max() < 0.03


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 1}, {3}),
        ({"top_p": 0.5}, {3}),
        ({"top_p": 0.7}, {1, 3}),
        ({"top_p": 1e-9}, {3}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_k": 2, "top_p": 0.6}, {3}),
    ],
)
def test_what_top_k_and_top_p_leave(settings, left):
    logits = [0.05, 0.3, 0.1, 0.55]  # as probabilities
    assert set(draws(torch.tensor(logits).log().tolist(), 500, **settings)) == left


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"tokens": []}, "no token to continue from"),
        ({"tokens": [61]}, "token 61 of the prompt is beyond the model's vocabulary of 61"),
        ({"tokens": [-1]}, "token -1"),
        ({"num_new": -1}, "cannot make -1 new tokens"),
        ({"num_new": 44}, "5 tokens and 44 new ones are more than the model's 48 positions"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"vocab_size": 62}, "the tokenizer knows 62 tokens, the model 61"),
    ],
)
def test_what_cannot_be_is_reported_before_the_first_token(arguments, what):
    with pytest.raises(InputError, match=what):
        generate(built(GPT), **{"tokens": PROMPT, "num_new": 5, **arguments})


def test_one_stage_of_a_pipeline_cannot_be_asked():
    with pytest.raises(InputError, match="one stage of a model"):
        generate(Transformer(LLAMA, [0], is_last=False), PROMPT, 1)


def test_broken_weights_are_not_drawn_from():
    transformer = built(LLAMA)
    with torch.no_grad():
        transformer.head.weight[3] = float("nan")
    with pytest.raises(InputError, match="logits are not finite"):
        next(generate(transformer, PROMPT, 1))
