"""A child: our trainer on one case, timed step by step, with random weights made on the device; or one step under the profiler."""

from __future__ import annotations

import argparse

import torch
from h200_parts.child import hand_over, note
from h200_parts.ours import annotate_trainer, profiled
from h200_parts.recorder import Recorder
from h200_parts.stepper import start

from meshwright.errors import InputError
from meshwright.train.model.attention import Context
from meshwright.train.model.initial import fill_piece, initial_weights
from meshwright.train.parallel.mesh import make_mesh
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.replica import Replica
from meshwright.train.sums import StepResult
from tune_parts.cases import TRAINING, Case, case_of, layout_of, model_of, workload_of

SEED = 1


class Stepper:
    """A replica with random weights and adapters, and random tokens for it, moved as the trainer moves its own."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device, self.model = case, device, model_of(case)
        self.replica = Replica(self.model, workload_of(case), make_mesh(layout_of(case), device), TRAINING)
        self.replica.fill_base(fill_piece)
        self.replica.fill_weights(initial_weights(self.model, SEED))
        self.context = Context(positions=torch.arange(case.seq_len, device=device))
        self._generator = torch.Generator().manual_seed(SEED)

    def step(self, around_update: object = None) -> StepResult:
        """Take one step."""
        result = self.replica.gradients([self._batch()])
        if callable(around_update):
            with around_update():
                self.replica.update(result, TRAINING.learning_rate)
        else:
            self.replica.update(result, TRAINING.learning_rate)
        return result

    def _batch(self) -> MicroBatch:
        shape = (self.case.batch, self.case.seq_len + 1)
        tokens = torch.randint(0, self.model.vocab_size, shape, generator=self._generator)
        here = tokens.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tokens
        return MicroBatch(tokens=here[:, :-1].contiguous(), labels=here[:, 1:].contiguous(), context=self.context)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    if given.profile:
        annotate_trainer()
    try:
        stepper = Stepper(given.case, start(given.device))
    except InputError as error:
        hand_over({"refused": f"the trainer refuses: {error.what}"})
        return
    if given.device == "cuda":
        note(f"weights and states {torch.cuda.memory_allocated() / 2**30:.2f} GiB; attention by {stepper.replica.attention or 'torch'}")
    recorder = Recorder(given.device, given.warmup, given.case.num_tokens)
    for _ in range(given.warmup + given.steps):
        recorder.start()
        recorder.done(stepper.step().loss)
    trained = sum(piece.tensor.numel() for piece in stepper.replica.weights())
    result = {"trainer": "meshwright", "num_trained": trained, **recorder.result()}
    if given.profile:
        result["profile"] = profiled(stepper, result["mean_s"])  # type: ignore[arg-type]
    hand_over(result)


if __name__ == "__main__":
    main()
