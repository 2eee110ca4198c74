"""Small MLPerf logs in the forms that submitters write, all of the same run; and rules that change the form of a log, and not its run."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence

START_MS = 1_700_000_000_000
BATCH, SEQ_LEN, DATA_SET = 32, 2048, 6400
BLOCKS = (40, 20, 20)  # steps before each evaluation
STEP_S, FIRST_S, EVALUATION_S = 2.0, 5.0, 3.0
QUALITIES = (2.9, 2.8, 2.6)
NUM_STEPS = sum(BLOCKS)
SAMPLES = NUM_STEPS * BATCH
RUN_S = FIRST_S + (NUM_STEPS - 1) * STEP_S + len(BLOCKS) * EVALUATION_S

Entry = dict[str, object]


class Clock:
    """Lines with the time they are written at."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.entries: list[Entry] = []
        self.num_steps = 0

    def log(self, key: str, value: object = None, **metadata: object) -> None:
        self.entries.append({"namespace": "", "time_ms": round(self.now_ms), "key": key, "value": value, "metadata": metadata})

    def step(self) -> float:
        """The next step, and its seconds."""
        seconds = STEP_S if self.num_steps else FIRST_S
        self.now_ms += 1e3 * seconds  # type: ignore[assignment]
        self.num_steps += 1
        return seconds

    def evaluate(self) -> None:
        self.now_ms += 1e3 * EVALUATION_S  # type: ignore[assignment]

    @property
    def samples(self) -> int:
        return self.num_steps * BATCH

    @property
    def tokens(self) -> int:
        return self.samples * SEQ_LEN

    def begin(self, **settings: object) -> None:
        self.log("init_start")
        for key, value in {"submission_benchmark": "gpt3", "global_batch_size": BATCH, "max_sequence_length": SEQ_LEN, **settings}.items():
            self.log(key, value)
        self.now_ms += 30_000
        self.log("init_stop")
        self.log("run_start")

    def end(self, **metadata: object) -> list[Entry]:
        self.log("run_stop", status="success", **metadata)
        return self.entries


def megatron() -> list[Entry]:
    """A timer of every step, samples and steps on each line (NVIDIA, v5.1)."""
    clock = Clock()
    clock.begin()
    for num_steps, quality in zip(BLOCKS, QUALITIES, strict=True):
        clock.log("block_start", samples_count=num_steps * BATCH, step=clock.num_steps)
        for _ in range(num_steps):
            took = {"train_step_time": clock.step(), "reduced_train_loss": 3.0}
            clock.log("tracked_stats", took, step=clock.num_steps - 1, samples_count=clock.samples)
        clock.log("tracked_stats", {"train_step_time": STEP_S}, samples_count=num_steps * BATCH)  # of the block
        for key in ("block_stop", "eval_start"):
            clock.log(key, samples_count=clock.samples, step=clock.num_steps)
        clock.evaluate()
        clock.log("eval_accuracy", quality, samples_count=clock.samples)
        clock.log("eval_stop", samples_count=clock.samples, step=clock.num_steps)
    return clock.end(samples_count=clock.samples)


def maxtext() -> list[Entry]:
    """Blocks that stop after their evaluation, in tokens (Google, v4.1)."""
    clock = Clock()
    clock.begin()
    for num_steps, quality in zip(BLOCKS, QUALITIES, strict=True):
        begun, tokens = clock.tokens, num_steps * BATCH * SEQ_LEN
        clock.log("block_start", epoch_count=tokens, first_epoch_num=begun)
        for _ in range(num_steps):
            clock.step()
        clock.evaluate()
        clock.log("block_stop", first_epoch_num=begun)
        clock.log("eval_accuracy", quality, epoch_num=clock.tokens)
    entries = clock.end()
    clock.log("train_samples", clock.tokens)
    return entries


def pax() -> list[Entry]:
    """The same without the first block_start, and with the others printed again at the end (Google, v3.1)."""
    entries = maxtext()
    starts = [entry for entry in entries if entry["key"] == "block_start"]
    return [entry for entry in entries if entry is not starts[0]] + starts[1:]


def gaudi() -> list[Entry]:
    """One block from the first step to the last, in tokens (Intel, v3.1)."""
    clock = Clock()
    clock.begin()
    clock.log("block_start", first_epoch_num=0, epoch_count=1)
    clock.log("epoch_start", epoch_num=0)
    for num_steps, quality in zip(BLOCKS, QUALITIES, strict=True):
        for _ in range(num_steps):
            clock.step()
        clock.log("eval_start", epoch_num=clock.tokens)
        clock.evaluate()
        clock.log("eval_accuracy", quality, epoch_num=clock.tokens)
        clock.log("eval_stop", epoch_num=clock.tokens)
    for key in ("train_samples", "block_stop", "epoch_stop"):
        clock.log(key, clock.tokens, epoch_num=clock.tokens)
    return clock.end()


def deepspeed() -> list[Entry]:
    """A loss every fourth step, blocks that stop after their evaluation and start with their number of steps (Juniper, v4.0)."""
    clock = Clock()
    clock.begin(train_samples=DATA_SET)
    for num_steps, quality in zip(BLOCKS, QUALITIES, strict=True):
        for _ in range(num_steps):
            clock.step()
            if clock.num_steps % 4 == 0 and clock.num_steps != 8:
                clock.log("train_loss", 3.0, samples_count=clock.samples)
        clock.evaluate()
        clock.log("block_stop", "", samples_count=clock.samples)
        clock.log("eval_accuracy", quality, samples_count=clock.samples)
        clock.log("block_start", "", samples_count=clock.num_steps)
    return clock.end(samples_count=clock.samples)


def rocm() -> list[Entry]:
    """A throughput of each block, and results that are a step behind (AMD, v5.1)."""
    clock = Clock()
    clock.begin()
    for num_steps, quality in zip(BLOCKS, QUALITIES, strict=True):
        clock.log("block_start", samples_count=clock.samples)
        for _ in range(num_steps):
            clock.step()
        clock.log("tracked_stats", {"throughput": BATCH / STEP_S}, step=clock.samples)
        clock.log("block_stop", samples_count=clock.samples)
        clock.log("eval_start", samples_count=clock.samples)
        clock.evaluate()
        clock.log("eval_accuracy", quality, epoch_num=clock.samples - BATCH, samples_count=clock.samples - BATCH)
        clock.log("eval_stop", samples_count=clock.samples)
    entries = clock.end(samples_count=clock.samples)
    clock.log("train_samples", clock.samples)
    return entries


FORMS: dict[str, Callable[[], list[Entry]]] = {one.__name__: one for one in (megatron, maxtext, pax, gaudi, deepspeed, rocm)}


def text_of(entries: Sequence[Entry]) -> str:
    return "".join(f":::MLLOG {json.dumps(entry)}\n" for entry in entries)


def entries_of(text: str) -> list[Entry]:
    found = (line.partition(":::MLLOG")[2] for line in text.splitlines() if ":::MLLOG" in line)
    return [json.loads(line) for line in found]


def _on_entries(change: Callable[[list[Entry]], list[Entry]]) -> Callable[[str], str]:
    return lambda text: text_of(change(entries_of(text)))


def _shuffled_settings(entries: list[Entry]) -> list[Entry]:
    start = next(i for i, entry in enumerate(entries) if entry["key"] == "init_stop")
    settings = entries[:start]
    random.Random(7).shuffle(settings)
    return [*settings, *entries[start:]]


def _two_processes(entries: list[Entry]) -> list[Entry]:
    """Each line by two processes, the second 3 ms later and from another line of the program."""
    found: list[Entry] = []
    for entry in entries:
        other = {**entry, "time_ms": int(str(entry["time_ms"])) + 3, "metadata": {**entry["metadata"], "lineno": 99}}  # type: ignore[dict-item]
        found += [entry, other]
    return found


def _quoted(entries: list[Entry]) -> list[Entry]:
    """Numbers of settings and counters in quotation marks."""
    return [
        {
            **entry,
            "value": str(entry["value"]) if entry["key"] in ("global_batch_size", "max_sequence_length") else entry["value"],
            "metadata": {key: str(value) if isinstance(value, int | float) else value for key, value in entry["metadata"].items()},  # type: ignore[attr-defined]
        }
        for entry in entries
    ]


def _without(*keys: str) -> Callable[[list[Entry]], list[Entry]]:
    return lambda entries: [entry for entry in entries if entry["key"] not in keys]


def _result_last(entries: list[Entry]) -> list[Entry]:
    """The result of an evaluation after its stop."""
    found = list(entries)
    for i in range(len(found) - 1):
        if (found[i]["key"], found[i + 1]["key"]) == ("eval_accuracy", "eval_stop"):
            found[i], found[i + 1] = found[i + 1], {**found[i], "time_ms": found[i + 1]["time_ms"]}
    return found


def _shuffled(entries: list[Entry]) -> list[Entry]:
    """Lines in no order, as a merge of several files may leave them; what has the same time keeps its order."""
    order = sorted({int(str(entry["time_ms"])) for entry in entries})
    random.Random(3).shuffle(order)
    return [entry for time_ms in order for entry in entries if entry["time_ms"] == time_ms]


def _noisy(text: str) -> str:
    """Ranks before the lines, text between them, colours around them."""
    lines = text.splitlines()
    return "".join(f"WARNING: something\n[rank0]: 2026-01-01 \x1b[32m{line}\x1b[0m tail\n" for line in lines)


def _reversed_keys(entries: list[Entry]) -> list[Entry]:
    return [dict(reversed(entry.items())) for entry in entries]


# What changes how a log is written and nothing that it says.
SAME: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "noise around lines": _noisy,
    "windows lines": lambda text: text.replace("\n", "\r\n"),
    "lines run together": lambda text: re.sub(r"\n(?=:::MLLOG)", "", text),
    "keys in another order": _on_entries(_reversed_keys),
    "settings in another order": _on_entries(_shuffled_settings),
    "two processes": _on_entries(_two_processes),
    "numbers in quotation marks": _on_entries(_quoted),
    "results after the stop": _on_entries(_result_last),
    "lines in no order": _on_entries(_shuffled),
}

# What leaves out lines that submitters may leave out: the results stay, step times may be read in another way.
LESS: dict[str, Callable[[str], str]] = {
    "no blocks": _on_entries(_without("block_start", "block_stop")),
    "no first block_start": _on_entries(lambda entries: _without_first(entries, "block_start")),
    "no eval_start": _on_entries(_without("eval_start")),
    "no eval_stop": _on_entries(_without("eval_stop")),
    "no eval_start and no eval_stop": _on_entries(_without("eval_start", "eval_stop")),
    "no statistics": _on_entries(_without("tracked_stats", "train_loss")),
    "no total": _on_entries(_without("train_samples")),
}


def _without_first(entries: list[Entry], key: str) -> list[Entry]:
    first = next((entry for entry in entries if entry["key"] == key), None)
    return [entry for entry in entries if entry is not first]


def recounted(text: str, name: str, per_sample: float) -> str:
    """A log that counts samples with another counter instead: of tokens, steps or epochs."""
    entries = entries_of(text)
    for entry in entries:
        metadata = entry["metadata"]
        assert isinstance(metadata, dict)
        if entry["key"] in ("run_stop", "block_start", "block_stop"):
            metadata.pop("samples_count", None)
        counts = [metadata.pop(key) for key in ("samples_count", "step", "epoch_num") if key in metadata]
        if counts:
            metadata[name] = counts[0] * per_sample
    return text_of(entries)


def cuts(text: str, every: int) -> Iterator[str]:
    """The log up to some of its lines, and to the middle of them."""
    lines = text.splitlines()
    stop = next(i for i, line in enumerate(lines) if '"run_stop"' in line)
    for i in range(1, stop, every):
        yield "\n".join(lines[:i]) + "\n"
        yield "\n".join([*lines[:i], lines[i][: len(lines[i]) // 2]])
