"""How fast a corpus is built and read, and that its memory does not grow: `python benchmarks/corpus.py [MB MB]` (20 and 200 take minutes).

Each build runs in a process of its own on synthetic text, half of it one text file, half JSON lines, with a vocabulary of 4,096 trained
on the spot. Peak memory is that of the building process. Tokens per second are those of tokenising alone; those of CPU
time do not depend on what else the machine does.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

VOCAB_SIZE = 4096
NUM_WORDS = 50_000
BLOCK_WORDS = 20_000
SEQ_LEN, BATCH, NUM_BATCHES = 4096, 8, 50


def write_text(folder: Path, num_bytes: int) -> None:
    """Two files of random words, rare and frequent ones as in a language: a long document, and many short ones."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(random.choice(letters, size)) for size in random.integers(2, 12, NUM_WORDS)])
    chances = 1 / np.arange(1, NUM_WORDS + 1)
    cumulative = np.cumsum(chances / chances.sum())
    with open(folder / "long.txt", "w") as text, open(folder / "short.jsonl", "w") as lines:
        while text.tell() + lines.tell() < num_bytes:
            for file in (text, lines):
                places = np.minimum(np.searchsorted(cumulative, random.random(BLOCK_WORDS)), NUM_WORDS - 1)
                block = words[places]
                if file is text:
                    file.write(" ".join(block) + ".\n")
                else:
                    file.writelines(json.dumps({"text": " ".join(part)}) + "\n" for part in np.split(block, 100))


def build(folder: Path) -> None:
    """Print the seconds, bytes and tokens of a build, and the peak memory of this process."""
    from meshwright.train.data.corpus_build import BuildOptions, build_corpus
    from meshwright.train.data.sources import find_sources

    began: dict[str, tuple[float, float]] = {}  # wall and CPU seconds when each part of the work began
    begin_s = time.perf_counter()
    corpus = build_corpus(
        find_sources([folder / "source"]),
        folder / "out",
        BuildOptions(tokenizer=f"train:{VOCAB_SIZE}"),
        lambda what, *_: began.setdefault(what, (time.perf_counter(), time.process_time())) and None,
    )
    wall_s, cpu_s = (now - then for now, then in zip((time.perf_counter(), time.process_time()), began["tokenising"], strict=True))
    num_bytes, peak_mb = corpus.manifest.build.num_source_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps([num_bytes / 1e6, corpus.num_tokens, time.perf_counter() - begin_s, wall_s, cpu_s, peak_mb]))


def read(folder: Path) -> None:
    """Print tokens a second of shuffled samples, and the peak memory of this process."""
    from meshwright.train.data.corpus import Corpus
    from meshwright.train.data.samples import Samples

    samples = Samples(Corpus.open(folder / "out").train, SEQ_LEN, seed=0)
    begin_s = time.perf_counter()
    for number in range(NUM_BATCHES):
        samples.batch(range(number * BATCH, (number + 1) * BATCH))
    took_s = time.perf_counter() - begin_s
    print(json.dumps([NUM_BATCHES * BATCH * SEQ_LEN / took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3]))


def in_own_process(what: str, folder: Path) -> list[float]:
    done = subprocess.run([sys.executable, __file__, what, str(folder)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main(arguments: list[str]) -> None:
    if arguments[:1] in (["build"], ["read"]):
        (build if arguments[0] == "build" else read)(Path(arguments[1]))
        return
    sizes_mb = [int(argument) for argument in arguments] or [20, 200]
    machine = platform.processor() or platform.machine()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores {machine}, Python {sys.version.split()[0]}:")
    peaks_mb = []
    for size_mb in sizes_mb:
        with TemporaryDirectory() as name:
            (Path(name) / "source").mkdir()
            write_text(Path(name) / "source", size_mb * 1_000_000)
            source_mb, num_tokens, all_s, wall_s, cpu_s, peak_mb = in_own_process("build", Path(name))
            peaks_mb.append(peak_mb)
            rate = f"{num_tokens / wall_s:,.0f} tokens/s, {num_tokens / cpu_s:,.0f} per second of CPU time"
            print(f"  {source_mb:6.1f} MB of text  {num_tokens:>11,.0f} tokens  {all_s:6.1f} s in all  {rate}  peak {peak_mb:.0f} MB")
            tokens_per_s, read_mb = in_own_process("read", Path(name))
            print(f"    shuffled samples of {SEQ_LEN}: {tokens_per_s:,.0f} tokens/s, peak {read_mb:.0f} MB", flush=True)
    print(f"  memory of the largest over the smallest: {peaks_mb[-1] / peaks_mb[0]:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
