"""`meshwright ledger`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from meshwright.ledger import Rate
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter
from meshwright.say.vocabulary import problems

RATE = Rate(usd_per_gpu_hour=Decimal("7.2"), provider="someone", kind="spot", date="2026-11-15", source="a page")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verb() -> str:
    return "ledger"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two accelerators for 500 s: 100 s to start, 400 s in one step of which a quarter is exposed."""
    monkeypatch.chdir(tmp_path)
    header = RunHeader(name="a", kind="trained", seed=0, num_ranks=2, machine="two", created="2026-11-15T08:00:00+00:00")
    with RunWriter.create("runs", header) as writer:
        writer.event("start", 0, 100.0, price=RATE.to_json())
        parts = {"compute": 300.0, "exposed_dp": 100.0}
        writer.step(StepRecord(step=1, samples=1, loss=1.0, grad_norm=1.0, step_s=400.0, parts_s=parts))
        writer.finish("finished")
    return Path("runs/a")


def test_what_it_prints(run: Run, folder: Path) -> None:
    code, out, err = run(str(folder))
    assert (code, err) == (0, "")
    assert (
        out
        == """\
ledger of a: trained, finished
paid for    8.333 min of 2 accelerators: 0.2778 accelerator-hours
cost        2.00 USD
price       $7.2 per accelerator-hour, someone, spot, 2026-11-15
price from  a page
energy      unknown
water       unknown

by state
state       accelerator-hours     share   USD  energy
compute                0.1667   60.00 %  1.20       -
exposed                0.0556   20.00 %  0.40       -
bubble                 0.0000    0.00 %  0.00       -
stalled                0.0000    0.00 %  0.00       -
recovering             0.0000    0.00 %  0.00       -
checkpoint             0.0000    0.00 %  0.00       -
idle                   0.0556   20.00 %  0.40       -
total                  0.2778  100.00 %  2.00       -

note: the run's plan cannot be read: cannot read the plan: No such file or directory
"""
    )


def test_csv_and_json_tell_the_same(run: Run, answer: Callable[..., dict[str, object]], folder: Path) -> None:
    document = answer(str(folder), "--csv", "a.csv")
    with open("a.csv", newline="", encoding="utf-8") as file:
        *rows, total = csv.DictReader(file)
    assert document["rounded_usd"] == float(total["usd"]) == document["cost_usd"] == 2.0
    assert sum(Decimal(row["usd"]) for row in rows) == Decimal("2.00")
    assert [row["state"] for row in rows] == [entry["state"] for entry in document["entries"]] == ["idle", "compute", "exposed"]
    assert document["accelerator_hours"] == pytest.approx(1000 / 3600) == sum(document["accelerator_hours_by_state"].values())
    assert document["price"]["usd_per_accelerator_hour"] == 7.2 and problems(document) == []
    assert "written: a.csv" in run(str(folder), "--csv", "a.csv")[1]


def test_another_price(answer: Callable[..., dict[str, object]], folder: Path) -> None:
    assert answer(str(folder), "--price", "3.6USD/h")["rounded_usd"] == 1.0


@pytest.mark.parametrize(
    "arguments, what",
    [
        (("nowhere",), "not a run folder"),
        ((".",), "not a run folder"),
        (("runs",), "not a run folder"),
        (("runs/a", "--price", "cheap"), "cannot read an amount of USD in 'cheap'"),
        (("runs/a", "--price", "0"), "0 is not above 0"),
        (("runs/a", "--region", "atlantis"), "no region named 'atlantis'"),
        (("runs/a", "--csv", "no/such/place.csv"), "cannot write place.csv"),
        (("runs/a", "--csv", "."), "cannot write a table over a folder"),
        (("runs/a", "runs/a"), "unexpected extra argument"),
        ((), "RUN is missing"),
    ],
)
def test_bad_input_is_one_message(run: Run, folder: Path, arguments: tuple[str, ...], what: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert what in err and err.startswith("meshwright: ")


@pytest.mark.parametrize("content, what", [("{", "cannot read the run's header"), ('{"format": 9}', "update meshwright")])
def test_a_damaged_or_newer_header(run: Run, folder: Path, content: str, what: str) -> None:
    (folder / "run.json").write_text(content)
    code, _, err = run(str(folder))
    assert code == 2 and what in err


def test_a_plan_that_is_none_is_a_note(answer: Callable[..., dict[str, object]], folder: Path) -> None:
    (folder / "plan.json").write_text(json.dumps({"version": 1}))
    document = answer(str(folder))
    assert document["rounded_usd"] == 2.0 and "this is not a plan" in document["notes"][0]
