"""One GPU, measured: speed beside torchtitan, the card's floor, where a step's time goes, steadiness, correctness, prediction.

    python benchmarks/h200.py speed [--case NAME]... [--rounds N] [--titan DIR | --no-peer] [--floor] [--shares]
    python benchmarks/h200.py floor [--case NAME]...
    python benchmarks/h200.py choices [--case NAME]...
    python benchmarks/h200.py profile [--case NAME]... [--titan DIR | --no-peer]
    python benchmarks/h200.py steady
    python benchmarks/h200.py correct [--part loss|compiled|kernels|experts]...
    python benchmarks/h200.py predict --profile FILE [--case NAME]...
    python benchmarks/h200.py forecast --profile FILE [--case NAME]...

Each is one call of under ten minutes on the card. It says what it does as it goes, writes results to `--out FILE` as they come, and prints
its table last; `benchmarks/h200.md` holds the dated ones. Every measurement runs in a process of its own. Without a GPU a call says so,
claims nothing and exits with 0; `--dry-run` then runs the same code on a tiny model on the processor, and its figures mean nothing.

The peer is torchtitan 0.2.2. `--titan DIR` names a folder with `site/`, into which these wheels are unpacked:
torchtitan==0.2.2 torchao==0.17.0 torchdata==0.11.0 tyro einops docstring_parser typeguard. Without it no ratio is claimed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from h200_parts import tables
from h200_parts.cases import ASKED, NAMES, OTHERS, Case, chosen, settings
from h200_parts.child import Clock, Results, run, run_together, say

from meshwright.describe.this_machine import gpu_names
from meshwright.errors import MeshwrightError

if TYPE_CHECKING:
    from h200_parts.forecast import Machine

NOTHING = "nothing was measured, and nothing is claimed"
DRY = "dry run on the processor with a tiny model: the code runs, the figures mean nothing"
LIMIT_S = 570.0  # a call's time on the card
PARTS = ("loss", "compiled", "kernels", "experts")
CHECKED = ("kernels", "compiled", "experts")  # the parts that give rows of checks
TEXT_RUNS = (("fp32", False), ("bf16", False), ("fp8-current", False), ("bf16", True))  # precision, and whether first weights are moved


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    found = _device()
    if found is None and not given.dry_run:
        say(f"no GPU here: {NOTHING}")
        return 0
    given.device = "cpu" if given.dry_run else "cuda"
    if given.dry_run:
        say(DRY)
    results = Results(given.out, _facts(given, found))
    clock = Clock(given.limit_s)
    try:
        results.write()
        COMMANDS[given.command](given, results, clock)
    except MeshwrightError as error:
        print(f"h200: {error}", file=sys.stderr)
        return 2
    if clock.num_failed:
        say(f"\n{clock.num_failed} measurements gave no result, as listed above; the tables leave them out.")
    return 1 if clock.num_failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made = {name: commands.add_parser(name) for name in COMMANDS}
    for one in made.values():
        one.add_argument("--out", type=Path, help="write results here as they come, as JSON")
        one.add_argument("--dry-run", action="store_true", help=DRY)
        one.add_argument("--limit-s", type=_positive(float), default=LIMIT_S, help="seconds of this call (default %(default)s)")
    for name in ("speed", "floor", "choices", "profile", "predict", "forecast"):
        made[name].add_argument("--case", action="append", default=[], choices=NAMES, help="one or more; without it, those asked for")
    for name in ("speed", "profile"):
        peer = made[name].add_mutually_exclusive_group()
        peer.add_argument("--titan", type=Path, metavar="DIR", help="folder with site/, where torchtitan 0.2.2 lies unpacked")
        peer.add_argument("--no-peer", action="store_true", help="measure ours alone")
    for name in ("speed", "profile", "predict"):
        made[name].add_argument("--steps", type=_positive(int), default=15, help="timed steps (default %(default)s)")
        made[name].add_argument(
            "--warmup", type=_positive(int), default=20, help="steps before them: the card gets warm (default %(default)s)"
        )
    made["speed"].add_argument("--rounds", type=_positive(int), default=1, help="turns of each trainer on each case")
    made["speed"].add_argument(
        "--shares", action="store_true", help="also trace one step after the timed ones, and show its shares by kind"
    )
    made["speed"].add_argument("--floor", action="store_true", help="measure the floor of each case in the same call")
    made["steady"].add_argument("--steps", type=_positive(int, least=10), default=100, help="with records (default %(default)s)")
    made["correct"].add_argument("--part", action="append", default=[], choices=PARTS)
    made["correct"].add_argument("--steps", type=_positive(int), default=300, help="steps on real text (default %(default)s)")
    made["predict"].add_argument("--profile", type=Path, help="hardware profile, from `meshwright measure`")
    made["forecast"].add_argument("--profile", type=Path, required=True, help="write the hardware profile of the cases to this file")
    made["forecast"].add_argument("--measure-s", type=_positive(float), help="seconds for the profile; default: 45 for each slice")
    return parser


def _positive(kind: Callable[[str], Any], least: int = 1) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = kind(text)
        if not least <= value < 10**6:
            raise argparse.ArgumentTypeError(f"{text} is not at least {least} and below a million")
        return value

    read.__name__ = kind.__name__
    return read


def _device() -> dict[str, str] | None:
    """The GPU and what runs on it; None where there is none."""
    try:
        import torch

        from meshwright.train.kernels import flash_attention
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    names = gpu_names()  # by nvidia-smi: asking torch would take memory of the card for this process
    software = [f"torch {torch.__version__}", *filter(None, [flash_attention.installed()])]
    return {"gpu": names[0] if names else "an unnamed GPU", "software": ", ".join(software)}


def _facts(given: argparse.Namespace, found: dict[str, str] | None) -> dict[str, Any]:
    """What a table must say beside its figures."""
    facts = found if found and not given.dry_run else {"gpu": "none: dry run"}
    machine = f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}"
    return {"command": given.command, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "machine": machine, **facts}


def _show(title: str, text: str, results: Results) -> None:
    facts = results.content
    title = f"{title} (dry run: the figures mean nothing)" if facts["gpu"].endswith("dry run") else title
    say(f"\n{title}, {facts['date']}, {facts['gpu']}, {facts.get('software', 'torch of the dry run')}, {facts['machine']}\n\n{text}")


def speed(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """Both trainers in turn, case by case."""
    site = _peer(given)
    for case in chosen(given.case, ASKED, is_dry=given.dry_run):
        for turn in range(given.rounds):
            for who in ("ours", "titan")[:: -1 if turn % 2 else 1]:
                if (who == "ours" or site) and not _is_refused(case, results):
                    _timed(who, case, given, results, clock, "speed", site, *(["--profile"] if given.shares else []))
        if given.floor:
            _floor(case, given, results, clock)
    if given.floor:
        _show("Floor", tables.floor_table(results.content), results)
    if given.shares:
        _show("Shares of a step", tables.profile_table(results.content), results)
    _show("Speed", tables.speed_table(results.content), results)


def floor(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """What the card allows, case by case."""
    for case in chosen(given.case, ASKED, is_dry=given.dry_run):
        _floor(case, given, results, clock)
    _show("Floor", tables.floor_table(results.content), results)


def choices(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """Products and attention by every algorithm and kernel there is, case by case."""
    for case in chosen(given.case, [case for case in ASKED if not case.is_fp8], is_dry=given.dry_run):
        if case.is_fp8:
            say(f"{case.name} is passed over: its products in fp8 have no choice here")
            continue
        say(f"{case.name}, algorithms:")
        found = run("choices", _common(case, given), clock)
        if found:
            results.add("choices", {"case": case.name, "words": case.words, **found})
    _show("Choices", tables.choices_table(results.content), results)


def profile(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """One step of each trainer, by kind of work."""
    site = _peer(given)
    for case in chosen(given.case, ASKED, is_dry=given.dry_run):
        for who in ("ours", "titan"):
            if who == "ours" or site:
                _timed(who, case, given, results, clock, "profile", site, "--profile")
    _show("Shares of a step", tables.profile_table(results.content), results)


def steady(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """The 3B case for longer, with records."""
    case = chosen(["3b-bf16"], ASKED, is_dry=given.dry_run)[0]
    say(f"{case.name}, {given.steps} steps with records after a warm-up, then without and with in turns")
    found = run("steady", [*_common(case, given), "--steps", str(given.steps)], clock)
    if found:
        results.add("steady", {"case": case.name, "words": case.words, **found})
    _show("Steady", tables.steady_table(results.content), results)


def correct(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """Kernels against float64, compiled against plain, precisions against each other: all at once, since no time is compared."""
    parts = given.part or PARTS
    jobs = [partial(_checks, part, given, results, clock) for part in CHECKED if part in parts]
    if "loss" in parts:
        jobs += [partial(_losses, precision, is_moved, given, results, clock) for precision, is_moved in TEXT_RUNS]
    say(f"{', '.join(parts)}: {len(jobs)} processes at once")
    run_together(jobs)
    if any(part in parts for part in CHECKED):
        _show("Kernels and compiled layers", tables.checks_table(results.content), results)
    if "loss" in parts:
        _show("Loss on real text", tables.loss_table(results.content), results)


def _checks(part: str, given: argparse.Namespace, results: Results, clock: Clock, running: list[Any]) -> None:
    """Rows of one part, kept as they come."""
    options = ["--device", given.device]
    run(f"correct_{part}", options, clock, keep=lambda row: results.add("checks", row), label=f"{part}: ", running=running)


def _losses(precision: str, is_moved: bool, given: argparse.Namespace, results: Results, clock: Clock, running: list[Any]) -> None:
    """Losses in one precision."""
    options = ["--precision", precision, "--device", given.device, "--steps", str(given.steps), *(["--moved"] if is_moved else [])]
    label = f"loss, {precision}{', first weights rounded' if is_moved else ''}: "
    found = run("correct_loss", options, clock, least_s=40.0, label=label, running=running)
    if found:
        results.add("loss", found)


def predict(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """Predictions, written down first; then the runs."""
    from h200_parts.forecast import Machine

    cases = chosen(given.case, (*ASKED, *OTHERS), is_dry=given.dry_run)
    machine = Machine.of(given.profile, given.device)
    for case in cases:
        _foretell(case, machine, results)
    for case in cases[::-1]:  # those that were never run before come first
        _timed("ours", case, given, results, clock, "measured", None)
    _show("Prediction", tables.predict_table(results.content), results)


def _foretell(case: Case, machine: Machine, results: Results) -> None:
    """Forecasts of a case with each setting that our trainer tries."""
    for setting in settings(case, "ours"):
        row = machine.forecast(setting)
        results.add("predicted", {"case": case.name, "words": setting.words, "recompute": setting.recompute, **row})
        outcome = row.get("refused") or f"{1e3 * row['step_s']:.1f} ms, peak {row['peak_bytes'] / 2**30:.2f} GiB"
        say(f"{case.name}, {setting.recompute} recompute: predicted {outcome}")


def forecast(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """A hardware profile of the cases, made now, and what it says about each of them with each of our trainer's settings."""
    from h200_parts.forecast import Machine

    cases = chosen(given.case, ASKED, is_dry=given.dry_run)
    say(f"measuring for {', '.join(case.name for case in cases)}:")
    asked = [word for case in cases for word in ("--case", case.to_json())]
    limit = ["--limit-s", str(given.measure_s)] if given.measure_s else []
    found = run("measured", [*asked, "--device", given.device, "--out", str(given.profile), *limit], clock)
    if found is None:
        return
    results.add("measured_profile", found)
    for what in found["left_out"]:
        say(f"  not timed: {what}")
    machine = Machine.of(given.profile, given.device)
    for case in cases:
        _foretell(case, machine, results)
    _show("Forecast", tables.predict_table(results.content), results)


COMMANDS = {each.__name__: each for each in (speed, floor, choices, profile, steady, correct, predict, forecast)}


def _peer(given: argparse.Namespace) -> Path | None:
    """Where the peer lies unpacked; None where it is missing, which is printed."""
    if given.no_peer:
        return None
    site = given.titan / "site" if given.titan else None
    if site and (site / "torchtitan").is_dir():
        return site.absolute()
    say(f"torchtitan is missing{f': no torchtitan in {site}' if site else ' (--titan DIR names its folder)'}: no ratio will be claimed")
    return None


def _is_refused(case: Case, results: Results) -> bool:
    """Whether our trainer does not run the case: then there is nothing to compare."""
    return any("refused" in row for row in results.rows("speed") if row["case"] == case.name)


def _common(case: Case, given: argparse.Namespace) -> list[str]:
    return ["--case", case.to_json(), "--device", given.device]


def _timed(
    who: str, case: Case, given: argparse.Namespace, results: Results, clock: Clock, kind: str, site: Path | None, *more: str
) -> None:
    """One trainer on one case, in a process of its own."""
    say(f"{case.name}, {who}:")
    steps = ["--warmup", str(given.warmup), "--steps", str(given.steps)]
    tried = settings(case, who)
    for number, setting in enumerate(tried, start=1):
        found = run(who, [*_common(setting, given), *steps, *more], clock, site=site if who == "titan" else None)
        if found is not None:
            break
        if number < len(tried):
            clock.num_failed -= 1  # a setting that does not fit is no failure, as long as another one follows
            say(f"  {setting.recompute} recompute gave no result; {tried[number].recompute} is next")
    if found is None:
        return
    own = {"recompute": setting.recompute} if len(tried) > 1 else {}
    results.add(kind, {"case": case.name, "words": case.words, "who": who, "num_tokens": case.num_tokens, **own, **found})
    if "refused" in found:
        say(f"  {case.name} is skipped: {found['refused']}")
    else:
        outcome = f"{found['tokens_per_s']:,.0f} tokens/s, {1e3 * found['mean_s']:.1f} ms, scatter {100 * found['cv']:.2f} %"
        say(f"  {outcome}, peak {found['peak_bytes'] / 2**30:.2f} GiB, in {found['child_s']:.0f} s with its start")
    if peaks := found.get("expert_peaks"):
        say(f"  the fullest expert of a layer has {min(peaks):.2f} to {max(peaks):.2f} times the mean load")


def _floor(case: Case, given: argparse.Namespace, results: Results, clock: Clock) -> None:
    """The floor of one case, in a process of its own."""
    say(f"{case.name}, floor:")
    loads = next((row["loads"] for row in results.rows("speed") if row["case"] == case.name and "loads" in row), None)
    found = run("floor", [*_common(case, given), *(["--loads", json.dumps(loads)] if loads else [])], clock)
    if found:
        results.add("floor", {"case": case.name, "words": case.words, "num_tokens": case.num_tokens, **found})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no child outlives a call that is cut off
    sys.exit(main())
