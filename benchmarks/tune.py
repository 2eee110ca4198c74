"""Fine-tuning on one GPU, measured: adapters beside a frozen base, next to TRL + PEFT, Unsloth, the card's floor and
the forecast.

    python benchmarks/tune.py [--call first|second] [--site DIR] [--case NAME]... [--part NAME]... [--trace] [--out FILE]

Everything takes two calls of under nine minutes each on the card; `--site` is needed for the first alone:

    python benchmarks/tune.py --call first --site DIR --out first.json      # kernels, 8B in bf16, TRL + PEFT, Unsloth, the floor
    python benchmarks/tune.py --call second --out second.json               # 70B and 8B with a base in fp8 and in NF4, their floors

The part `measure` makes a hardware profile, as `meshwright measure` does, of layers of 8B with adapters on the bases of the call, and
forecasts are made from it; `--profile FILE` gives one that was made before. Each measurement runs in a process of its own, results go to
`--out FILE` as they come, one that fails does not end the others, and the
tables come last. Without a GPU a call says so, claims nothing and exits with 0; `--dry-run` then runs the same code on a tiny model on the
processor, and its figures mean nothing.

The peers are TRL, PEFT, liger-kernel and Unsloth in the releases that tune_parts/fetch.py names, beside torch, transformers and accelerate.
A machine with a network fetches them as one archive, and the machine with the card unpacks it:

    python benchmarks/tune_parts/fetch.py peers.tar.xz
    mkdir DIR && tar xf peers.tar.xz -C DIR

Without `--site DIR` they are looked for where Python looks, and where they are missing no ratio is claimed. Weights are random, and made on
the device (for Unsloth, which reads files alone, on the disk); tokens are random, too, so that every loss is near the logarithm of the
vocabulary, 11.8.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from h200_parts.child import Clock, Results, run, say
from tune_parts import tables
from tune_parts.cases import CALLS, NAMES, Case, chosen
from tune_parts.forecast import forecast_of

from meshwright.describe.this_machine import gpu_names
from meshwright.errors import MeshwrightError

PARTS = ("kernels", "measure", "forecast", "ours", "trl", "unsloth", "floor")
VARIANTS = ("liger", "plain", "compiled")
PEER_BASES = ("bf16",)  # what the peers are run with
LIMIT_S = 530.0
PROFILE_S = 60.0  # for a hardware profile on a card
DRY = "dry run on the processor with a tiny model: the code runs, the figures mean nothing"


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    gpus = gpu_names()
    if not gpus and not given.dry_run:
        say("no GPU here: nothing was measured, and nothing is claimed")
        return 0
    given.device = "cpu" if given.dry_run else "cuda"
    results, clock = Results(given.out, _facts(given, gpus)), Clock(given.limit_s)
    say(DRY if given.dry_run else f"{results.content['gpu']}, {results.content['software']}")
    try:
        results.write()
        _measure(given, results, clock)
    except MeshwrightError as error:
        print(f"tune: {error}", file=sys.stderr)
        return 2
    title = "Figures of a dry run, which mean nothing" if given.dry_run else f"{results.content['date']}, {results.content['gpu']}"
    shown = (tables.kernel_table, tables.speed_table, tables.floor_table)
    say("\n\n".join([f"\n{title}, {results.content['software']}", *(each(results.content) for each in shown)]))
    if clock.num_failed:
        say(f"\n{clock.num_failed} measurements gave no result, as listed above; the tables leave them out.")
    return 1 if clock.num_failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", choices=tuple(CALLS), help="the cases of one of the two calls")
    parser.add_argument("--case", action="append", default=[], choices=NAMES, help="one or more; without it, all")
    parser.add_argument("--part", action="append", default=[], choices=PARTS, help="one or more; without it, all")
    parser.add_argument("--variant", action="append", default=[], choices=VARIANTS, help="settings of TRL (default liger)")
    parser.add_argument("--site", type=Path, metavar="DIR", help="folder into which the peers were unpacked")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="hardware profile of this machine, for the forecast")
    parser.add_argument("--trace", action="store_true", help="also trace one step of ours, and show its shares by kind of work")
    parser.add_argument("--warmup", type=int, default=4, help="steps before those that are timed (default %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="timed steps (default %(default)s); 70B takes half of both")
    parser.add_argument("--out", type=Path, help="write results here as they come, as JSON")
    parser.add_argument("--dry-run", action="store_true", help=DRY)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds of this call (default %(default)s)")
    return parser


def _facts(given: argparse.Namespace, gpus: Sequence[str]) -> dict[str, Any]:
    """What a table must say beside its figures."""
    from importlib import metadata

    machine = f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}"
    names = [name for name in ("torch", "transformers", "triton", "flash-attn-4") if list(metadata.distributions(name=name))]
    software = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    gpu = "none: dry run" if given.dry_run else gpus[0]
    return {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "machine": machine, "gpu": gpu, "software": software}


def _measure(given: argparse.Namespace, results: Results, clock: Clock) -> None:
    parts, site = given.part or PARTS, _peers(given)
    cases = chosen(given.case or CALLS.get(given.call, ()), is_dry=given.dry_run)
    if "kernels" in parts and (found := run("kernels", ["--device", given.device], clock, package="tune_parts")):
        results.add("kernels", found)
        clock.num_failed += sum(not row["is_right"] for row in found["rows"])
    if "measure" in parts and given.profile is None:
        given.profile = _profile(cases, given, results, clock)
    if "forecast" in parts:
        for case in cases:
            results.add("forecast", {"case": case.name, **forecast_of(case, given.profile, given.device)})
    for case in cases:
        if "ours" in parts:
            _timed("ours", case, given, results, clock, *(["--profile"] if given.trace else []))
        if "trl" in parts and site is not None and case.base in PEER_BASES:
            for variant in given.variant or ["liger"]:
                _timed("trl_peft", case, given, results, clock, "--variant", variant, site=site)
        if "floor" in parts and (floor := _child("floor", case, given, clock, [])):
            results.add("floor", {"case": case.name, "words": case.words, "num_tokens": case.num_tokens, **floor})
    for case in cases:  # last: Unsloth writes its model to the disk first, and must not take the time of the others
        if "unsloth" in parts and site is not None and case.base in PEER_BASES:
            _timed("unsloth", case, given, results, clock, site=site)


def _profile(cases: Sequence[Case], given: argparse.Namespace, results: Results, clock: Clock) -> Path | None:
    """A hardware profile of the cases that compute nothing again, made now beside the results; None if it could not be made."""
    timed = [case for case in cases if case.recompute == "none"]
    if given.call == "second":  # one length for each base: the first call times both
        timed = [case for case in timed if case.seq_len == max(one.seq_len for one in timed)]
    if not timed:
        return None
    say(f"measuring layers of {', '.join(case.name for case in timed)}:")
    path = given.out.with_name(f"{given.out.stem}-profile.json") if given.out else Path(tempfile.mkdtemp(prefix="tune-")) / "profile.json"
    asked = [word for case in timed for word in ("--case", case.to_json())]
    found = run(
        "measured", [*asked, "--device", given.device, "--out", str(path), "--limit-s", str(PROFILE_S)], clock, package="tune_parts"
    )
    if found is None:
        return None
    results.add("measured_profile", found)
    for what in found["left_out"]:
        say(f"  not timed: {what}")
    return path


def _peers(given: argparse.Namespace) -> Path | None:
    """Where the peers are; None where they are missing, which is printed."""
    if given.site and (given.site / "trl").is_dir():
        return Path(given.site).absolute()
    if given.site is None and find_spec("trl") and find_spec("peft"):
        return Path(__file__).parent  # they are installed
    if given.call != "second":
        say("TRL is missing (--site DIR names its folder): no ratio will be claimed")
    return None


def _timed(who: str, case: Case, given: argparse.Namespace, results: Results, clock: Clock, *more: str, site: Path | None = None) -> None:
    """One trainer on one case."""
    share = 2 if case.model.endswith("70b") else 1
    counts = ["--warmup", str(max(given.warmup // share, 2)), "--steps", str(max(given.steps // share, 2))]
    found = _child(who, case, given, clock, [*counts, *more], site)
    if found is None:
        return
    results.add("speed", {"case": case.name, "words": case.words, "who": who, "num_tokens": case.num_tokens, **found})
    if "refused" in found:
        say(f"  not run: {found['refused']}")
    else:
        say(f"  {found['tokens_per_s']:,.0f} tokens/s, {1e3 * found['mean_s']:.1f} ms, peak {found['peak_bytes'] / 2**30:.2f} GiB")


def _child(
    who: str, case: Case, given: argparse.Namespace, clock: Clock, options: Sequence[str], site: Path | None = None
) -> dict[str, Any] | None:
    say(f"{case.name}, {who}:")
    return run(who, ["--case", case.to_json(), "--device", given.device, *options], clock, site=site, package="tune_parts")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no child outlives a call that is cut off
    sys.exit(main())
