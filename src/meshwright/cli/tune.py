"""Fine-tune a model on conversations or texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli import run_options as options
from meshwright.cli.options import AsJson, Budget, PriceGiven, ProfileFile

if TYPE_CHECKING:
    from meshwright.cli.train_arguments import Wishes
    from meshwright.cli.tune_arguments import Tuning
    from meshwright.say.document import Document

TRAINED, OTHER = "bold green", "dim"
MARKS = "\u27e6", "\u27e7"  # around what is trained on, where there is no colour


def tune(
    context: typer.Context,
    model_dir: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL_DIR", help="Hugging Face folder of a model, or a run; default: the newest run."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            help="JSONL, JSON, Parquet or text file, or a folder of them: Alpaca, ShareGPT, OpenAI messages, prompt and completion, plain "
            "text. Default: a small instruction set about Python.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder of the run and what was tuned; default: runs/NAME.", show_default=False),
    ] = None,
    lora: Annotated[
        str,
        typer.Option(
            metavar="CHOICES",
            help="Train adapters: r=16,alpha=32,targets=all-linear,dropout=0.05,rslora=yes. Targets: all-linear, or names such as "
            "q_proj,v_proj. This is the default.",
        ),
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="Train all weights instead of adapters.")] = False,
    base: Annotated[str, typer.Option(metavar="NAME", help="How the frozen base is kept: bf16 (as the products), fp8 or nf4.")] = "bf16",
    adapter: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Adapter in PEFT's format that the run starts from.", show_default=False)
    ] = None,
    pack: Annotated[bool, typer.Option("--pack", help="Put several samples into one sequence; none sees another.")] = False,
    loss: Annotated[
        str, typer.Option(metavar="NAME", help="Tokens that carry loss: assistant (its words), last (its last turn) or all.")
    ] = "assistant",
    seq_len: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of a sequence; default: the longest sample.", show_default=False)
    ] = None,
    too_long: Annotated[
        str, typer.Option(metavar="NAME", help="What happens to samples longer than a sequence: cut, drop or refuse. It is always told.")
    ] = "cut",
    valid: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Data set to evaluate on, instead of a part of DATA.", show_default=False)
    ] = None,
    valid_share: Annotated[float, typer.Option(metavar="X", help="Share of DATA that is held out to evaluate on; 0: none.")] = 0.05,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Sequences of one step, over all replicas; default: 16.", show_default=False)
    ] = None,
    epochs: Annotated[float, typer.Option(metavar="X", help="How often the data set is gone through.")] = 3.0,
    steps: options.Steps = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Highest learning rate; default: 2e-4 for a model 4,096 wide, and less for wider ones; with --full 2e-5.",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="Precision of the products: bf16 or fp32; default: bf16 on GPUs, else fp32.")
    ] = "",
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="Plan file for this model: its layout and cluster.", show_default=False)
    ] = None,
    layout: Annotated[str, typer.Option(metavar="LAYOUT", help="tp=2,cp=2,...: degrees and choices instead of planned ones.")] = "",
    show: Annotated[
        int, typer.Option(metavar="N", min=0, help="Print N samples token by token, with what is trained on, and train nothing.")
    ] = 0,
    answers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Held-out questions to answer before and after; default: 3 without DATA, else 0.", show_default=False
        ),
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the run folder in --runs, instead of --out.", show_default=False)] = "",
    runs: options.RunsPlace = Path("runs"),
    resume: options.Resume = False,
    resume_if_exists: options.ResumeIfExists = False,
    keep_going: options.KeepGoing = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Seed of adapters, order, dropout and held-out part.")] = 0,
    benchmark: options.Benchmark = "",
    checkpoint_every: options.CheckpointEvery = None,
    keep: options.Keep = 3,
    stall_timeout: options.StallTimeout = 10.0,
    grace: options.Grace = 30.0,
    rendezvous_timeout: options.RendezvousTimeout = 60.0,
    secret: options.Secret = None,
    allow_changed: options.AllowChanged = None,
    profile: ProfileFile = "",
    budget: Budget = None,
    price: PriceGiven = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model with adapters or whole, and show the result next to the forecast.

    Examples:

      meshwright tune llama-hf chats.jsonl --out tuned

      meshwright tune llama-hf chats.jsonl --out tuned --lora r=8,targets=q_proj,v_proj --base nf4 --pack --json
    """
    asked: dict[str, Any] = {key: value for key, value in locals().items() if key not in ("context", "allow_changed", "out", "show")}
    from meshwright.cli.train_arguments import Wishes
    from meshwright.cli.tune_arguments import tuning_of
    from meshwright.cli.tune_run import run

    tuning, others = tuning_of(asked)
    others |= {"runs": out.parent, "name": out.name} if out else {"name": name or _usual_name(resume)}
    given = options.given_options(context)
    wishes = Wishes(**options.named_wishes(others), allow_changed=tuple(allow_changed or ()), given=given)
    if show:
        _show(tuning, wishes, show)
        return
    code = run(tuning, wishes)
    if code:
        raise typer.Exit(code)


def _usual_name(resume: bool) -> str:
    """The name of a run that was given none; a run that is continued is then the newest."""
    from datetime import UTC, datetime

    return "" if resume else f"tuned-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _show(tuning: Tuning, wishes: Wishes, count: int) -> None:
    """Print samples token by token, coloured by what is trained on."""
    from meshwright.cli.show import show
    from meshwright.cli.tune_run import shown_samples

    samples = list(shown_samples(tuning, wishes, count))
    if wishes.as_json:
        show(_document(samples), as_json=True)
        return
    for where, tokens in samples:
        _print_sample(where, tokens)


def _print_sample(where: str, tokens: list[tuple[str, int, bool]]) -> None:
    from rich.text import Text

    from meshwright.cli.show import console
    from meshwright.errors import printable

    out = console()
    line = Text()
    is_plain = out.color_system is None
    for text, _, trained in tokens:
        word = printable(text).replace("\n", "\\n\n")
        line.append(f"{MARKS[0]}{word}{MARKS[1]}" if trained and is_plain else word, style=TRAINED if trained else OTHER)
        line.append("|", style=OTHER)
    out.print(Text(f"{where}: {len(tokens)} tokens, {sum(trained for *_, trained in tokens)} trained on", style="bold"))
    out.print(line, soft_wrap=True)


def _document(samples: list[tuple[str, list[tuple[str, int, bool]]]]) -> Document:
    from meshwright.say.document import Document

    shown = [
        {
            "data_row": where,
            "num_trained_tokens": sum(trained for *_, trained in tokens),
            "shown_tokens": [{"token": token, "token_text": text, "is_trained": trained} for text, token, trained in tokens],
        }
        for where, tokens in samples
    ]
    return Document(kind="tuning-samples", title="samples", values={"shown_samples": shown})
