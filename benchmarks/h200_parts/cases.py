"""What is measured: models, batches, precisions. A case is data, so that a child process gets it as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from h200_parts.mixtures import MIXTURES, SIZES, TINY_OF
from meshwright.describe.load import load_model
from meshwright.describe.model import Model
from meshwright.describe.workload import Training, Workload
from meshwright.layout import Layout

TRAINING = Training(learning_rate=3e-4, clip_norm=1.0)
# On random tokens and without a balance loss, routers that learn soon send every token to the same experts (after 20 steps at 3e-4 the
# fullest of 64 had 10.7 times the mean). With this rate weights keep their first values, and loads are those of first weights. Ours have a
# table of tokens as wide apart as torchtitan's (`apart`), so that tokens do not become alike from layer to layer.
EXPERTS_RATE = 1e-9

# Models that the catalogue does not have: one for runs without a GPU, one for losses on real text.
TINY = Model(
    name="tiny", num_layers=2, hidden=64, ffn_hidden=192, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=512, rotary_theta=500000.0
)
TEXT = Model(
    name="text-100m", num_layers=12, hidden=768, ffn_hidden=2048, num_heads=12, num_kv_heads=4, head_dim=64, vocab_size=16384
)  # 101 M parameters
OWN_MODELS = {**{model.name: model for model in (TINY, TEXT)}, **MIXTURES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to time: a model, a batch, and the numbers it is trained in."""

    name: str
    model: str  # in the catalogue, or one of the above
    batch: int
    precision: str  # as the trainer names it
    states: str  # what weights and moments are kept in: bf16 or fp32
    seq_len: int = 8192
    recompute: str = "none"
    micro_batch: int = 0  # 0: the whole batch at once
    document: int = 0  # mean tokens of a packed document; 0: sequences are whole

    @property
    def is_fp8(self) -> bool:
        """Whether layers multiply in fp8."""
        return "fp8" in self.precision

    @property
    def num_tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.seq_len

    @property
    def learning_rate(self) -> float:
        """The rate of both trainers."""
        return EXPERTS_RATE if model_of(self).experts else TRAINING.learning_rate

    @property
    def words(self) -> str:
        """The case as a table shows it."""
        size = {"llama-3.1-8b": "8B", "llama-3.2-3b": "3B untied", "llama-3.2-1b": "1B untied", **SIZES}.get(self.model, self.model)
        words = [size, f"{self.states} states", f"batch {self.batch}", "fp8" if self.is_fp8 else self.precision.removesuffix("-pure")]
        if self.seq_len != 8192:
            words.append(f"sequence {self.seq_len:,}")
        if self.document:
            words.append(f"packed documents of about {self.document:,}")
        if self.recompute != "none":
            words.append(f"{self.recompute} recompute")
        return ", ".join(words)

    def to_json(self) -> str:
        """The case as one line."""
        return json.dumps(asdict(self))


ASKED = (
    Case(name="8b-bf16", model="llama-3.1-8b", batch=1, precision="bf16-pure", states="bf16"),
    Case(name="8b-fp8", model="llama-3.1-8b", batch=1, precision="fp8-current-pure", states="bf16"),
    Case(name="3b-bf16", model="llama-3.2-3b", batch=2, precision="bf16", states="fp32"),
    Case(name="3b-fp8", model="llama-3.2-3b", batch=2, precision="fp8-current", states="fp32"),
    Case(name="1b-bf16", model="llama-3.2-1b", batch=4, precision="bf16", states="fp32"),
)
OTHERS = (  # predicted before they are run, and asked for nowhere else
    Case(name="1b-4096", model="llama-3.2-1b", batch=4, precision="bf16", states="fp32", seq_len=4096),
    Case(name="3b-recompute", model="llama-3.2-3b", batch=2, precision="bf16", states="fp32", recompute="full"),
    Case(name="8b-batch2", model="llama-3.1-8b", batch=2, precision="bf16-pure", states="bf16"),
)
LONG = (  # long sequences, whole and packed
    Case(name="8b-16384", model="llama-3.1-8b", batch=1, precision="bf16-pure", states="bf16", seq_len=16384),
    Case(name="8b-16384-packed", model="llama-3.1-8b", batch=1, precision="bf16-pure", states="bf16", seq_len=16384, document=4096),
    Case(name="1b-32768", model="llama-3.2-1b", batch=1, precision="bf16", states="fp32", seq_len=32768),
    Case(name="1b-32768-packed", model="llama-3.2-1b", batch=1, precision="bf16", states="fp32", seq_len=32768, document=4096),
)
EXPERTS = tuple(
    Case(name=f"{name}-{length}", model=model, batch=1, precision="bf16-pure", states="bf16", seq_len=length)
    for length in (8192, 4096)
    for name, model in (("qwen3-moe", "qwen3-30b-a3b-16-layers"), ("deepseek-16b", "deepseek-16b"))
)
# What each trainer is to compute again, the fastest setting first: one that does not fit in memory is followed by the next. The 16B model's
# states leave 24 GB, and its gradients, which come while activations go, 31 GB more until then.
SETTINGS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("deepseek-16b-8192", "ours"): ("none", "full"),
    ("deepseek-16b-4096", "ours"): ("none", "full"),
    ("deepseek-16b-8192", "titan"): ("none", "selective", "full"),
    ("deepseek-16b-4096", "titan"): ("none", "selective", "full"),
    ("qwen3-moe-8192", "titan"): ("none", "selective", "full"),
}
EVERY = (*ASKED, *OTHERS, *LONG, *EXPERTS)
NAMES = tuple(case.name for case in EVERY)
END = 0  # the token that ends a document


def chosen(names: Sequence[str], cases: Sequence[Case], *, is_dry: bool) -> list[Case]:
    """The cases of these names, or all; where nothing is to be claimed, the same with a tiny model."""
    found = [case for case in EVERY if case.name in names] if names else list(cases)
    if not is_dry:
        return found
    tiny = [replace(case, model=TINY_OF.get(case.model, TINY.name)) for case in found]
    return [replace(case, seq_len=case.seq_len // 128, document=case.document // 128) for case in tiny]


def case_of(line: str) -> Case:
    """The case that `to_json` wrote."""
    return Case(**json.loads(line))


def model_of(case: Case) -> Model:
    """The case's shapes, with a head of its own: torchtitan ties nothing."""
    return OWN_MODELS[case.model] if case.model in OWN_MODELS else replace(load_model(case.model), tied_embeddings=False)


def settings(case: Case, who: str) -> list[Case]:
    """The case with what a trainer is to compute again, in the order in which its settings are tried."""
    return [replace(case, recompute=recompute) for recompute in SETTINGS.get((case.name, who), (case.recompute,))]


def workload_of(case: Case) -> Workload:
    """The case's sequences and numbers."""
    sizes = {"seq_len": case.seq_len, "global_batch": case.batch, "packed": case.document > 0}
    return Workload(name=case.name, model="", precision=case.precision, training=TRAINING, **sizes)


def batch_of(case: Case, generator: np.random.Generator) -> NDArray[np.int64]:
    """Random tokens [batch, sequence + 1] for every trainer; packed documents end in `END`, at the same places in every batch."""
    tokens = generator.integers(1, model_of(case).vocab_size, (case.batch, case.seq_len + 1))
    if case.document:
        tokens[np.random.default_rng(case.seq_len).random((case.batch, case.seq_len + 1)) < 1 / case.document] = END
    return tokens


def layout_of(case: Case) -> Layout:
    """One GPU."""
    return Layout(micro_batch=case.micro_batch or case.batch, zero_stage=0, recompute=case.recompute)


def state_bytes_per_parameter(case: Case) -> Mapping[str, int]:
    """Bytes that an update cannot but move, for each parameter: each number read once, and those that change written once."""
    states = {"bf16": 2, "fp32": 4}[case.states]
    copy = 0 if case.states == "bf16" else 2  # what the products read
    return {"gradient": 2, "states": 6 * states, "copy": copy}
