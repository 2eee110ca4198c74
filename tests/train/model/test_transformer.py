"""The transformer against transformers' own, document by document, and with recomputation against without."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from meshwright.describe.model import Model, RotaryScaling
from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.model.attention import Context
from meshwright.train.model.rotary import rotary_frequencies
from meshwright.train.model.transformer import Transformer

LLAMA = Model(
    name="small",
    num_layers=2,
    hidden=64,
    ffn_hidden=112,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=97,
    rotary_theta=10000.0,
    norm_epsilon=1e-5,
)
GPT = replace(LLAMA, num_kv_heads=4, ffn_hidden=256, num_positions=128, gated=False, biases=True, layer_norm=True, tied_embeddings=True)
SCALING = RotaryScaling(factor=8.0, original_positions=64, low_turns=1.0, high_turns=4.0)
TOLERANCE = 1e-4


def built(model: Model, seed: int = 0, scale: float = 0.15) -> Transformer:
    """A transformer of random weights: large enough that attention is far from uniform and biases matter."""
    generator = torch.Generator().manual_seed(seed)
    transformer = Transformer(model)
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            if parameter.dim() == 1:
                parameter += 1.0
    return transformer


def tokens_of(num_sequences: int, num_tokens: int, vocab_size: int = 97) -> torch.Tensor:
    return torch.randint(vocab_size, (num_sequences, num_tokens), generator=torch.Generator().manual_seed(1))


def logits(transformer: Transformer, tokens: torch.Tensor, positions: torch.Tensor | None = None, documents=None) -> torch.Tensor:
    context = Context(positions=torch.arange(tokens.shape[1]) if positions is None else positions, documents=documents)
    with torch.no_grad():
        return transformer.head.logits(transformer.hidden(tokens, context))


def their_llama(transformer: Transformer):
    """The same weights in transformers' LlamaForCausalLM."""
    transformers = pytest.importorskip("transformers")
    from meshwright.train.interop.families import their_name
    from meshwright.train.interop.huggingface_save import config_of

    config = config_of(transformer.model, context=4096, dtype=torch.float32, tokenizer=None)
    kind = config.pop("model_type")
    family = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[kind]
    theirs = transformers.AutoModelForCausalLM.from_config(family.from_dict(config)).eval()
    weights = {their_name(name): tensor for name, tensor in transformer.named_tensors()}
    absent, unknown = theirs.load_state_dict(weights, strict=False)
    assert unknown == []
    assert absent == (["lm_head.weight"] if transformer.model.tied_embeddings else [])
    return theirs


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(LLAMA, id="grouped queries"),
        pytest.param(replace(LLAMA, num_kv_heads=4), id="all heads have keys"),
        pytest.param(replace(LLAMA, num_kv_heads=1), id="one key head"),
        pytest.param(replace(LLAMA, tied_embeddings=True), id="tied"),
        pytest.param(replace(LLAMA, head_dim=32), id="heads wider than their share"),
        pytest.param(replace(LLAMA, attention_biases=True), id="attention biases"),
        pytest.param(replace(LLAMA, biases=True), id="all biases"),
        pytest.param(replace(LLAMA, qkv_biases=True), id="Qwen2"),
        pytest.param(replace(LLAMA, norm_epsilon=0.1, rotary_theta=5e5), id="other constants"),
        pytest.param(replace(LLAMA, rotary_theta=5e5, rotary_scaling=SCALING), id="Llama 3.1"),
        pytest.param(replace(LLAMA, rotary_scaling=replace(SCALING, factor=32.0), tied_embeddings=True), id="Llama 3.2"),
    ],
)
def test_logits_are_those_of_transformers(model):
    ours = built(model)
    theirs = their_llama(ours)
    tokens = tokens_of(2, 40)
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert expected.abs().max() > 1  # else a tolerance of 1e-4 says little
    torch.testing.assert_close(logits(ours, tokens), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("first", [0, 1500, 120_000])
def test_scaled_positions_far_beyond_the_original_context(first):
    ours = built(replace(LLAMA, rotary_theta=5e5, rotary_scaling=SCALING))
    theirs = their_llama(ours)
    tokens, positions = tokens_of(1, 512), torch.arange(first, first + 512)
    with torch.no_grad():
        expected = theirs(tokens, position_ids=positions[None]).logits
    torch.testing.assert_close(logits(ours, tokens, positions), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_real_llamas_frequencies(factor):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stated = {"rope_type": "llama3", "rope_theta": 5e5, "factor": factor, "original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(rope_parameters={**stated, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, head_dim=128)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    ours = rotary_frequencies(128, 5e5, replace(SCALING, factor=factor, original_positions=8192))
    assert torch.equal(ours, expected)  # one bit shows in the logits at the end of a long context


def their_gpt2(transformer: Transformer):
    """The same weights in transformers' GPT2LMHeadModel, whose matrices are transposed and whose queries, keys and values are one."""
    transformers = pytest.importorskip("transformers")
    model = transformer.model
    config = transformers.GPT2Config(
        n_layer=model.num_layers,
        n_embd=model.hidden,
        n_inner=model.ffn_hidden,
        n_head=model.num_heads,
        n_positions=model.num_positions,
        vocab_size=model.vocab_size,
        layer_norm_epsilon=model.norm_epsilon,
        activation_function="gelu_new",
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = {name: tensor for name, tensor in transformer.named_tensors()}
    weights = {"wte.weight": ours["embed.weight"], "wpe.weight": ours["embed.positions"]}
    for kind in ("weight", "bias"):
        weights[f"ln_f.{kind}"] = ours[f"head.norm.{kind}"]
        for layer in range(model.num_layers):
            block = {name.removeprefix(f"layers.{layer}."): value for name, value in ours.items() if name.startswith(f"layers.{layer}.")}
            qkv = torch.cat([block[f"attention.{part}.{kind}"] for part in "qkv"])
            pairs = {"attn.c_attn": qkv, "attn.c_proj": block[f"attention.o.{kind}"]}
            pairs |= {"mlp.c_fc": block[f"mlp.up.{kind}"], "mlp.c_proj": block[f"mlp.down.{kind}"]}
            weights |= {f"h.{layer}.{name}.{kind}": value.T if kind == "weight" else value for name, value in pairs.items()}
            weights[f"h.{layer}.ln_1.{kind}"] = block[f"attention_norm.{kind}"]
            weights[f"h.{layer}.ln_2.{kind}"] = block[f"mlp_norm.{kind}"]
    absent, unknown = theirs.transformer.load_state_dict(weights, strict=False)
    assert (absent, unknown) == ([], [])
    return theirs


def test_gpt_blocks_are_those_of_gpt2():
    ours = built(GPT)
    tokens = tokens_of(2, 100)
    with torch.no_grad():
        expected = their_gpt2(ours)(tokens).logits
    assert expected.abs().max() > 1
    torch.testing.assert_close(logits(ours, tokens), expected, rtol=0, atol=TOLERANCE)


def test_the_loss_is_transformers_times_the_number_of_labels():
    ours = built(LLAMA)
    tokens = tokens_of(2, 40)
    labels = tokens.roll(-1, dims=1)
    labels[:, -1] = IGNORED_LABEL
    expected = their_llama(ours)(tokens, labels=tokens).loss.item()
    loss = ours(tokens, Context(positions=torch.arange(40)), labels).item()
    assert loss / (2 * 39) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", [pytest.param(LLAMA, id="rotary"), pytest.param(GPT, id="learned positions")])
def test_attention_does_not_cross_documents(model):
    transformer = built(model)
    tokens = tokens_of(2, 48)
    ends = [[0, 7, 20, 48], [0, 30, 31, 48]]
    documents = torch.zeros(2, 48, dtype=torch.long)
    for row, cuts in enumerate(ends):
        for number, (first, last) in enumerate(pairwise(cuts)):
            documents[row, first:last] = number
    packed = logits(transformer, tokens, documents=documents)
    for row, cuts in enumerate(ends):
        for first, last in pairwise(cuts):
            alone = logits(transformer, tokens[row : row + 1, first:last], torch.arange(first, last))
            torch.testing.assert_close(packed[row, first:last], alone[0], rtol=0, atol=1e-5)
    assert (packed - logits(transformer, tokens)).abs().max() > 0.1


def test_rotary_positions_are_relative():
    transformer = built(LLAMA)
    tokens = tokens_of(1, 32)
    shifted = logits(transformer, tokens, torch.arange(1000, 1032))
    torch.testing.assert_close(shifted, logits(transformer, tokens), rtol=0, atol=TOLERANCE)


def gradients(model: Model, recompute: str) -> tuple[float, dict[str, torch.Tensor]]:
    transformer = built(model)
    for block in transformer.layers.values():
        block.recomputes = recompute == "full"
        block.attention.recomputes = recompute == "selective"
    tokens = tokens_of(2, 24)
    documents = (torch.arange(24) // 10).expand(2, 24)
    loss = transformer(tokens, Context(positions=torch.arange(24), documents=documents), tokens.roll(-1, dims=1))
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in transformer.named_parameters()}


@pytest.mark.parametrize("model", [pytest.param(LLAMA, id="Llama"), pytest.param(GPT, id="GPT")])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_changes_no_gradient(model, recompute):
    loss, expected = gradients(model, "none")
    again, found = gradients(model, recompute)
    assert again == loss
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name
        if not name.endswith("k.bias"):  # one score more for every key: the softmax does not see it
            assert gradient.abs().max() > 1e-3, name


@pytest.mark.parametrize("model", [LLAMA, replace(GPT, tied_embeddings=False)], ids=["Llama", "GPT"])
def test_stages_in_a_row_are_the_whole(model):
    whole = built(model)
    first, last = Transformer(model, [0], is_last=False), Transformer(model, [1], is_first=False)
    state = whole.state_dict()
    for stage in (first, last):
        stage.load_state_dict({name: state[name] for name in stage.state_dict()})
    assert first.state_dict().keys() | last.state_dict().keys() == state.keys()
    tokens, context = tokens_of(2, 24), Context(positions=torch.arange(24))
    labels = tokens.roll(-1, dims=1)
    assert last(first(tokens, context), context, labels).item() == whole(tokens, context, labels).item()
