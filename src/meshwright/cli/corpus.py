"""Make corpora for training from text, and look at them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.help import add, examples
from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.cli.progress import Report
    from meshwright.say.document import Document
    from meshwright.train.data.corpus import Corpus

corpus = typer.Typer(
    name="corpus",
    add_completion=False,
    rich_markup_mode=None,
    help="Make corpora for training from text, and look at them.",
    epilog=examples(
        "meshwright corpus build books/*.txt --tokenizer train:4096 --out corpora/books", "meshwright corpus show corpora/books"
    ),
)


def build(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Text, JSONL (.gz, .zst) or Parquet files, or folders of them.")],
    tokenizer: Annotated[str, typer.Option(metavar="FILE|train:N", help="A tokenizer.json, or train:N for a new vocabulary of N entries.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the corpus.")],
    valid_fraction: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of documents kept for validation, 0 to 1; default: 0.01.")
    ] = None,
    valid_documents: Annotated[
        int | None, typer.Option(metavar="N", help="Number of documents kept for validation, instead of a share.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed that chooses validation documents and text for a new vocabulary.")] = 0,
    text_key: Annotated[str, typer.Option(metavar="NAME", help="Key of JSONL or column of Parquet that has the text.")] = "text",
    end_of_document: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Token of the tokenizer that ends a document; default: the usual ones.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of threads that tokenise; default: one per core.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenise text into a corpus. The same command again continues an interrupted build.

    Examples:

      meshwright corpus build books/*.txt --tokenizer train:4096 --out corpora/books

      meshwright corpus build web.jsonl.zst --tokenizer tokenizer.json --out corpora/web --valid-documents 1000 --json
    """
    from meshwright.cli.progress import progress_bar
    from meshwright.cli.show import show as print_document

    if workers is not None:
        os.environ["RAYON_NUM_THREADS"] = str(workers)  # the only way to tell the tokenizers library, before its first use
    from meshwright.errors import InputError
    from meshwright.train.data.corpus_build import VALID_FRACTION, BuildOptions, build_corpus
    from meshwright.train.data.sources import find_sources

    if valid_fraction is not None and valid_documents is not None:
        raise InputError(
            "both a share and a number of validation documents are given",
            where="--valid-fraction, --valid-documents",
            fix="give one of them",
        )
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
    print_document(corpus_document(built), as_json=as_json)


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a corpus, or its URL.", show_default=False)],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare its hash with the manifest.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what a corpus contains.

    Examples:

      meshwright corpus show corpora/books

      meshwright corpus show corpora/books --verify --json
    """
    from meshwright.cli.show import show as print_document
    from meshwright.cli.urls import corpus_here
    from meshwright.train.data.corpus import Corpus

    print_document(corpus_document(Corpus.open(corpus_here(folder), verify="hashes" if verify else "sizes")), as_json=as_json)


def _with_rate(report: Report, clock_s: Callable[[], float] = time.monotonic) -> Report:
    """`report` with bytes per second and the time left added to its text, both computed since this part of the work began."""
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


def corpus_document(built: Corpus) -> Document:
    """What a corpus contains."""
    from dataclasses import asdict

    from meshwright.say.document import Document, Pairs, Table

    manifest, plan = built.manifest, built.manifest.build
    pairs = (
        ("vocabulary", f"{manifest.vocab_size:,} entries ({plan.tokenizer if ':' in plan.tokenizer else 'given'})", ""),
        ("document end", f"{plan.end_of_document} ({manifest.end_of_document})", ""),
        ("tokens", f"{manifest.num_tokens:,} of {int(manifest.token_dtype[2:])} bytes", ""),
        ("sources", f"{len(plan.sources):,} files, {plan.num_source_bytes / 1e6:,.1f} MB", ""),
        ("seed", str(plan.seed), ""),
        ("digest", built.digest, ""),
    )
    rows = tuple((name, f"{split.num_documents:,}", f"{split.num_tokens:,}") for name, split in manifest.splits.items())
    title = f"corpus {built.folder}"
    return Document(
        kind="corpus",
        title=title,
        blocks=(Pairs(title, pairs), Table("splits", ("split", "documents>", "tokens>"), rows)),
        values={
            "folder": str(built.folder),
            "digest": built.digest,
            "seed": plan.seed,
            "vocab_size": manifest.vocab_size,
            "num_tokens": manifest.num_tokens,
            "num_documents": manifest.num_documents,
            "splits": manifest.splits,
            "manifest": asdict(manifest),
        },
    )


add(corpus, build)
add(corpus, show)
