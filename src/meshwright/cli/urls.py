"""What a user names by a URL of object storage, as a folder of this machine: runs and corpora are copied to a cache first."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.train_arguments import Wishes
from meshwright.errors import InputError, printable
from meshwright.files import refusal, replace_file
from meshwright.record.header import check_name
from meshwright.record.stored import has_records, pull, push
from meshwright.storage import Remote, is_url
from meshwright.storage.apart import apart

if TYPE_CHECKING:
    from meshwright.train.job import TrainingJob

FIRST_PATIENCE_S = 20.0  # a user waits for the answer
SAVE_PATIENCE_S = 120.0  # a save waits in the background
URL_FILE = ".url"  # in the folder of the runs at a URL


def cache_folder() -> Path:
    """Where meshwright keeps copies on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"


def check_on_disk(path: Path, what: str) -> None:
    """Raise an error if a path that must be a folder of this machine is a URL."""
    if is_url(path):
        raise InputError(
            f"{what} are in a folder of this machine, not at a URL",
            where=str(path),
            fix="give a path; train, launch, serve, report, ledger and generate take URLs",
        )


def local_runs(remote: Remote) -> Path:
    """The folder of this machine for the runs at a URL."""
    return cache_folder() / "runs" / hashlib.sha256(str(remote).encode()).hexdigest()[:16]


def kept_runs(remote: Remote) -> Path:
    """The same folder, made now, with the URL in a file: messages about what is in it then name the URL."""
    folder = local_runs(remote)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / URL_FILE, str(remote).encode())
    except OSError as error:
        raise refusal("cannot keep copies of runs", folder, error) from None
    return folder


def by_url(message: str) -> str:
    """A message with the URL that a user knows in the place of the folder of this machine that has the copy."""
    for folder in set(re.findall(rf"{re.escape(str(cache_folder() / 'runs'))}/[0-9a-f]{{16}}", message)):
        with suppress(OSError):
            message = message.replace(folder, printable((Path(folder) / URL_FILE).read_text(errors="replace")))
    return message


def run_here(path: Path) -> Path:
    """The folder of a run: the path itself, or for a URL a copy of its records, made now."""
    if not is_url(path):
        return path
    runs, name = _split(Remote.at(path, FIRST_PATIENCE_S))
    folder = kept_runs(runs) / name
    apart(lambda: pull(runs / name, folder))
    return folder


def _split(run: Remote) -> tuple[Remote, str]:
    """The place of all runs, and the name of this one."""
    parent, _, name = run.key.rpartition("/")
    if not name:
        raise InputError("this URL names a bucket, not a run", where=str(run), fix="add the run's name: s3://BUCKET/FOLDER/NAME")
    return replace(run, key=parent), check_name(name)


def checkpoints_of(path: Path) -> Remote | None:
    """Where the checkpoints of a run are that was named by a URL; None for a path."""
    return Remote.at(path, SAVE_PATIENCE_S) / "checkpoints" if is_url(path) else None


def with_local_runs(wishes: Wishes) -> Wishes:
    """The options with a folder of this machine for runs at a URL, and in it the records of the run that is named."""
    if not is_url(wishes.runs):
        return wishes
    remote = Remote.at(wishes.runs, FIRST_PATIENCE_S)
    if wishes.resume and not wishes.name:
        raise InputError("which run should be continued?", where=f"--runs {remote}", fix="name it: --name NAME")
    runs = kept_runs(remote)
    if wishes.name:
        name = check_name(wishes.name)
        apart(lambda: pull(remote / name, runs / name) if has_records(remote / name) else None)
    return replace(wishes, runs=runs, remote=remote.waiting(SAVE_PATIENCE_S))


def corpus_here(path: Path) -> Path:
    """The folder of a corpus: the path itself, or for a URL a copy in the cache, made now if it is not there."""
    if not is_url(path):
        return path
    from meshwright.train.data.corpus_copy import local_corpus

    place = Remote.at(path, SAVE_PATIENCE_S)
    apart(lambda: place.waiting(FIRST_PATIENCE_S).names())  # a server that does not answer is reported soon
    return apart(lambda: local_corpus(place, cache_folder()))


def store_end(job: TrainingJob) -> str:
    """Store what the ranks of a run could not store, because they failed; return what is still not stored, in words."""
    if job.remote is None:
        return ""
    place = job.remote.waiting(FIRST_PATIENCE_S) / job.name
    missing = apart(lambda: push(job.folder, place))
    return f"not stored in {place}: {', '.join(missing[:-1])}: {missing[-1]}\n  they are in {job.folder}" if missing else ""


def where_is(job: TrainingJob) -> str:
    """The folder or URL that holds a run, as a user would name it."""
    return str(job.remote / job.name) if job.remote else str(job.folder)
