"""What a run was started with: kept in its header, taken up again by `--resume`, and refused where it is damaged."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.cli.train_arguments import KEPT, Wishes, kept_arguments, newest_run, with_kept
from meshwright.errors import InputError
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter

WISHES = Wishes(
    plan=None,
    layout="",
    steps=None,
    name="first",
    runs=Path("runs"),
    resume=True,
    corpus=None,
    start_from=None,
    seed=0,
    benchmark="own",
    checkpoint_every=None,
    save=True,
    keep=3,
    keep_every=0,
    stall_timeout_s=10.0,
    grace_s=30.0,
    rendezvous_timeout_s=60.0,
    allow_changed=(),
    as_json=False,
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name="first", kind="trained", at_s=1000.0, **arguments):
    header = RunHeader(name=name, kind=kind, seed=7, num_ranks=1, machine="m", arguments=arguments)
    RunWriter.create(Path("runs"), header, b"{}").close()
    os.utime(Path("runs") / name / "run.json", (at_s, at_s))
    return Path("runs") / name


def test_paths_are_kept_in_full_and_the_rest_as_it_is(here):
    kept = kept_arguments(replace(WISHES, steps=5, start_from=Path("weights")), Path("corpus"))
    assert set(kept) == set(KEPT)
    assert (kept["corpus"], kept["start_from"], kept["steps"]) == (str(here / "corpus"), str(here / "weights"), 5)
    json.dumps(kept, allow_nan=False)
    assert kept_arguments(WISHES, None)["corpus"] is None


def test_what_is_kept_comes_back_and_what_is_given_goes_before(here):
    started = replace(WISHES, steps=50, seed=7, keep=9, save=False, stall_timeout_s=2.5)
    written(**kept_arguments(started, Path("corpus")))
    again = with_kept(replace(WISHES, steps=80, given=frozenset({"steps"})))
    assert (again.steps, again.seed, again.keep, again.save, again.stall_timeout_s) == (80, 7, 9, False, 2.5)
    assert again.corpus == here / "corpus" and again.start_from is None and again.name == "first"


def test_a_run_of_an_older_version_keeps_its_seed_alone():
    written()
    assert with_kept(WISHES) == replace(WISHES, seed=7)


@pytest.mark.parametrize(
    "name, value",
    [("steps", "many"), ("steps", True), ("save", 1), ("keep", None), ("corpus", 5), ("stall_timeout_s", "soon"), ("seed", 1.5)],
)
def test_an_argument_of_another_type_is_damage_with_its_place(name, value):
    written(**{name: value})
    with pytest.raises(InputError) as caught:
        with_kept(WISHES)
    assert caught.value.what == f"the run's header is damaged: its argument {name} is {value!r}"
    assert caught.value.where == "runs/first/run.json" and caught.value.fix


def test_a_folder_that_is_no_run_cannot_go_on():
    with pytest.raises(InputError, match="not a run folder"):
        with_kept(WISHES)


def test_the_newest_trained_run_goes_on():
    written("old", at_s=100.0)
    written("new", at_s=300.0)
    written("simulated", kind="simulated", at_s=500.0)
    damaged = written("damaged", at_s=600.0)
    (damaged / "run.json").write_text("{")
    os.utime(damaged / "run.json", (600.0, 600.0))
    assert newest_run(Path("runs")) == "new"


def test_where_there_is_no_run_it_says_how_to_start_one():
    for folder in (Path("none"), Path("runs")):
        with pytest.raises(InputError) as caught:
            newest_run(folder)
        assert caught.value.what == "there is no run to continue" and "meshwright train" in caught.value.fix
        Path("runs").mkdir(exist_ok=True)
