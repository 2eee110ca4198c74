"""Ranks agree before they train: plan, corpus, code, options and versions are the same on all of them, and so is the run folder.

Each rank sends a digest of its facts. Rank 0 compares the digests; it reads the facts themselves only of ranks that differ, so that the
error can say what differs, in words.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

from meshwright.errors import InputError, MeshwrightError
from meshwright.files import refusal
from meshwright.storage import Location, Remote
from meshwright.train.job import TrainingJob
from meshwright.train.launch import Place, ReportedElsewhere

AGREE_S = 300.0  # a rank may still hash its code or open its corpus
SEEN_S = 30.0  # a shared disk may show a new file late
LOOK_S = 0.05
MOST_NAMED = 5  # differences that an error lists
FULL, FINE = "facts", "yes"  # what rank 0 answers to the digests
UNCOMPARED = ("plan", "plan_text", "runs", "corpus", "data", "arguments", "prints_json", "allow_changed", "budget", "rate")
SHOWN = {"workload.training.": "", "workload.": "", "layout.": "layout ", "model.": "model "}  # how a key begins, and in words


def facts_of(job: TrainingJob, corpus_digest: str) -> dict[str, str]:
    """What must be the same on all ranks, as texts by name."""
    plan = {name: asdict(getattr(job.plan, name)) for name in ("model", "workload", "layout")}
    options = {name: value for name, value in _options(job).items() if name not in UNCOMPARED}
    packages = {"python": python_version(), **{name: _version(name) for name in ("meshwright", "torch", "numpy", "safetensors")}}
    found = {key: _text(value) for key, value in _flat(plan)}
    found |= {f"option {key}": _text(value) for key, value in options.items()}
    found |= {f"version of {key}": value for key, value in packages.items()}
    found |= {f"code of {key}": value for key, value in _code()}
    return {**found, "corpus": corpus_digest[:16]}


def _options(job: TrainingJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in type(job).__slots__}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _flat(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in entry.items():
        if key == "sources":
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _code() -> Iterator[tuple[str, str]]:
    """A short digest of every source file of the package, by its path."""
    top = Path(__file__).parents[1]
    for path in sorted(top.rglob("*.py")):
        yield path.relative_to(top).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def agree(place: Place, facts: Mapping[str, str], trouble: str = "") -> None:
    """Return once all ranks have the same facts; otherwise an error on rank 0 says which ranks differ, and in what.

    `trouble` is what this rank alone found wrong; then rank 0 reports it.
    """
    text = json.dumps({"trouble": trouble} if trouble else dict(facts), sort_keys=True)
    store = place.control
    if place.rank:
        with _rank_0_reports():
            store.set(f"agree/digest/{place.rank}", _digest(text))
            answer = _awaited(place, "agree/answer")
            if answer == FULL:
                store.set(f"agree/facts/{place.rank}", text)
                answer = _awaited(place, "agree/verdict")
        if answer != FINE:
            raise ReportedElsewhere(answer)
        return
    others = range(1, place.num_ranks)
    digests = _values(place, [f"agree/digest/{rank}" for rank in others])
    if all(digest == _digest(text) for digest in digests):
        store.set("agree/answer", FINE)
        return
    store.set("agree/answer", FULL)
    different = [rank for rank, digest in zip(others, digests, strict=True) if digest != _digest(text)]
    texts = _values(place, [f"agree/facts/{rank}" for rank in different])
    error = disagreement(facts, {rank: json.loads(one) for rank, one in zip(different, texts, strict=True)})
    store.set("agree/verdict", error.what)
    raise error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _awaited(place: Place, key: str) -> str:
    place.control.wait([key], timedelta(seconds=AGREE_S))
    return place.control.get(key).decode()


@contextmanager
def _rank_0_reports() -> Iterator[None]:
    """A store that does not answer was rank 0's: it has ended, and says why."""
    try:
        yield
    except RuntimeError:
        raise ReportedElsewhere("rank 0 has ended, or did not answer") from None


def _values(place: Place, keys: Sequence[str]) -> list[str]:
    """The values of keys that the other ranks write; an error names the ranks that do not."""
    if not keys:
        return []
    try:
        place.control.wait(keys, timedelta(seconds=AGREE_S))
    except RuntimeError:
        silent = [int(key.rpartition("/")[2]) for key in keys if not place.control.check([key])]
        raise InputError(
            f"{ranks_in_words(silent)} did not say within {AGREE_S:g} s what they would train",
            where="the start of the run",
            fix="look at the output of these ranks: they have ended, or are stuck",
        ) from None
    return [place.control.get(key).decode() for key in keys]


def disagreement(own: Mapping[str, str], others: Mapping[int, Mapping[str, str]], kind: str = "rank") -> InputError:
    """The error for ranks (or nodes: `kind`) that differ from number 0, with what differs in words."""
    troubled = {rank: facts["trouble"] for rank, facts in others.items() if "trouble" in facts}
    if troubled:
        rank = min(troubled)
        more = f" ({len(troubled) - 1} other {kind}s report a problem too)" if len(troubled) > 1 else ""
        return InputError(
            f"{kind} {rank} cannot start, and {kind} 0 can: {troubled[rank].splitlines()[0]}{more}",
            where=f"the node of rank {rank}" if kind == "rank" else f"{kind} {rank}",
            fix="make that node like the others, or leave it out",
        )
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, facts in others.items():
        for key in {*own, *facts}:
            if facts.get(key) != own.get(key):
                found[key][facts.get(key, "none")].append(rank)
    sentences = [
        f"{ranks_in_words(ranks, kind)} {'has' if len(ranks) == 1 else 'have'} {in_words(key)} {value}, {kind} 0 has {own.get(key, 'none')}"
        for key in sorted(found, key=_order)
        for value, ranks in found[key].items()
    ]
    more = f"; and {len(sentences) - MOST_NAMED} more differences" if len(sentences) > MOST_NAMED else ""
    return InputError(
        f"the {kind}s would not train the same run: {'; '.join(sentences[:MOST_NAMED])}{more}",
        where="the start of the run",
        fix=f"start all {kind}s with the same plan, corpus, code, options and versions",
    )


def _order(key: str) -> tuple[bool, bool, str]:
    """What a user has chosen comes before versions, and these before files."""
    return key.startswith("code of "), key.startswith("version of "), key


def in_words(key: str) -> str:
    """A key without the path that leads to it."""
    for prefix, word in SHOWN.items():
        if key.startswith(prefix):
            return word + key.removeprefix(prefix)
    return key.removeprefix("option ")


def ranks_in_words(ranks: Sequence[int], kind: str = "rank") -> str:
    """Ranks in a phrase: `rank 3`, `ranks 2, 3 and 9 more`."""
    if len(ranks) == 1:
        return f"{kind} {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8])) if len(ranks) > 8 else ", ".join(map(str, ranks[:-1]))
    return f"{kind}s {shown} and {f'{len(ranks) - 8} more' if len(ranks) > 8 else ranks[-1]}"


def needs_shared_folder(job: TrainingJob) -> bool:
    """Whether all ranks write to the run folder, or read from it."""
    return job.saves_at_end or job.saves_by_clock or job.checkpoint_steps > 0 or job.resume


def check_shared(place: Place, runs: Location, *, seen_s: float = SEEN_S) -> None:
    """Raise an error if the ranks do not see the same folder or URL: each must read what rank 0 has just written there."""
    if place.num_ranks == 1:
        return
    store = place.control
    if place.rank == 0:
        path = _written(runs)
        try:
            store.set("shared/file", path.name)
            answers = _values(place, [f"shared/seen/{rank}" for rank in range(1, place.num_ranks)])
        finally:
            with suppress(OSError, MeshwrightError):
                path.remove() if isinstance(path, Remote) else os.unlink(path)
        blind = [rank for rank, answer in enumerate(answers, start=1) if answer != "yes"]
        store.set("shared/verdict", "no" if blind else "yes")
        if blind:
            verb = "does" if len(blind) == 1 else "do"
            raise InputError(
                f"the folder of runs is not shared: {ranks_in_words(blind)} {verb} not see what rank 0 writes there",
                where=str(runs),
                fix="name a folder that all nodes share: --runs DIR; or use object storage: --runs s3://BUCKET/FOLDER; "
                "or train without checkpoints: --no-save",
            )
        return
    with _rank_0_reports():
        name = _awaited(place, "shared/file")
        store.set(f"shared/seen/{place.rank}", "yes" if _is_seen(runs / Path(name).name, seen_s) else "no")
        verdict = _awaited(place, "shared/verdict")
    if verdict != "yes":
        raise ReportedElsewhere("the folder of runs is not shared")


def _written(runs: Location) -> Location:
    """A new file with a name that nobody can guess, and that name in it."""
    name = f".meshwright-{uuid.uuid4().hex}"
    if isinstance(runs, Remote):
        (runs / name).write(name.encode())
        return runs / name
    try:
        runs.mkdir(parents=True, exist_ok=True)
        (runs / name).write_text(name)
    except OSError as error:
        raise refusal("cannot write to the folder of runs", runs, error) from None
    return runs / name


def _is_seen(path: Location, seen_s: float) -> bool:
    until_s = time.monotonic() + seen_s
    while True:
        with suppress(OSError, MeshwrightError):
            if (path.read().decode() if isinstance(path, Remote) else path.read_text()) == path.name:
                return True
        if time.monotonic() > until_s:
            return False
        time.sleep(LOOK_S)
