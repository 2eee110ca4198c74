"""A trained model, whole and on one device: from a run's newest checkpoint, or from a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from meshwright.describe.config_json import CONFIG
from meshwright.describe.model import Model
from meshwright.describe.products import adapted_matrices
from meshwright.describe.workload import Adapters
from meshwright.errors import InputError
from meshwright.ledger import checked_plan
from meshwright.plan.plan import Plan
from meshwright.record.header import read_header
from meshwright.storage import Location
from meshwright.train.checkpoint import Piece, load, newest_loadable, read_manifest
from meshwright.train.checkpoint.shard import DTYPES
from meshwright.train.data.tokenizer import Tokenizer, read_tokenizer
from meshwright.train.folders import ADAPTER, CHECKPOINTS, PLAN, check_trained
from meshwright.train.interop.huggingface import load_huggingface, longest_context
from meshwright.train.interop.peft import load_peft, merged, named_pairs, read_config
from meshwright.train.kernels.few_bits import KINDS
from meshwright.train.model.experts import PART
from meshwright.train.model.generate import generate
from meshwright.train.model.transformer import Transformer, views_of
from meshwright.train.tuning.marking import Marker
from meshwright.train.tuning.template import FILE as TEMPLATE
from meshwright.train.tuning.template import ChatTemplate, read_template

RUN = "run.json"
WEIGHTS = "weights/"  # what names of weights begin with in a checkpoint


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A model ready to generate, with the tokenizer it was trained with."""

    transformer: Transformer
    tokenizer: Tokenizer
    context: int | None  # tokens of the longest sequence it was made for; None where it is not known
    source: str  # which weights these are
    notes: tuple[str, ...] = ()
    template: bool = False  # whether the tokenizer puts its own tokens around a text, as Hugging Face's do
    chat: ChatTemplate | None = None  # the template of conversations, if the folder has one

    def chat_tokens(self, question: str) -> list[int]:
        """A user's question in tokens, with the prompt for an answer, by the chat template."""
        if self.chat is None:
            fix = "give --prompt without --chat, or tune the model on conversations"
            raise InputError("the model has no chat template", where=self.source, fix=fix)
        text = self.chat.render([{"role": "user", "content": question}], asks=True, where="--prompt")
        return Marker(self.tokenizer, self.chat).inner.encode(text, add_special_tokens=False).ids

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """The tokens that end a text, or a turn of the assistant."""
        ends = {self.tokenizer.end_of_document}
        if self.chat is not None:
            turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
            marked = self.chat.marked(turn)
            text = marked.text[slice(*marked.spans[-1])] if marked.spans else ""
            ends |= {token for end in self.chat.ends if text.endswith(end) and (token := self.tokenizer.inner.token_to_id(end)) is not None}
        return tuple(sorted(ends))

    def tokens_of(self, prompt: str) -> list[int]:
        """The prompt in tokens, as the model saw texts begin; nothing at all is the end of the document before."""
        tokens = self.tokenizer.inner.encode(prompt, add_special_tokens=self.template).ids
        return tokens or [self.tokenizer.end_of_document]

    def check_fits(self, num_tokens: int, num_new: int) -> None:
        """Pass where prompt and answer are no longer than what the model was trained for."""
        if self.context is not None and num_tokens + num_new > self.context:
            raise InputError(
                f"{num_tokens} tokens of prompt and {num_new} new ones are more than the {self.context} of the model's sequences",
                where="--tokens",
                fix=f"ask for at most {max(self.context - num_tokens, 0)}, or shorten the prompt",
            )


def answer(trained: Trained, prompt: Sequence[int], most: int = 60) -> str:
    """What a model writes after a prompt in tokens, always the most probable token, up to the end of its turn."""
    room = most if trained.context is None else max(min(most, trained.context - len(prompt)), 0)
    drawn = generate(
        trained.transformer, prompt, room, temperature=0.0, stop_tokens=trained.stop_tokens, vocab_size=trained.tokenizer.vocab_size
    )
    return trained.tokenizer.decode(drawn)


@dataclass(frozen=True, kw_only=True, eq=False)
class Whole:
    """All weights of a model, on this processor, with what is known of where they come from."""

    model: Model
    weights: Mapping[str, Tensor]
    source: str
    context: int | None
    notes: tuple[str, ...] = ()

    def fill(self, name: str, shape: Sequence[int], start: Sequence[int], tensor: Tensor) -> None:
        """Fill `tensor` with the piece of the tensor `name` that begins at `start`."""
        assert tuple(self.weights[name].shape) == tuple(shape), "the model is that of these weights"
        tensor.copy_(self.weights[name][tuple(slice(first, first + size) for first, size in zip(start, tensor.shape, strict=True))])


class Source(Protocol):
    """Weights that are read piece by piece."""

    def fill(self, name: str, shape: Sequence[int], start: Sequence[int], tensor: Tensor) -> None:
        """Fill `tensor` with the piece of the tensor `name` that begins at `start`."""


def weights_in(folder: Path) -> tuple[Model, Source]:
    """The model in a Hugging Face folder, a run folder or an adapter's, and its weights. Only those of the first are not read yet."""
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return load_huggingface(folder)
    whole = read_whole(folder)
    return whole.model, whole


def load_trained(folder: Path, device: torch.device, base: Path | None = None, checkpoints: Location | None = None) -> Trained:
    """The model in a run folder, a Hugging Face folder, or an adapter's folder: in fp32 on a CPU, else in bf16.

    `base` is the model beside which an adapter was trained, if it is not where it was then. `checkpoints` is where those of a run are;
    None: in its folder.
    """
    check_trained(folder)
    whole = read_whole(folder, base, _dtype(device), checkpoints)
    tokenizer = read_tokenizer(folder)
    chat = read_template(folder, tokenizer.special_tokens, tokenizer.end_of_document_token)
    return Trained(
        transformer=_assembled(whole.model, whole.weights, device),
        tokenizer=tokenizer,
        context=whole.context,
        source=whole.source,
        notes=whole.notes,
        template=not (folder / PLAN).is_file(),
        chat=None if chat.is_plain and not (folder / TEMPLATE).is_file() else chat,
    )


def read_whole(folder: Path, base: Path | None = None, dtype: torch.dtype = torch.float32, checkpoints: Location | None = None) -> Whole:
    """All weights of a folder; those of adapters are added to their base's. `dtype`: in which those of a Hugging Face folder are read."""
    if (folder / PLAN).is_file():
        return _from_run(folder, base, checkpoints or folder / CHECKPOINTS)
    if (folder / ADAPTER).is_file():
        return _from_peft(folder, base)
    model, source = load_huggingface(folder)
    return Whole(model=model, weights=_all_of(source, model, dtype), source=str(folder), context=longest_context(folder))


def _from_run(folder: Path, base: Path | None, checkpoints: Location) -> Whole:
    plan = checked_plan(folder, "put the run's own plan back: with another plan these weights may be another model")
    adapters, weights = plan.workload.adapters, dict[str, Tensor]()
    model = replace(plan.model, num_prediction_layers=0)  # they help to train, and nothing that uses the weights reads them
    shapes = trained_shapes(model, adapters)

    def read(path: Location) -> None:
        weights.update(_checkpoint_weights(path, shapes))

    found = newest_loadable(checkpoints, check=read)
    skipped = tuple(f"skipped {path.name}: {why}" for path, why in found.skipped)
    if found.path is None:
        what = "; ".join(skipped) or "there is none yet"
        raise InputError(f"the run has no checkpoint to use: {what}", where=str(checkpoints), fix="train until one is saved")
    whole = _beside(base or base_of(folder), model, adapters, weights) if adapters else weights
    notes = (*skipped, *(("without the multi-token-prediction layers",) if plan.model.num_prediction_layers else ()))
    return Whole(model=model, weights=whole, context=_context(folder, plan), source=f"{folder}, step {found.step}", notes=notes)


def _context(folder: Path, plan: Plan) -> int | None:
    """The longest sequence that a run's model reads: of a run that began with a Hugging Face model, as long as that one's."""
    stated = read_header(folder).arguments.get("start_from") if (folder / RUN).is_file() else None
    if isinstance(stated, str) and (Path(stated) / CONFIG).is_file():
        return longest_context(Path(stated))
    return plan.workload.seq_len


def _from_peft(folder: Path, base: Path | None) -> Whole:
    stated = read_config(folder).get("base_model_name_or_path")
    place = base or (Path(stated) if isinstance(stated, str) else None)
    if place is None or not place.is_dir():
        fix = "name the folder of the base: --base-model DIR"
        raise InputError(f"the adapter's base is {stated!r}, which is no folder here", where=str(folder / ADAPTER), fix=fix)
    model, _ = weights_in(place)
    held = load_peft(folder, model)
    pairs = {name: held.tensor(name) for name in held.named}
    whole = _beside(place, model, held.adapters, pairs)
    context = longest_context(place) if (place / CONFIG).is_file() else None
    return Whole(model=model, weights=whole, context=context, source=f"{folder} beside {place}")


def base_of(folder: Path) -> Path:
    """The model beside which a run trained adapters."""
    stated = read_header(folder).arguments.get("start_from")
    if not isinstance(stated, str) or not Path(stated).is_dir():
        fix = "name the folder of the base: --base-model DIR"
        raise InputError(f"the base of the run's adapters is {stated!r}, which is no folder here", where=str(folder), fix=fix)
    return Path(stated)


def _beside(base: Path, model: Model, adapters: Adapters, pairs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a base, as training saw them, with the products of pairs added."""
    held, source = weights_in(base)
    if replace(held, name=model.name, sources=model.sources) != model:
        raise InputError("the base is another model than the one that was tuned", where=str(base), fix="name the model that was tuned")

    def weight(name: str) -> Tensor:
        whole = torch.empty(shapes[name])
        source.fill(name, whole.shape, (0,) * whole.dim(), whole)
        return as_kept(whole, adapters.base) if is_product(name) else whole

    shapes = {name: tuple(bare.shape) for name, bare in _bare(model).named_tensors()}
    adapted = adapted_matrices(model, adapters)
    return {name: merged(weight, lambda half: pairs[half], name, adapters, adapted) for name in shapes}


def is_product(name: str) -> bool:
    """Whether a tensor is a matrix of a layer that a base in few bits keeps so: no router, and no routed expert."""
    return name.startswith("layers.") and name.endswith(".weight") and not any(part in name for part in ("norm", ".router.", PART))


def as_kept(whole: Tensor, base: str) -> Tensor:
    """A matrix as training saw it: in few bits and back, if its base was kept in few bits."""
    if base not in KINDS:
        return whole
    few = KINDS[base](whole.shape[0], slice(0, whole.shape[1]), torch.float32, whole.device)
    few.store(0, whole)
    return few.weight()


def trained_shapes(model: Model, adapters: Adapters | None) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a run trains, by its name: of the whole model, or of its adapters."""
    if adapters:
        return {name: tensor.shape for name, tensor in named_pairs(model, adapters).items()}
    return {name: tuple(bare.shape) for name, bare in _bare(model).named_tensors()}


def _checkpoint_weights(path: Location, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Tensor]:
    """Every weight by its name, in the type it was saved in."""
    saved = read_manifest(path).tensors
    pieces = []
    for name, shape in shapes.items():
        known = saved.get(WEIGHTS + name)
        tensor = torch.empty(shape, dtype=DTYPES[known.dtype] if known else torch.float32)
        pieces.append(Piece(name=WEIGHTS + name, shape=shape, start=(0,) * len(shape), tensor=tensor))
    load(path, pieces, names=None)
    return {piece.name.removeprefix(WEIGHTS): piece.tensor for piece in pieces}


def run_pairs(folder: Path, model: Model, adapters: Adapters) -> Mapping[str, Tensor]:
    """The adapters of a run's newest checkpoint."""
    found = newest_loadable(folder / CHECKPOINTS)
    if found.path is None:
        raise InputError("the run has no checkpoint to use", where=str(folder / CHECKPOINTS), fix="train until one is saved")
    return _checkpoint_weights(found.path, trained_shapes(model, adapters))


def _all_of(source: Source, model: Model, dtype: torch.dtype) -> dict[str, Tensor]:
    weights = {}
    for name, bare in _bare(model).named_tensors():
        weights[name] = torch.empty(bare.shape, dtype=dtype)
        source.fill(name, bare.shape, (0,) * bare.dim(), weights[name])
    return weights


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _bare(model: Model) -> Transformer:
    """The transformer's parameters as names and shapes, without memory for them."""
    with torch.device("meta"):
        return Transformer(model)


def _assembled(model: Model, weights: Mapping[str, Tensor], device: torch.device) -> Transformer:
    """The transformer over these weights."""
    transformer = _bare(model)
    for name, bare in list(transformer.named_parameters()):
        module, _, kind = name.rpartition(".")
        value = torch.empty(bare.shape, dtype=_dtype(device), device=device)
        for tensor, view in views_of(name, value, model):
            view.copy_(weights[tensor])
        setattr(transformer.get_submodule(module), kind, nn.Parameter(value, requires_grad=False))
    for name, _ in list(transformer.named_buffers()):
        module, _, kind = name.rpartition(".")
        setattr(transformer.get_submodule(module), kind, weights[name].to(device, torch.float32))
    if model.tied_embeddings:
        assert transformer.head is not None and transformer.embed is not None, "a model without stages has both ends"
        transformer.head.weight = transformer.embed.weight
    return transformer
