"""Make corpora for training out of text, and look at them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshwright.cli.progress import Report
    from meshwright.train.data.corpus import Corpus

corpus = typer.Typer(name="corpus", help="Make corpora for training out of text, and look at them.")

AsJson = Annotated[bool, typer.Option("--json", help="Print the same as JSON.")]


@corpus.command()
def build(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Text, JSONL (.gz, .zst) or Parquet files, or folders of them.")],
    tokenizer: Annotated[str, typer.Option(metavar="PATH|train:N", help="A tokenizer.json, or the size of a vocabulary to train.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The corpus's folder.")],
    valid_fraction: Annotated[float | None, typer.Option(help="Share of documents held apart for validation.  [default: 0.01]")] = None,
    valid_documents: Annotated[int | None, typer.Option(help="Number of documents held apart, in place of a share.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses validation documents, and text to train a vocabulary on.")] = 0,
    text_key: Annotated[str, typer.Option(help="Key of JSONL and column of Parquet that holds the text.")] = "text",
    end_of_document: Annotated[str | None, typer.Option(metavar="TOKEN", help="The tokenizer's token that ends a document.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads that tokenise; by default one per core.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenise text into a corpus. The same command again takes up a build that broke off."""
    from meshwright.cli.progress import progress_bar

    if workers is not None:
        os.environ["RAYON_NUM_THREADS"] = str(workers)  # the only way to tell the tokenizers library, and only before its first use
    from meshwright.errors import InputError
    from meshwright.train.data.corpus_build import VALID_FRACTION, BuildOptions, build_corpus
    from meshwright.train.data.sources import find_sources

    if valid_fraction is not None and valid_documents is not None:
        raise InputError("both a share and a number of validation documents", where="--valid-fraction, --valid-documents", fix="give one")
    options = BuildOptions(
        tokenizer=tokenizer,
        seed=seed,
        valid_fraction=VALID_FRACTION if valid_fraction is None else valid_fraction,
        valid_documents=valid_documents,
        text_key=text_key,
        end_of_document=end_of_document,
    )
    with progress_bar() as report:
        built = build_corpus(find_sources(files), out, options, _with_rate(report))
    _show(built, as_json)


@corpus.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A corpus's folder.", show_default=False)],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare its hash with the manifest.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what a corpus holds."""
    from meshwright.train.data.corpus import Corpus

    _show(Corpus.open(folder, verify="hashes" if verify else "sizes"), as_json)


def _with_rate(report: Report, clock_s: Callable[[], float] = time.monotonic) -> Report:
    """The report with bytes per second and the time left in its text; both count from where this part of the work began."""
    part, began_s, began_bytes = "", 0.0, 0

    def report_rate(what: str, done: int, total: int) -> None:
        nonlocal part, began_s, began_bytes
        now_s = clock_s()
        if what != part:
            part, began_s, began_bytes = what, now_s, done
        rate = (done - began_bytes) / (now_s - began_s) if now_s > began_s else 0.0
        left = f", {rate / 1e6:.1f} MB/s, {_clock((total - done) / rate)} left" if rate else ""
        report(what + left, done, total)

    return report_rate


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _show(built: Corpus, as_json: bool) -> None:
    from dataclasses import asdict

    from meshwright.cli.show import show_json, show_pairs, show_table

    manifest = built.manifest
    if as_json:
        show_json({"folder": str(built.folder), "digest": built.digest, **asdict(manifest)})
        return
    plan = manifest.build
    pairs = [
        ("vocabulary", f"{manifest.vocab_size:,} entries ({plan.tokenizer if ':' in plan.tokenizer else 'given'})"),
        ("document end", f"{plan.end_of_document} ({manifest.end_of_document})"),
        ("tokens", f"{manifest.num_tokens:,} of {int(manifest.token_dtype[2:])} bytes"),
        ("sources", f"{len(plan.sources):,} files, {plan.num_source_bytes / 1e6:,.1f} MB"),
        ("seed", plan.seed),
        ("digest", built.digest),
    ]
    show_pairs(f"corpus {built.folder}", pairs)
    rows = ((name, f"{split.num_documents:,}", f"{split.num_tokens:,}") for name, split in manifest.splits.items())
    show_table("splits", ("split", "documents>", "tokens>"), rows)
