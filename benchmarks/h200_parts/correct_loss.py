"""A child: losses of a model of about 100 M parameters on real text in one precision, from one seed, by the trainer's own data path.

Training is sensitive to small differences where the rate is high or text comes again: then any two runs part, whatever the precision, and
nothing is learned of it. So every token is seen once, and the rate is Llama's with a long warm-up. `--moved` starts from weights that are
rounded to bf16, and shows how far two runs of the same precision part by chance.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

from h200_parts.cases import TEXT, TINY, TRAINING
from h200_parts.child import hand_over, note, say
from h200_parts.stepper import start
from h200_parts.text import long_corpus, shared_folder
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.train.data.corpus import Corpus
from meshwright.train.data.samples import Samples
from meshwright.train.model.initial import initial_weights
from meshwright.train.parallel.batches import micro_batches
from meshwright.train.parallel.mesh import make_mesh
from meshwright.train.replica import Replica

SEED = 7
BATCH, SEQ_LEN = 8, 1024
LAST = 50  # steps whose mean is compared
RATE, WARMUP_STEPS = 3e-4, 150


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--moved", action="store_true", help="round the first weights to bf16")
    given = parser.parse_args()
    try:
        started_s = time.perf_counter()
        losses = losses_of(given.precision, given.device, given.steps, is_moved=given.moved)
    except InputError as error:
        note(f"{given.precision} is skipped: the trainer refuses: {error.what}")
        hand_over({"precision": given.precision, "refused": f"the trainer refuses: {error.what}"})
        return
    last = losses[-min(LAST, len(losses)) :]
    result = {
        "precision": given.precision,
        "is_moved": given.moved,
        "losses": losses,
        "last_mean": statistics.mean(last),
        "num_steps": len(losses),
    }
    hand_over({**result, "took_s": time.perf_counter() - started_s})


def losses_of(precision: str, device_type: str, num_steps: int, *, is_moved: bool = False) -> list[float]:
    """The loss of every step."""
    is_gpu = device_type == "cuda"
    model, seq_len, batch = (TEXT, SEQ_LEN, BATCH) if is_gpu else (TINY, 64, 4)
    training = replace(TRAINING, learning_rate=RATE, warmup_samples=WARMUP_STEPS * batch, decay_samples=num_steps * batch)
    workload = Workload(name="text", model="", seq_len=seq_len, global_batch=batch, precision=precision, training=training)
    mesh = make_mesh(Layout(micro_batch=batch, zero_stage=0), start(device_type))
    replica = Replica(model, workload, mesh, training)
    replica.fill_weights(initial_weights(model, SEED))
    if is_moved:
        for piece in replica.weights():
            piece.tensor.copy_(piece.tensor.bfloat16())
    samples = Samples(Corpus.open(long_corpus(shared_folder(), model.vocab_size)).train, seq_len, SEED)
    if len(samples) < num_steps * batch:
        note(f"the text holds {len(samples):,} sequences, and {num_steps * batch:,} are read: some come again")
    losses = []
    for step in range(num_steps):
        result = replica.gradients(micro_batches(lambda numbers: _arrays(samples, numbers), step * batch, workload, mesh))
        replica.update(result, training.rate((step + 1) * batch))
        losses.append(result.loss)
        if step % 50 == 0 or step == num_steps - 1:
            say(f"step {step + 1}: loss {result.loss:.4f}, norm of gradients {result.grad_norm:.3f}")
    return losses


def _arrays(samples: Samples, numbers: list[int]):  # type: ignore[no-untyped-def]
    batch = samples.batch(numbers)
    return batch.tokens, batch.labels, batch.documents


if __name__ == "__main__":
    main()
