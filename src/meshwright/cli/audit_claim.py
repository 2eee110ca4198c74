"""Hold a claim against arithmetic and against what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from meshwright.audit.judge import Judgement

BASELINE = "baseline_"  # flags that begin so are keys of the baseline
NOT_KEYS = ("files", "set_keys", "fail_on", "examples", "as_markdown", "as_json")
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
    files: Annotated[list[Path] | None, typer.Argument(metavar="CLAIM.toml", help="One claim a file.", show_default=False)] = None,
    text: Annotated[str | None, typer.Option(help="The claim in words.")] = None,
    benchmark: Annotated[str | None, typer.Option(help="gpt3, llama31_405b, llama31_8b, llama2_70b_lora, ...")] = None,
    model: Annotated[str | None, typer.Option(help="A catalogue name or a file; with --tokens.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens trained on.")] = None,
    samples: Annotated[float | None, typer.Option(help="Sequences trained on.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    global_batch: Annotated[int | None, typer.Option(help="Sequences a step.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp8, mxfp8, nvfp4, ...")] = None,
    round_name: Annotated[str | None, typer.Option("--round", help="Of MLPerf Training: v4.1.")] = None,
    submitter: Annotated[str | None, typer.Option(help="Who submitted it.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="h100, gb200, ...")] = None,
    gpus: Annotated[int | None, typer.Option(help="Accelerators in use.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Of the whole run.")] = None,
    days: Annotated[float | None, typer.Option(help="Of the whole run, where minutes are awkward.")] = None,
    step_s: Annotated[float | None, typer.Option("--step-s", help="Seconds of a step.")] = None,
    cost: Annotated[float | None, typer.Option(help="Dollars of the whole run.")] = None,
    price: Annotated[float | None, typer.Option(help="Dollars of a GPU-hour.")] = None,
    provider: Annotated[str | None, typer.Option(help="Whose price list: azure, aws, ...")] = None,
    mfu: Annotated[float | None, typer.Option(help="Model FLOPs in per cent of the peak; with --precision.")] = None,
    tflops_per_gpu: Annotated[float | None, typer.Option(help="TFLOP/s of one accelerator.")] = None,
    efficiency: Annotated[float | None, typer.Option(help="Scaling efficiency in per cent; with both step times.")] = None,
    scaling: Annotated[str | None, typer.Option(help="weak or strong.")] = None,
    speedup: Annotated[float | None, typer.Option("--speedup", "--speed-up", help="Times faster than the baseline.")] = None,
    over_record: Annotated[bool, typer.Option("--over-record", help="The speed-up is over the earlier record.")] = False,
    record: Annotated[bool, typer.Option("--record", help="It is said to be the fastest.")] = False,
    largest_of: Annotated[str | None, typer.Option(help="It is said to be the largest of: an accelerator, or all.")] = None,
    baseline_benchmark: Annotated[str | None, typer.Option(help="Of the baseline, where another.")] = None,
    baseline_round: Annotated[str | None, typer.Option(help="Of the baseline.")] = None,
    baseline_submitter: Annotated[str | None, typer.Option(help="Of the baseline.")] = None,
    baseline_accelerator: Annotated[str | None, typer.Option(help="Of the baseline.")] = None,
    baseline_gpus: Annotated[int | None, typer.Option(help="Of the baseline.")] = None,
    baseline_minutes: Annotated[float | None, typer.Option(help="Of the baseline.")] = None,
    baseline_samples: Annotated[float | None, typer.Option(help="Of the baseline.")] = None,
    baseline_step_s: Annotated[float | None, typer.Option("--baseline-step-s", help="Of the baseline.")] = None,
    set_keys: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other key, as in a file: exposed_ms=20, baseline.hours=3.")
    ] = None,
    fail_on: Annotated[str | None, typer.Option(help="Exit with 1 where a verdict is this bad or worse: misleading, ...")] = None,
    examples: Annotated[bool, typer.Option("--examples", help="List the claims that the repository carries, and stop.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a memo in Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Say of a claim whether it is consistent, unknown, unsupported, misleading, implausible or impossible, and show the arithmetic.

    A flag changes that key of every file given, so that a claim can be tried with another number. All keys: docs/audit.md.
    """
    if examples:
        _list_examples(as_json)
        return
    from meshwright.audit.claim import changed
    from meshwright.audit.verdict import severity

    least = severity(fail_on) if fail_on else None
    changes = changed(_changes(context.params), _set(set_keys or []))
    judgements = [_judged(path, changes) for path in files] if files else [_judged_flags(changes)]
    _show(judgements, as_markdown, as_json)
    if least is not None and any(severity(judgement.verdict) >= least for judgement in judgements):
        raise typer.Exit(1)


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The keys of a claim file that the flags stand for; a baseline's keys in a table of their own."""
    said = {name: value for name, value in given.items() if name not in NOT_KEYS and value is not None and value is not False}
    keys = {RENAMED.get(name, name): value for name, value in said.items()}
    baseline = {name.removeprefix(BASELINE): keys.pop(name) for name in list(keys) if name.startswith(BASELINE)}
    return {**keys, "baseline": baseline} if baseline else keys


def _set(items: list[str]) -> dict[str, Any]:
    """Keys and values as a TOML file would hold them, a line each; a value that is no TOML is text."""
    import tomllib

    from meshwright.audit.claim import changed
    from meshwright.errors import InputError

    table: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise InputError(f"{item!r} is no KEY=VALUE", where="--set", fix="write --set exposed_ms=20")
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
            fix="give a TOML file, or flags such as --benchmark gpt3 --accelerator h100 --gpus 1024 --minutes 9.87",
        )
    return judge(claim_of(changes, "the flags"))


def _show(judgements: list[Judgement], as_markdown: bool, as_json: bool) -> None:
    from meshwright.audit import memo
    from meshwright.cli.audit_show import show_judgement
    from meshwright.cli.show import show_json

    if as_json:
        found = [memo.as_json(judgement) for judgement in judgements]
        show_json(found[0] if len(found) == 1 else found)
    elif as_markdown:
        print("\n".join(memo.as_markdown(judgement) for judgement in judgements), end="")
    else:
        for judgement in judgements:
            show_judgement(judgement)


def _list_examples(as_json: bool) -> None:
    from meshwright.audit.claim import read_claim
    from meshwright.cli.show import show_json, show_table
    from meshwright.errors import InputError

    folder = Path(__file__).parents[3] / "examples" / "claims"
    found = sorted(folder.glob("*.toml"))
    if not found:
        raise InputError("no examples are here", where=str(folder), fix="they are in the repository, not in the installed package")
    claims = [(path, read_claim(path)) for path in found]
    if as_json:
        show_json([{"file": str(path), "expected": one.expected, "claim": one.text} for path, one in claims])
    else:
        show_table(f"claims in {folder}", ("file", "expected", "claim"), [(path.name, one.expected, one.text) for path, one in claims])
