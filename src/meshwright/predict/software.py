"""What data sheets do not give: fitted constants, assumptions with their reasons, and how fast each software release is.

The fitted values are data, written by `meshwright fit` into `evidence/constants.json`; this module says what each means and between
which bounds it may lie. An assumption is a number that was chosen for a reason given here and not fitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from meshwright.describe.hardware import Accelerator
from meshwright.describe.profile import Profile
from meshwright.errors import InputError, argument, nearest
from meshwright.files import read_text
from meshwright.predict.practice import (
    CLASSES,
    MESHWRIGHT,
    MLPERF,
    NEMO,
    UNKNOWN,
    UNTUNED,
    Effects,
    ExpertConstants,
    ExpertPractice,
    class_of,
)

CONSTANTS_FILE = Path(__file__).parents[1] / "evidence" / "constants.json"
REFERENCE_RELEASE = "v5.1"  # the release with the most rows: others are so much slower or faster
BLACKWELL = "blackwell"
GENERATIONS = {"hopper": "hopper", "blackwell": BLACKWELL, "blackwell-ultra": BLACKWELL}  # of architectures that constants were fitted for
RELEASES = ("v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1", "v6.0")  # of MLPerf Training, oldest first

# Numbers that were chosen for a reason and not fitted; `ASSUMED` says what each means and why.
MATMUL_CEILING = 0.95
MATMUL_HALF_SIZE = 100.0
BF16_PJ_PER_FLOP = {"hopper": 0.137, "blackwell": 0.120}
FP8_ATTENTION_SPEEDUP = 1.35
BACKWARD_ATTENTION = 2.5
SCALE_UP_EFFICIENCY = 0.85
ADAPTER_TP_HIDDEN = 0.0
COLLECTIVE_S = 9.5e-6
RING_ROUND_S = 15e-6
GRAPH_CHUNK_S = 100e-6
PP_EXPOSED = 0.1
BUCKET_PARAMETERS = 134_217_728.0
OPTIMIZER_BYTES = 30.0
STEP_BYTES = 12.0
STEP_S = 0.004
TP_HOST = 0.2
HOST_SHARPNESS = 6.0
LOSS_BYTES = 8.0
CHIP_REFERENCE = (700.0, 989e12)


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a chosen number means, its unit, and the reason for it."""

    meaning: str
    unit: str
    reason: str


ASSUMED: Mapping[str, Assumed] = {
    "MATMUL_CEILING": Assumed("matrix products, of the peak, where power does not limit them", "", "what the best kernels reach"),
    "MATMUL_HALF_SIZE": Assumed("columns or rows at which a product reaches half its rate", "", "one tile of 128 columns is mostly edge"),
    "BF16_PJ_PER_FLOP": Assumed("energy of a bf16 FLOP at the power cap", "pJ", "measured maxima of H100, B200, GB200, B300 (MAMF)"),
    "FP8_ATTENTION_SPEEDUP": Assumed("attention in fp8 over bf16", "x", "the products are twice as fast, the exponentials are not"),
    "BACKWARD_ATTENTION": Assumed("forwards that a backward of flash attention takes", "x", "five products against two"),
    "SCALE_UP_EFFICIENCY": Assumed(
        "of the NVLink rate, what collectives reach", "", "NCCL all-reduce on GB200 NVL72: 65 % at 0.5 GiB, 93 % at 4 GiB"
    ),
    "ADAPTER_TP_HIDDEN": Assumed("of tensor traffic, hidden where adapters sit beside the products", "", "their own traffic comes between"),
    "COLLECTIVE_S": Assumed(
        "what a gather or scatter among tensor ranks takes whatever its size", "s", "half of a small all-reduce on 8 GPUs: 18.9 us"
    ),
    "RING_ROUND_S": Assumed("one more round of ring attention, forward", "s", "further kernels; twice that backward"),
    "GRAPH_CHUNK_S": Assumed("a pipeline operation inside a CUDA graph", "s", "its sends, receives and their joins"),
    "PP_EXPOSED": Assumed("of a pipeline message, exposed where it is overlapped (inside CUDA graphs)", "", "the copy in and out"),
    "BUCKET_PARAMETERS": Assumed("parameters of one data-parallel reduction", "", "the record machine's setting"),
    "OPTIMIZER_BYTES": Assumed("Adam on a parameter's shard", "bytes", "gradient, master, two moments read; three written, and the weight"),
    "STEP_BYTES": Assumed("a parameter and step beside that", "bytes", "gradients zeroed and cast, gathered weights copied and cast"),
    "STEP_S": Assumed("host work at the end of a step", "s", "norm, clipping, logging"),
    "TP_HOST": Assumed("more of the host's time for a layer under tensor parallelism", "", "four collectives beside about fifteen kernels"),
    "HOST_SHARPNESS": Assumed("how sharply a layer turns from kernel-bound to host-bound", "", "the queue between them hides short waits"),
    "LOSS_BYTES": Assumed("a logit, forward or backward", "bytes", "written once in bf16, read in fp32 halves"),
    "CHIP_REFERENCE": Assumed(
        "W and bf16 FLOP/s that unfitted chips are scaled from",
        "",
        "H100: chips of no fitted generation are assumed to be equally efficient",
    ),
}


def is_fitted(accelerator: Accelerator) -> bool:
    """Whether constants were fitted for accelerators of this generation."""
    return accelerator.architecture in GENERATIONS


def generation_of(accelerator: Accelerator) -> str:
    """The generation whose fitted constants apply; for one that was never fitted, Hopper's."""
    return GENERATIONS.get(accelerator.architecture, "hopper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What one fitted constant means: its unit, the value expected beforehand and how sure that was, and bounds."""

    meaning: str
    unit: str
    expected: float
    spread: float
    low: float
    high: float


FITTED: Mapping[str, Fitted] = {
    "hopper_fp8_pj": Fitted(
        meaning="energy of an fp8 FLOP on Hopper at the cap", unit="pJ/FLOP", expected=0.13, spread=0.03, low=0.01, high=0.6
    ),
    "blackwell_fp8_pj": Fitted(
        meaning="energy of an fp8 FLOP on Blackwell at the cap", unit="pJ/FLOP", expected=0.09, spread=0.03, low=0.01, high=0.4
    ),
    "ultra_fp8_pj": Fitted(
        meaning="energy of an fp8 FLOP on Blackwell Ultra at the cap", unit="pJ/FLOP", expected=0.13, spread=0.04, low=0.01, high=0.4
    ),
    "blackwell_fp4_pj": Fitted(
        meaning="energy of an fp4 FLOP on Blackwell at the cap", unit="pJ/FLOP", expected=0.06, spread=0.03, low=0.005, high=0.3
    ),
    "hopper_attention": Fitted(
        meaning="flash attention on Hopper, of its bf16 matmul rate", unit="fraction", expected=0.65, spread=0.05, low=0.2, high=0.95
    ),
    "blackwell_attention": Fitted(
        meaning="flash attention on Blackwell, of its bf16 matmul rate", unit="fraction", expected=0.65, spread=0.05, low=0.2, high=0.95
    ),
    "softmax_exponent": Fitted(
        meaning="how much of faster exponentials attention gains, as a power", unit="1", expected=0.3, spread=0.15, low=0.0, high=1.0
    ),
    "memory_efficiency": Fitted(
        meaning="HBM bandwidth that elementwise kernels reach", unit="fraction", expected=0.75, spread=0.1, low=0.3, high=1.0
    ),
    "layer_s": Fitted(
        meaning="gaps between kernels of a layer's forward, with CUDA graphs", unit="s", expected=60e-6, spread=30e-6, low=0.0, high=1e-3
    ),
    "eager_layer_s": Fitted(
        meaning="further gaps of a layer's forward without CUDA graphs", unit="s", expected=100e-6, spread=100e-6, low=0.0, high=1e-3
    ),
    "eager_chunk_s": Fitted(
        meaning="host time of one pipeline operation without CUDA graphs", unit="s", expected=200e-6, spread=200e-6, low=0.0, high=2e-3
    ),
    "tp_hidden": Fitted(
        meaning="tensor traffic that products hide where it is overlapped", unit="fraction", expected=0.7, spread=0.3, low=0.0, high=1.0
    ),
    "fabric_efficiency": Fitted(
        meaning="bandwidth of adaptive fabrics that collectives reach", unit="fraction", expected=0.75, spread=0.1, low=0.3, high=1.0
    ),
    "hashed_efficiency": Fitted(
        meaning="of that, what flows hashed onto single paths reach", unit="fraction", expected=0.25, spread=0.05, low=0.1, high=1.0
    ),
    "round_s": Fitted(meaning="one round of a ring", unit="s", expected=2e-6, spread=1e-6, low=0.0, high=2e-5),
    "hopper_contention": Fitted(
        meaning="hidden data-parallel time that compute pays for, Hopper", unit="fraction", expected=0.5, spread=0.25, low=0.0, high=1.0
    ),
    "blackwell_contention": Fitted(
        meaning="hidden data-parallel time that compute pays for, Blackwell", unit="fraction", expected=0.2, spread=0.1, low=0.0, high=1.0
    ),
    "chip_spread": Fitted(
        meaning="spread of speed between chips of a kind: the slowest of N sets the pace", unit="fraction", expected=0.025, spread=0.007,
        low=0.0, high=0.08,
    ),
    **{
        f"release {name}": Fitted(
            meaning=f"time of round {name}'s software against {REFERENCE_RELEASE}'s, as a logarithm", unit="ln", expected=0.0, spread=0.15,
            low=-0.6, high=0.6,
        )
        for name in RELEASES
        if name != REFERENCE_RELEASE
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """One value, or a column of values, for every fitted constant but the releases."""

    hopper_fp8_pj: Any
    blackwell_fp8_pj: Any
    ultra_fp8_pj: Any
    blackwell_fp4_pj: Any
    hopper_attention: Any
    blackwell_attention: Any
    softmax_exponent: Any
    memory_efficiency: Any
    layer_s: Any
    eager_layer_s: Any
    eager_chunk_s: Any
    tp_hidden: Any
    fabric_efficiency: Any
    hashed_efficiency: Any
    round_s: Any
    hopper_contention: Any
    blackwell_contention: Any
    chip_spread: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A software stack as the predictor sees it: the fitted constants, and its time against the reference release."""

    name: str
    constants: Constants
    release: str  # of MLPerf or a container; the nearest one fitted
    log_factor: float  # ln of its time over the reference release's
    finetuning: Mapping[str, float] = field(hash=False)  # the same for jobs that train adapters, by generation of the chip
    known: bool  # whether runs of this very release were fitted
    evaluation_s: float = 0.0  # what an evaluation takes beside its forward passes
    note: str = ""
    profile: Profile | None = None  # what was timed on the machine: prices compute in place of the constants
    effects: Effects = field(default_factory=Effects)  # of its class; log_factor is the field above
    # Effects by name: of a generation that the constants were not fitted for, of a precision recipe, of attention that is not fused.
    further: Mapping[str, Effects] = field(default_factory=dict, hash=False)
    experts: ExpertConstants = field(default_factory=ExpertConstants)
    practice: ExpertPractice | None = None  # how experts are run; None: as the release does on the chip
    is_default: bool = field(default=False, compare=False)  # whether nobody named it: a named stack then brings its own class

    @property
    def kind(self) -> str:
        """The class of the software: mlperf, nemo, megatron, torchtitan, fsdp or meshwright; empty for none of them."""
        return class_of(self.release)

    @property
    def is_own(self) -> bool:
        """Whether it is meshwright's own trainer, whose memory is counted as the trainer keeps it."""
        return self.kind == MESHWRIGHT

    def __repr__(self) -> str:
        return f"Software({self.name!r}, release={self.release!r}{', with a hardware profile' if self.profile else ''})"

    def log_factor_of(self, has_adapters: bool, generation: str) -> float:
        """ln of the time of a job over the reference: adapters run another code path, with factors of its own."""
        return self.finetuning.get(generation, 0.0) if has_adapters else self.log_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedValues:
    """What `meshwright fit` wrote: constants, factors of releases (logarithms), and what they were fitted on."""

    constants: Constants
    releases: Mapping[str, float]  # MLPerf rounds and containers of published tables
    finetuning: Mapping[str, Mapping[str, float]]  # by generation, then release
    fitted_on: str
    date: str
    evaluation_s: float = 0.0  # what an evaluation takes beside its forward passes
    classes: Mapping[str, Effects] = field(default_factory=dict)  # of software whose releases have no factors of their own
    further: Mapping[str, Effects] = field(default_factory=dict)
    experts: ExpertConstants = field(default_factory=ExpertConstants)

    def software(self, release: str) -> Software:
        """The stack of a release or class; of a release that was never fitted, its nearest relative by version.

        `unknown` is software of no class, taken as the mean of the classes that nobody tuned for a record.
        """
        kind = class_of(release)
        if release == UNKNOWN:
            return self.unknown_software(release)
        if release in (MLPERF, NEMO):
            release = max((name for name in self.releases if _version(name)[0] == release), key=lambda name: _version(name)[1])
        elif kind and kind not in (MLPERF, NEMO):
            return self._of_class(release, kind)
        return self._of_release(release)

    def _of_class(self, release: str, kind: str) -> Software:
        """The stack of a class that has effects of its own, or of the class that it is taken as."""
        known = kind in self.classes
        relative = kind if known else CLASSES[kind].relative
        effects = self.classes.get(relative, Effects())
        return Software(
            name=release,
            constants=self.constants,
            release=release,
            log_factor=effects.log_factor,
            finetuning=dict.fromkeys(GENERATIONS.values(), effects.log_factor),
            known=known,
            evaluation_s=self.evaluation_s,
            note="" if known else f"no run of {kind} was fitted: taken as {relative}, its nearest relative",
            effects=effects,
            further=self.further,
            experts=self.experts,
        )

    def unknown_software(self, name: str) -> Software:
        """Software of no known class: taken as the mean of the classes that nobody tuned for a record."""
        known = [self.classes[kind] for kind in UNTUNED]
        effects = Effects(
            log_factor=fmean(one.log_factor for one in known),
            log_attention=fmean(one.log_attention for one in known),
            log_memory=fmean(one.log_memory for one in known),
            host_s=fmean(one.host_s for one in known),
        )
        which = "the software is of no class that was fitted" if name == UNKNOWN else f"no run of software such as {name} was fitted"
        note = f"{which}: taken as the mean of {', '.join(UNTUNED)}"
        return replace(
            self._of_class(UNTUNED[0], UNTUNED[0]),
            name=name,
            release=name,
            known=False,
            note=note,
            log_factor=effects.log_factor,
            finetuning=dict.fromkeys(GENERATIONS.values(), effects.log_factor),
            effects=effects,
        )

    def _of_release(self, release: str) -> Software:
        if release not in self.releases and f"v{release.lower().lstrip('v')}" in self.releases:
            release = f"v{release.lower().lstrip('v')}"
        known = release in self.releases
        relative = release if known else nearest_release(release, self.releases)
        finetuning = {}
        for generation, table in self.finetuning.items():
            if any(_version(name)[0] == _version(relative)[0] for name in table):
                finetuning[generation] = table[nearest_release(relative, table)]
        return Software(
            name=release,
            constants=self.constants,
            release=relative,
            log_factor=self.releases[relative],
            finetuning=finetuning,
            known=known,
            evaluation_s=self.evaluation_s,
            note="" if known else f"no run of {release} was fitted: taken as {relative}, its nearest relative",
            further=self.further,
            experts=self.experts,
        )


def nearest_release(release: str, known: Mapping[str, float]) -> str:
    """The known release of the same kind (MLPerf round, container) whose version is closest; newer wins a tie."""
    kind, version = _version(release)
    same = [name for name in known if _version(name)[0] == kind]
    if not same:
        fix = f"{nearest(release, known)}; or write {UNKNOWN} for software of no known class"
        raise InputError(f"no software release named {release!r}", where=argument("software"), fix=fix)
    return min(same, key=lambda name: (abs(_version(name)[1] - version), -_version(name)[1]))


def is_release(name: str) -> bool:
    """Whether a stack's name is that of a round, a container, a class or `unknown`, fitted or not, and not of a profile from a file."""
    if class_of(name) or name == UNKNOWN:
        return True
    try:
        nearest_release(name, fitted_values().releases)
    except InputError:
        return False
    return True


def _version(release: str) -> tuple[str, float]:
    """Kind and position in time of `v5.1` or `nemo-26.04.01`: rounds come twice a year, containers monthly."""
    kind, _, number = release.rpartition("-") if "-" in release else ("mlperf", "", release.lower().lstrip("v"))
    try:
        parts = [int(part) for part in number.split(".")] + [0, 0]
        # Rounds so far are x.0 and x.1; a further one of the same year would follow right behind.
        within = 0.5 * min(parts[1], 1) + min(parts[1] / 100, 0.4) if kind == "mlperf" else min(parts[1] / 12.0, 0.99)
        return kind, parts[0] + within + parts[2] / 1000
    except (ValueError, OverflowError):
        raise InputError(
            f"cannot read a version in software release {release!r}",
            where=argument("software"),
            fix=f"write a class ({', '.join(CLASSES)}), a round such as v5.1, or nemo-26.04; {UNKNOWN} for software of no known class; "
            "or the file of a profile, which ends in .json",
        ) from None


@cache
def fitted_values(path: Path = CONSTANTS_FILE) -> FittedValues:
    """The constants that the package carries."""
    data = json.loads(path.read_text())
    return values_of(data)


def values_of(data: Mapping[str, Any]) -> FittedValues:
    """Fitted values from their JSON form."""
    values = {name: float(entry["value"]) for name, entry in data["constants"].items()}
    releases = {name.removeprefix("release "): value for name, value in values.items() if name.startswith("release ")}
    return FittedValues(
        constants=Constants(**{f.name: values[f.name] for f in fields(Constants)}),
        releases={**releases, REFERENCE_RELEASE: 0.0, **data["containers"]},
        finetuning=data["finetuning"],
        fitted_on=str(data["fitted_on"]),
        date=str(data["date"]),
        evaluation_s=float(data["evaluation_s"]),
        classes={name: Effects(**effects) for name, effects in data.get("classes", {}).items()},
        further={name: Effects(**effects) for name, effects in data.get("further", {}).items()},
        experts=ExpertConstants(**{name: float(entry["value"]) for name, entry in data.get("expert_constants", {}).items()}),
    )


def on_profile(stack: Software, profile: Profile) -> Software:
    """The stack on a machine that was measured: what computes is priced by the profile, what is sent beyond the machine as before.

    The release's factor goes: it says how much slower others' code is, and the profile timed ours.
    """
    note = "; ".join(filter(None, (stack.note, f"compute as timed here: {profile.words}")))
    return replace(stack, profile=profile, log_factor=0.0, finetuning={}, note=note, effects=Effects(), further={})


def software(name: str = "") -> Software:
    """The stack called `name`: a release, a class, `unknown`, or a profile of `meshwright calibrate`; by default the newest release."""
    values = fitted_values()
    if name.endswith(".json"):
        return read_profile(Path(name))
    return values.software(name) if name else replace(values.software(RELEASES[-1]), is_default=True)


def read_profile(path: Path) -> Software:
    """A software profile from a file of `meshwright calibrate`: with the constants it was made with, so that it stays what it was."""
    try:
        data = json.loads(read_text(path))
        stack = fitted_values().software(str(data["release"]))
        # Version 0.1 had one energy for all of Blackwell, and took nine tenths of tensor traffic as hidden.
        constants = {"ultra_fp8_pj": data["constants"].get("blackwell_fp8_pj"), "tp_hidden": 0.9, **data["constants"]}
        return replace(
            stack,
            name=str(data["name"]),
            constants=Constants(**{f.name: _finite(constants[f.name]) for f in fields(Constants)}),
            log_factor=_finite(data["log_factor"]),
            finetuning={str(generation): _finite(factor) for generation, factor in data["finetuning"].items()},
            evaluation_s=_finite(data["evaluation_s"]),
            known=True,
            note=str(data["note"]),
        )
    except OSError as error:
        raise InputError(f"cannot read the software profile: {error.strerror or error}", where=str(path), fix=_FIX) from None
    except (InputError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError("this is not a software profile", where=str(path), fix=_FIX) from None


_FIX = "give a file that `meshwright calibrate LOG --layout ... --out FILE` wrote"


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def as_json(stack: Software) -> dict[str, Any]:
    """A profile as `calibrate` writes it."""
    return {
        "name": stack.name,
        "release": stack.release,
        "log_factor": stack.log_factor,
        "finetuning": dict(stack.finetuning),
        "evaluation_s": stack.evaluation_s,
        "note": stack.note,
        "constants": asdict(stack.constants),
    }
