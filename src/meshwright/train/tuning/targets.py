"""The matrices that adapters may be beside, by the names that people give them."""

from __future__ import annotations

from meshwright.describe.model import Model
from meshwright.describe.products import adaptable
from meshwright.describe.workload import ADAPTED
from meshwright.errors import InputError, nearest

ALL_LINEAR = "all-linear"
# Our names of matrices by Hugging Face's.
LATENT = {"q_down": "q_a_proj", "q_up": "q_b_proj", "kv_down": "kv_a_proj_with_mqa", "kv_up": "kv_b_proj"}
MODULES = {LATENT.get(name, f"{name}_proj"): name for names in ADAPTED.values() for name in names}


def matrix_named(name: str, model: Model) -> tuple[str, ...]:
    """The matrices that a target on the command line or in a configuration means: `q_proj`, `q`, `qkv`, `all-linear`."""
    every = adaptable(model)
    if name == ALL_LINEAR:
        return every
    last = name.rpartition(".")[2]
    found = ADAPTED.get(last) or ((MODULES[last],) if last in MODULES else (last,) if last in every else ())
    kept = tuple(part for part in found if part in every)
    if not kept and {*found, MODULES.get(last, last)} & set(ADAPTED["mlp"]) and "gate" not in every and model.gated:
        what = f"adapters beside {name!r} of {model.name}: a model of a family with experts has them beside attention only"
        raise InputError(what, where="targets", fix=f"choose from {ALL_LINEAR}, {', '.join(_theirs(every))}; or train all weights: --full")
    if not kept:
        known = (ALL_LINEAR, *_theirs(every), *ADAPTED)
        raise InputError(f"no linear layer of {model.name} is named {name!r}", where="targets", fix=nearest(name, known))
    return kept


def _theirs(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Hugging Face's names of matrices."""
    return tuple(theirs for theirs, part in MODULES.items() if part in parts)
