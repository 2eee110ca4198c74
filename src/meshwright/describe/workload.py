"""What is trained and until when: sequence length, batch, precision, and a number of tokens or a target loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from meshwright.arguments import check_types, typed
from meshwright.describe.bounds import check_numbers
from meshwright.describe.router import Balance
from meshwright.describe.source import Sources
from meshwright.errors import InputError, nearest

ROUNDING = 1e-9  # of a quotient of two floats that are meant to divide


MOST_IMBALANCE = 10_000  # no layout has more ranks to spread experts over
MOST_SEQ_LEN = 2**24  # tokens: more than the longest context that a published model states, 10 million
MOST_BATCH = 10**8  # sequences


# Matrices of a layer that adapters may be beside, by the kinds in which recipes name them.
# Latent attention has other matrices in the place of queries, keys and values; a model has some of these (describe/products.py).
ADAPTED = {"qkv": ("q", "k", "v", "q_down", "q_up", "kv_down", "kv_up"), "proj": ("o",), "mlp": ("gate", "up", "down")}
BASES = ("bf16", "fp8", "nf4")
# Bits of an element of a frozen matrix, with the scales of its blocks; a row has another scale of 32 bits (train/kernels/few_bits.py).
FEW_BITS = {"fp8": 8.0, "nf4": 4.0 + 8 / 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """LoRA: the base model is frozen; pairs of low-rank matrices next to some of its matrices are trained."""

    rank: int
    targets: tuple[
        str, ...
    ]  # kinds: "qkv" (one pair for all three), "proj", "mlp"; or single matrices: "q", "k", "v", "o", "gate", "up", "down", "q_down" ...
    alpha: float = 0.0  # the pair's product is scaled by alpha / rank; 0: twice the rank
    dropout: float = 0.0  # share of a pair's inputs that are left out in training
    rank_stabilised: bool = False  # scale by alpha / sqrt(rank) instead (arXiv:2312.03732)
    base: str = "bf16"  # how the frozen matrices of layers are kept: bf16 (as the products are), fp8, nf4

    def __post_init__(self) -> None:
        known = {*ADAPTED, *(name for names in ADAPTED.values() for name in names)}
        if self.rank < 1 or not self.targets or not 0 <= self.dropout < 1 or self.alpha < 0 or self.base not in BASES:
            raise InputError(
                f"adapters of rank {self.rank} on {', '.join(self.targets) or 'nothing'}, alpha {self.alpha:g}, dropout {self.dropout:g}, "
                f"base {self.base}",
                where="workload.adapters",
                fix=f"give a rank of 1 or more, a target, an alpha from 0, a dropout from 0 to below 1, and a base of {', '.join(BASES)}",
            )
        for target in self.targets:
            if target not in known:
                raise InputError(f"no matrix named {target!r}", where="workload.adapters.targets", fix=nearest(target, known))

    @property
    def listed(self) -> str:
        """The targets in words."""
        return ", ".join(self.targets)

    @property
    def matrices(self) -> tuple[str, ...]:
        """The single matrices that have adapters, in any model; one model has some of them."""
        every = [name for names in ADAPTED.values() for name in names]
        wanted = {name for target in self.targets for name in ADAPTED.get(target, (target,))}
        return tuple(name for name in every if name in wanted)

    @property
    def scale(self) -> float:
        """The factor on the product of a pair."""
        return (self.alpha or 2.0 * self.rank) / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)

    def adapts(self, kind: str) -> bool:
        """Whether a matrix of this kind (`qkv`, `proj`, `mlp`) has adapters."""
        return any(name in self.matrices for name in ADAPTED[kind])

    def parameters(self, sides: Mapping[str, float]) -> float:
        """Parameters of one layer's adapters, from the sum of both sides of each matrix; a kind's matrices share one pair's first half."""
        return self.rank * sum(sides[target] for target in self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """Samples to reach the target, measured at several global batch sizes."""

    samples_by_batch: Mapping[int, float] = field(hash=False)
    samples_by_precision: Mapping[str, Mapping[int, float]] = field(default_factory=dict, hash=False)  # recipes that converge differently

    def __post_init__(self) -> None:
        for table in (self.samples_by_batch, *self.samples_by_precision.values()):
            if not table or not all(batch >= 1 and samples > 0 for batch, samples in table.items()):
                raise InputError(
                    "samples to the target are given for no batch, or for one that is not above 0",
                    where="workload.convergence.samples_by_batch",
                    fix="give samples by batch: { 1024 = 2e6 }",
                )

    def samples(self, batch: float, precision: str = "") -> float:
        """Samples to the target at a global batch, interpolated on a straight line in log-log between measured batches.

        A precision with its own table uses that table. Outside the measured batches nothing is known (`Workload.batch_beyond`). Below them,
        the count of the smallest batch is used, because small batches waste no samples. Above them, the last slope is used. This is a
        lower bound, because larger batches waste more and more samples.
        """
        table = self._table(precision)
        if batch in table:
            return float(table[int(batch)])
        batches = sorted(table)
        logs = np.log(batches), np.log([table[b] for b in batches])
        if batch <= batches[-1] or len(batches) == 1:
            return float(np.exp(np.interp(math.log(batch), *logs)))
        slope = (logs[1][-1] - logs[1][-2]) / (logs[0][-1] - logs[0][-2])
        return float(np.exp(logs[1][-1] + max(slope, 0.0) * (math.log(batch) - logs[0][-1])))

    def measured_batches(self, precision: str = "") -> tuple[int, int]:
        """The smallest and the largest global batch for which the samples to the target were measured."""
        table = self._table(precision)
        return min(table), max(table)

    def _table(self, precision: str) -> Mapping[int, float]:
        return self.samples_by_precision.get(precision, self.samples_by_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """On how many sequences the model is evaluated, and after which steps. Predictor, simulator and trainer all use this rule.

    It is MLPerf's rule: evaluations are ceil(every_samples / global batch) steps apart, and the first few are skipped. Logs confirm it:
    with 24,576 samples between evaluations and a batch of 2,688, evaluations follow every 10 steps (9.14 rounded up); with 18,432 samples,
    a batch of 960 and 15 intervals to the first, they follow steps 300, 320 and 340. There is also an evaluation after the last step of a
    run.
    """

    num_samples: int
    every_samples: float  # training samples between two evaluations, rounded up to whole steps
    start_samples: float = 0.0  # no evaluation before this many
    start_samples_per_batch: float = 0.0  # so many more for each sequence of the global batch; only whole intervals count

    def __post_init__(self) -> None:
        if not self.every_samples > 0 or self.num_samples < 1:
            raise InputError(
                f"{self.num_samples} samples evaluated every {self.every_samples} samples",
                where="workload.evaluation",
                fix="give at least 1 sample, and more than 0 between two evaluations",
            )

    def interval_steps(self, global_batch: int) -> int:
        """Steps from one evaluation to the next."""
        return max(1, math.ceil(self.every_samples / global_batch - ROUNDING))

    def first_step(self, global_batch: int) -> int:
        """The step after which the first evaluation comes.

        Whole intervals are counted, not samples, as in the rule for LoRA: the first floor(0.125 x batch + 2) evaluations are skipped.
        """
        later = math.floor(self.start_samples_per_batch * global_batch / self.every_samples + ROUNDING)
        number = math.ceil(self.start_samples / self.every_samples - ROUNDING) + later
        return max(1, number) * self.interval_steps(global_batch)

    def follows(self, step: int, num_steps: int, global_batch: int) -> bool:
        """Whether an evaluation follows this step of a run of `num_steps`: every interval from the first on, and after the last step."""
        after_first = step - self.first_step(global_batch)
        return step == num_steps or (after_first >= 0 and after_first % self.interval_steps(global_batch) == 0)

    def steps(self, num_steps: int, global_batch: int) -> list[int]:
        """The steps of a run of `num_steps` that an evaluation follows."""
        regular = list(range(self.first_step(global_batch), num_steps + 1, self.interval_steps(global_batch)))
        return regular if num_steps < 1 or num_steps in regular[-1:] else [*regular, num_steps]

    def count(self, num_steps: int, global_batch: int, after: int = 0) -> int:
        """Evaluations in a run of `num_steps`, those after its first `after` steps left out."""
        first, interval = self.first_step(global_batch), self.interval_steps(global_batch)
        if num_steps <= after:
            return 0
        regular, before = (max((last - first) // interval + 1, 0) for last in (num_steps, after))
        is_regular = num_steps >= first and (num_steps - first) % interval == 0
        return regular - before + (not is_regular)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the model is trained: AdamW, clipping, and a learning rate that warms up and then falls along a cosine."""

    learning_rate: float
    min_learning_rate: float = 0.0
    warmup_samples: float = 0.0
    decay_samples: float = 0.0  # where the cosine ends; 0: the rate stays constant
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1  # of matrices
    clip_norm: float = 1.0  # 0: gradients are not clipped
    target_loss: float = 0.0  # validation loss that ends the run; 0: none
    most_samples: float = 0.0  # the run ends here, even without the target; 0: at the end of the workload
    corpus: str = ""  # what to train on: a folder, or the name of a corpus in the package
    balance: Balance = field(default_factory=Balance)  # of experts
    prediction_weight: float = 0.3  # of the loss of multi-token prediction beside that of the next token; DeepSeek-V3 began with 0.3

    def rate(self, samples: float) -> float:
        """Learning rate of the step that begins after `samples`."""
        if samples < self.warmup_samples:
            return self.learning_rate * samples / self.warmup_samples
        if self.decay_samples <= self.warmup_samples:
            return self.learning_rate
        done = min((samples - self.warmup_samples) / (self.decay_samples - self.warmup_samples), 1.0)
        return self.min_learning_rate + (self.learning_rate - self.min_learning_rate) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained and until when.

    Args:
        name: Name of the workload.
        model: Name of the model that it is defined for; empty: any model.
        seq_len: Tokens per sequence.
        global_batch: Sequences per step, over all replicas.
        precision: Name of the precision recipe: `bf16`, `fp8`, `nvfp4`, ...
        attention_precision: Number format of the two products of attention: `bf16` or `fp8`.
        num_tokens: Number of tokens to train on; 0: the run ends at a target.
        convergence: Samples to the target by batch, if the run ends at a target.
        evaluation: How often and on how many sequences the model is evaluated.
        adapters: LoRA adapters, for fine-tuning.
        training: Optimizer, learning rate and corpus, for `meshwright train`.
        packed: Whether a sequence holds several documents, with attention inside each document only.
        target: The target in words.
        sources: Where the numbers come from.
    """

    name: str
    model: str  # name of the model that it is defined for; "": any model
    seq_len: int
    global_batch: int  # sequences per step
    precision: str = "bf16"  # recipe of the layers' matrix multiplications
    attention_precision: str = "bf16"  # of the score and value products: bf16 or fp8
    num_tokens: float = 0.0  # pre-training: train on so many tokens
    convergence: Convergence | None = None  # or: train to a target
    evaluation: Evaluation | None = None
    adapters: Adapters | None = None
    training: Training | None = None  # what only the trainer needs; None: the workload cannot be trained
    expert_imbalance: float = 1.0  # tokens of the busiest expert-parallel rank over the mean; 1: all ranks get equally many
    packed: bool = False  # sequences hold several documents, and attention does not cross them
    target: str = ""  # the quality target in words
    sources: Sources = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_types(self)
        for name, value, most in (("seq_len", self.seq_len, MOST_SEQ_LEN), ("global_batch", self.global_batch, MOST_BATCH)):
            if not 1 <= value <= most:
                words = {"seq_len": "tokens in a sequence", "global_batch": "sequences in a step"}[name]
                raise InputError(
                    f"the workload has {value:,} {words}", where=f"workload {self.name}: {name}", fix=f"give a number from 1 to {most:,}"
                )
        if self.attention_precision not in ("bf16", "fp8"):
            raise InputError(
                f"attention does not run in {self.attention_precision!r}",
                where=f"workload {self.name}: attention_precision",
                fix="choose bf16 or fp8",
            )
        if not 1 <= self.expert_imbalance <= MOST_IMBALANCE:
            raise InputError(
                f"the busiest rank cannot get {self.expert_imbalance:g} times the mean of the tokens",
                where=f"workload {self.name}: expert_imbalance",
                fix=f"give 1 (all ranks get equally many) or more, up to {MOST_IMBALANCE:,}",
            )
        check_numbers(self, f"workload {self.name}")

    def __repr__(self) -> str:
        return f"Workload({self.name!r}, {self.global_batch:,} x {self.seq_len:,} tokens per step, {self.precision})"

    @property
    def is_mlperf(self) -> bool:
        """Whether it is a benchmark of MLPerf, for which software is tuned."""
        return self.name.startswith("mlperf-")

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.seq_len * self.global_batch

    @property
    def measured_batches(self) -> tuple[int, int] | None:
        """The smallest and the largest batch with known samples to the target; None if the run ends after a number of tokens."""
        return self.convergence.measured_batches(self.precision) if self.convergence else None

    @property
    def batch_beyond(self) -> str:
        """`above` or `below` if the batch is outside the batches whose samples to the target were measured; otherwise empty."""
        if self.measured_batches is None:
            return ""
        smallest, largest = self.measured_batches
        return "below" if self.global_batch < smallest else "above" if self.global_batch > largest else ""

    def num_steps(self) -> int:
        """Number of steps to the target or through all tokens; 0 if the workload states neither."""
        if self.convergence:
            return math.ceil(self.convergence.samples(self.global_batch, self.precision) / self.global_batch)
        return math.ceil(self.num_tokens / self.tokens_per_step)

    @typed
    def evaluated_steps(self, num_steps: int) -> list[int]:
        """The steps of a run of `num_steps` that an evaluation follows; none where the workload states no evaluation."""
        return self.evaluation.steps(num_steps, self.global_batch) if self.evaluation else []

    @typed
    def num_evaluations(self, num_steps: int, after: int = 0) -> int:
        """Evaluations in a run of `num_steps`, those after its first `after` steps left out."""
        return self.evaluation.count(num_steps, self.global_batch, after) if self.evaluation else 0

    @typed
    def duration_s(self, step_s: float, evaluation_s: float) -> float:
        """Seconds of the whole workload with these step and evaluation times; 0 if the workload has no end."""
        num_steps = self.num_steps()
        return num_steps * step_s + self.num_evaluations(num_steps) * evaluation_s

    @typed
    def is_evaluated_after(self, step: int, num_steps: int) -> bool:
        """Whether an evaluation follows this step of a run of `num_steps`."""
        return self.evaluation is not None and self.evaluation.follows(step, num_steps, self.global_batch)
