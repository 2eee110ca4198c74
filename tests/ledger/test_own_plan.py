"""The plan that a run ran by: taken only if its digest is the recorded one."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.ledger import ledger_of
from meshwright.ledger.own_plan import checked_plan, own_plan
from meshwright.plan.plan import plan_bytes
from meshwright.record.header import read_header

from .conftest import new, racks, step


def test_a_plan_that_is_not_the_runs_own_is_reported_and_gives_neither_price_nor_power(tmp_path: Path) -> None:
    with new(tmp_path, plan=racks()) as writer:
        writer.step(step(1))
    assert ledger_of(tmp_path / "a").usd is not None
    (tmp_path / "a" / "plan.json").write_bytes(plan_bytes(replace(racks(), name="another")))
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.usd, ledger.price, ledger.energy_j) == (None, None, None)
    assert ledger.notes[0].startswith("plan.json is not the run's own plan (its digest is ")


def test_a_runs_own_plan_comes_back_and_a_header_without_a_digest_takes_any(tmp_path: Path) -> None:
    new(tmp_path, plan=racks()).close()
    folder = tmp_path / "a"
    header = read_header(folder)
    assert own_plan(folder, header) == (racks(), "") and checked_plan(folder, "mend it") == racks()
    other = replace(racks(), name="another")
    (folder / "plan.json").write_bytes(plan_bytes(other))
    assert own_plan(folder, replace(header, plan_sha256=None)) == (other, "")


def test_another_plan_in_its_place_is_refused_with_both_digests(tmp_path: Path) -> None:
    new(tmp_path, plan=racks()).close()
    other = plan_bytes(replace(racks(), name="another"))
    (tmp_path / "a" / "plan.json").write_bytes(other)
    found, recorded = (hashlib.sha256(data).hexdigest()[:12] for data in (other, plan_bytes(racks())))
    with pytest.raises(InputError) as caught:
        checked_plan(tmp_path / "a", "mend it")
    assert caught.value.what == f"plan.json is not the run's own plan (its digest is {found}..., run.json records {recorded}...)"
    assert (caught.value.where, caught.value.fix) == (str(tmp_path / "a" / "plan.json"), "mend it")


def test_a_plan_that_is_missing_damaged_or_a_folder_says_why(tmp_path: Path) -> None:
    new(tmp_path, plan=racks()).close()
    folder = tmp_path / "a"
    header, path = read_header(folder), folder / "plan.json"
    path.write_text("{")
    plan, problem = own_plan(folder, header)
    assert plan is None and problem.startswith("the run's plan cannot be read: ") and "None" not in problem
    path.unlink()
    assert own_plan(folder, header)[1].endswith("No such file or directory")
    path.mkdir()
    assert own_plan(folder, header)[1].endswith("Is a directory")
    with pytest.raises(InputError):
        checked_plan(folder, "mend it")


def test_a_folder_without_a_header_vouches_for_no_plan_and_any_is_taken(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(plan_bytes(racks()))
    assert checked_plan(tmp_path, "mend it") == racks()
