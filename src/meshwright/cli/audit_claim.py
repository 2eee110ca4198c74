"""Judge a claim by arithmetic and by measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.options import AsJson, AsMarkdown

if TYPE_CHECKING:
    from meshwright.audit.judge import Judgement

BASELINE = "baseline_"  # options that begin with this are keys of the baseline
NOT_KEYS = ("files", "set_keys", "fail_on", "forecast", "html", "examples", "as_markdown", "as_json")
RENAMED = {
    "round_name": "round",
    "cost": "cost_usd",
    "price": "usd_per_gpu_hour",
    "efficiency": "efficiency_pct",
    "mfu": "mfu_pct",
    "over_record": "baseline_record",
}


def claim(
    context: typer.Context,
    files: Annotated[list[Path] | None, typer.Argument(metavar="CLAIM.toml", help="Files, one claim each.", show_default=False)] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="The claim in words.")] = None,
    benchmark: Annotated[
        str | None, typer.Option(metavar="NAME", help="MLPerf benchmark: gpt3, llama31_405b, llama31_8b, llama2_70b_lora, ...")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Model: a catalogue name or a file. Only valid with --tokens.")
    ] = None,
    tokens: Annotated[float | None, typer.Option(metavar="N", help="Number of tokens that were trained on.")] = None,
    samples: Annotated[float | None, typer.Option(metavar="N", help="Number of sequences that were trained on.")] = None,
    seq_len: Annotated[int | None, typer.Option(metavar="N", help="Length of a sequence in tokens.")] = None,
    global_batch: Annotated[int | None, typer.Option(metavar="N", help="Number of sequences per step.")] = None,
    precision: Annotated[str | None, typer.Option(metavar="NAME", help="Precision recipe: bf16, fp8, mxfp8, nvfp4, ...")] = None,
    round_name: Annotated[str | None, typer.Option("--round", metavar="ROUND", help="Round of MLPerf Training: v4.1.")] = None,
    submitter: Annotated[str | None, typer.Option(metavar="NAME", help="Who submitted the result.")] = None,
    accelerator: Annotated[str | None, typer.Option(metavar="NAME", help="Accelerator: h100, gb200, ...")] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="Number of accelerators in use.")] = None,
    minutes: Annotated[float | None, typer.Option(metavar="MIN", help="Time of the whole run in minutes.")] = None,
    days: Annotated[float | None, typer.Option(metavar="DAYS", help="Time of the whole run in days, instead of --minutes.")] = None,
    step_s: Annotated[float | None, typer.Option("--step-s", metavar="SECONDS", help="Time of a step in seconds.")] = None,
    cost: Annotated[float | None, typer.Option(metavar="USD", help="Cost of the whole run in US dollars.")] = None,
    price: Annotated[float | None, typer.Option(metavar="USD/H", help="Price in US dollars per accelerator-hour.")] = None,
    provider: Annotated[str | None, typer.Option(metavar="NAME", help="Cloud provider whose price list applies: azure, aws, ...")] = None,
    mfu: Annotated[
        float | None, typer.Option(metavar="PERCENT", help="MFU in per cent of the dense peak. Only valid with --precision.")
    ] = None,
    tflops_per_gpu: Annotated[float | None, typer.Option(metavar="TFLOP/S", help="TFLOP/s of one accelerator.")] = None,
    efficiency: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="Scaling efficiency in per cent. Needs --step-s and --baseline-step-s."),
    ] = None,
    scaling: Annotated[str | None, typer.Option(metavar="KIND", help="Kind of scaling: weak or strong.")] = None,
    speedup: Annotated[
        float | None, typer.Option("--speedup", "--speed-up", metavar="X", help="Speed-up as a factor over the baseline.")
    ] = None,
    over_record: Annotated[bool, typer.Option("--over-record", help="The speed-up is over the earlier record.")] = False,
    record: Annotated[bool, typer.Option("--record", help="The claim says that the run is the fastest.")] = False,
    largest_of: Annotated[
        str | None, typer.Option(metavar="NAME", help="The claim says that the run is the largest on this accelerator, or on `all`.")
    ] = None,
    baseline_benchmark: Annotated[str | None, typer.Option(metavar="NAME", help="Benchmark of the baseline, if another.")] = None,
    baseline_round: Annotated[str | None, typer.Option(metavar="ROUND", help="MLPerf round of the baseline.")] = None,
    baseline_submitter: Annotated[str | None, typer.Option(metavar="NAME", help="Submitter of the baseline.")] = None,
    baseline_accelerator: Annotated[str | None, typer.Option(metavar="NAME", help="Accelerator of the baseline.")] = None,
    baseline_gpus: Annotated[int | None, typer.Option(metavar="N", help="Number of accelerators of the baseline.")] = None,
    baseline_minutes: Annotated[float | None, typer.Option(metavar="MIN", help="Time of the baseline's run in minutes.")] = None,
    baseline_samples: Annotated[float | None, typer.Option(metavar="N", help="Number of sequences that the baseline trained on.")] = None,
    baseline_step_s: Annotated[
        float | None, typer.Option("--baseline-step-s", metavar="SECONDS", help="Time of the baseline's step in seconds.")
    ] = None,
    set_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other key of a claim file: exposed_ms=20, baseline.hours=3. May be given several times.",
            show_default=False,
        ),
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(metavar="VERDICT", help="Exit with status 1 if a verdict is this or worse: misleading, ...")
    ] = None,
    forecast: Annotated[
        bool, typer.Option("--forecast/--no-forecast", help="Whether to forecast the claimed run, which takes some seconds.")
    ] = True,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a memo as a page that can be forwarded.", show_default=False)
    ] = None,
    examples: Annotated[bool, typer.Option("--examples", help="List the example claims in the repository, and exit.")] = False,
    as_markdown: AsMarkdown = False,
    as_json: AsJson = False,
) -> None:
    """Judge a claim: consistent, unknown, unsupported, misleading, implausible or impossible, with the arithmetic.

    An option replaces that key in every file given, so that a claim can be tried with another number. docs/audit.md lists all keys.

    Examples:

      meshwright audit claim examples/claims/gpt3-in-10-minutes.toml --html memo.html

      meshwright audit claim --benchmark gpt3 --accelerator h100 --gpus 1024 --minutes 9.87 --json
    """
    from meshwright.cli.show import check_format, show

    check_format(as_json=as_json, as_markdown=as_markdown)
    if examples:
        _show_examples(as_json=as_json)
        return
    from meshwright.audit import memo
    from meshwright.audit.claim import changed
    from meshwright.audit.claim_memo import claim_memo
    from meshwright.audit.judge import with_forecast
    from meshwright.audit.verdict import severity
    from meshwright.cli.audit_page import with_page

    least = severity(fail_on) if fail_on else None
    changes = changed(_changes(context.params), _set(set_keys or []))
    judgements = [_judged(path, changes) for path in files] if files else [_judged_flags(changes)]
    judgements = [with_forecast(judgement) for judgement in judgements] if forecast else judgements
    document = with_page(memo.claims_document(judgements), html, [claim_memo(judgement) for judgement in judgements] if html else ())
    if as_markdown:
        print("\n".join(memo.as_markdown(judgement) for judgement in judgements), end="")
    else:
        show(document, as_json=as_json)
    if least is not None and any(severity(judgement.verdict) >= least for judgement in judgements):
        raise typer.Exit(1)


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The keys of a claim file that the options set; the keys of the baseline are in a table of their own."""
    chosen = {name: value for name, value in given.items() if name not in NOT_KEYS and value is not None and value is not False}
    keys = {RENAMED.get(name, name): value for name, value in chosen.items()}
    baseline = {name.removeprefix(BASELINE): keys.pop(name) for name in list(keys) if name.startswith(BASELINE)}
    return {**keys, "baseline": baseline} if baseline else keys


def _set(items: list[str]) -> dict[str, Any]:
    """Keys and values read as lines of a TOML file; a value that is not valid TOML is taken as text."""
    import tomllib

    from meshwright.audit.claim import changed
    from meshwright.errors import InputError

    table: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise InputError(f"{item!r} is not KEY=VALUE", where="--set", fix="write --set exposed_ms=20")
        try:
            read = tomllib.loads(item)
        except (tomllib.TOMLDecodeError, ValueError):
            parts = key.strip().split(".")
            read = {parts[-1]: value.strip()}
            for part in reversed(parts[:-1]):
                read = {part: read}
        table = changed(table, read)
    return table


def _judged(path: Path, changes: dict[str, Any]) -> Judgement:
    from meshwright.audit.claim import read_claim
    from meshwright.audit.judge import judge

    return judge(read_claim(path, changes))


def _judged_flags(changes: dict[str, Any]) -> Judgement:
    from meshwright.audit.claim import claim_of
    from meshwright.audit.judge import judge
    from meshwright.errors import InputError

    if not changes:
        raise InputError(
            "no claim is given",
            where="meshwright audit claim",
            fix="give a TOML file, or options such as --benchmark gpt3 --accelerator h100 --gpus 1024 --minutes 9.87",
        )
    return judge(claim_of(changes, "the options"))


def _show_examples(*, as_json: bool) -> None:
    from meshwright.audit.claim import read_claim
    from meshwright.audit.memo import examples_document
    from meshwright.cli.show import show
    from meshwright.errors import InputError

    folder = Path(__file__).parents[3] / "examples" / "claims"
    found = sorted(folder.glob("*.toml"))
    if not found:
        raise InputError("there are no examples here", where=str(folder), fix="they are in the repository, not in the installed package")
    show(examples_document(folder, [(path, read_claim(path)) for path in found]), as_json=as_json)
