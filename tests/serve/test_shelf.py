"""All runs of a folder, as JSON can hold them."""

from __future__ import annotations

import json
import os
import re
import time

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.ledger import evaluation_s, predicted_s
from meshwright.plan.plan import read_plan
from meshwright.record.run import read_run
from meshwright.record.summary import summary_of
from meshwright.record.writer import RunWriter
from meshwright.serve.shelf import Shelf, plain

from .conftest import record


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch):
    monkeypatch.setattr("meshwright.serve.live.LOOK_S", 0.0)
    for limit in ("LISTING_S", "READING_S"):  # a busy machine may take longer for a test's few runs
        monkeypatch.setattr(f"meshwright.serve.shelf.{limit}", 60.0)


@pytest.fixture
def shelf(runs):
    shelf = Shelf(runs)
    yield shelf
    shelf.books.close()


def rows(shelf: Shelf) -> dict[str, dict]:
    return {row["name"]: row for row in shelf.listed()["runs"]}


def test_an_empty_or_missing_folder_has_no_runs(shelf, tmp_path):
    assert shelf.listed()["runs"] == []
    assert Shelf(tmp_path / "nowhere").listed()["runs"] == []


def test_every_run_has_a_row(shelf, new_run, plan_bytes):
    new_run("good", 20, plan=plan_bytes)
    new_run("empty")
    new_run("ended", 4).finish("finished")
    (new_run("newer", 1).folder / "run.json").write_text('{"format": 7}')
    found = rows(shelf)
    assert {name: row["status"] for name, row in found.items()} == {
        "good": "running", "empty": "running", "ended": "finished", "newer": "damaged",
    }  # fmt: skip
    good = found["good"]
    assert (good["model"], good["step"], good["loss"], good["step_s"]) == ("llama-3.1-405b", 20, 0.5, 1.0)
    assert good["num_steps"] > 20
    plan = read_plan(shelf.runs / "good" / "plan.json")
    evaluations_s = plan.workload.num_evaluations(good["num_steps"], after=20) * evaluation_s(plan)
    assert good["left_s"] == pytest.approx(good["num_steps"] - 20 + evaluations_s)
    assert found["empty"]["step"] == 0
    assert "reads up to 1" in found["newer"]["problem"]["what"]


def test_a_run_of_fewer_steps_than_the_workload_is_reported_by_its_own(shelf, new_run, plan_bytes):
    new_run("asked", 20, plan=plan_bytes, num_steps=60, last_step=60)
    new_run("target", 20, plan=plan_bytes, num_steps=60, last_step=90, target=3.0)
    new_run("beyond", 70, plan=plan_bytes, num_steps=60, last_step=90, target=3.0)
    found, plan = rows(shelf), read_plan(shelf.runs / "asked" / "plan.json")
    assert {name: (row["num_steps"], row["ends_by"]) for name, row in found.items()} == {
        "asked": (60, "steps asked for"), "target": (60, "steps asked for"), "beyond": (90, "steps asked for"),
    }  # fmt: skip
    assert found["asked"]["progress"] == pytest.approx(20 / 60)
    assert found["asked"]["predicted_s"] == pytest.approx(predicted_s(plan, 60).value)
    assert found["asked"]["predicted_s"] < plan.time_to_train_s / 10
    assert found["asked"]["predicted_usd"] == pytest.approx(found["asked"]["predicted_s"] * found["asked"]["usd_per_s"])


def test_a_run_that_goes_to_the_workloads_end_says_so(shelf, new_run, plan_bytes):
    expected = read_plan(new_run("older", 20, plan=plan_bytes).folder / "plan.json").workload.num_steps()
    new_run("whole", 20, plan=plan_bytes, num_steps=expected, last_step=expected)
    new_run("target", 20, plan=plan_bytes, num_steps=expected, last_step=2 * expected, target=3.0)
    found = {name: row["ends_by"] for name, row in rows(shelf).items()}
    assert found == {"older": "workload", "whole": "workload", "target": "target"}


def test_a_budget_that_is_spent_before_the_last_step_ends_the_run(shelf, new_run, plan_bytes):
    writer = new_run("poor", 20, plan=plan_bytes, num_steps=60, last_step=60)
    usd_per_s = rows(shelf)["poor"]["usd_per_s"]
    writer.event("resumed", 20, budget_usd=f"{30.4 * usd_per_s:.2f}")
    row = rows(shelf)["poor"]
    assert row["ends_by"] == "budget" and 28 <= row["num_steps"] <= 30 and row["paced_usd"] <= 30.5 * usd_per_s


def test_step_time_and_rate_of_an_ended_run_are_those_of_its_report(shelf, new_run):
    writer = new_run("drifting")
    writer.steps(record(step, 1.0 + step / 300) for step in range(1, 301))
    writer.event("evaluation", 150, 1.0, seconds=1.0)
    running, summary = rows(shelf)["drifting"], summary_of(read_run(writer.folder))
    assert running["step_s"] > summary.median_step_s  # by the last 200 steps while it goes on
    writer.finish("finished")
    ended = rows(shelf)["drifting"]
    assert ended["step_s"] == pytest.approx(summary.median_step_s)
    assert ended["tokens_per_s"] == pytest.approx(summary.tokens_per_s)


def test_the_list_says_that_a_plan_is_not_the_runs_own(shelf, new_run, plan_bytes):
    writer = new_run("swapped", 4, plan=plan_bytes)
    (writer.folder / "plan.json").write_bytes(plan_bytes + b"\n")
    row = rows(shelf)["swapped"]
    assert (row["model"], row["usd"], row["predicted_s"], row["num_steps"]) == (None, None, None, None)
    assert row["plan_problem"].startswith("plan.json is not the run's own plan")


@pytest.mark.parametrize(
    ("status", "num_steps", "share"),
    [("finished", 12, None), ("stopped", 40, None), ("failed", 0, None), ("finished", 0, None), ("target_reached", 12, 1.0)],
)
def test_progress_is_steps_done_of_those_expected_however_the_run_ended(shelf, new_run, plan_bytes, status, num_steps, share):
    new_run("ended", num_steps, plan=plan_bytes).finish(status)
    row = rows(shelf)["ended"]
    assert row["num_steps"] == row["expected_steps"] > 40
    assert row["progress"] == (num_steps / row["expected_steps"] if share is None else share)


def test_an_ended_run_past_what_was_expected_is_done_and_one_without_a_plan_is_nobody_knows_how_far(shelf, new_run, plan_bytes):
    writer = new_run("past", plan=plan_bytes)
    writer.step(record(10**6))
    writer.finish("finished")
    new_run("no plan", 12).finish("finished")
    found = rows(shelf)
    assert (found["past"]["progress"], found["no plan"]["progress"]) == (1.0, None)


@pytest.mark.parametrize("content", [b"no json\n" * 12, b"\0\1\2 and no end of a line", None])
def test_a_run_of_whose_steps_none_can_be_read_is_damaged(shelf, new_run, plan_bytes, content):
    writer = new_run("unreadable", 12, plan=plan_bytes)
    writer.finish("finished")
    path = writer.folder / "steps.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    row = rows(shelf)["unreadable"]
    assert (row["status"], row["progress"], row["num_damaged"]) == ("damaged", 0.0, 12 if content and b"\n" in content else 0)
    assert "steps.jsonl" in row["problem"]["what"]
    assert shelf.shown("unreadable")["status"] == "damaged"


def test_a_run_that_ended_before_its_first_step_is_sound(shelf, new_run):
    new_run("brief").finish("stopped")
    assert rows(shelf)["brief"]["status"] == "stopped"


def test_times_that_cannot_be_cost_nothing(shelf, new_run, plan_bytes):
    writer = new_run("long", 4, plan=plan_bytes)
    with open(writer.folder / "steps.jsonl", "a") as file:
        file.write(json.dumps({**record(5).to_json(), "step_s": 1e308}) + "\n")
    writer.event("evaluation", 4, 9.0, seconds=1e308)
    row = rows(shelf)["long"]
    assert (row["step"], row["busy_s"], row["num_damaged"]) == (4, 4.0, 1)
    assert row["usd"] < 100


def test_a_folder_that_is_no_run_is_not_listed(shelf, runs, new_run):
    new_run("good", 1)
    (runs / "notes").mkdir()
    (runs / "notes.txt").write_text("no run")
    (runs / ".hidden").mkdir()
    (runs / ".hidden" / "run.json").write_text("{}")
    assert list(rows(shelf)) == ["good"]


def test_a_folder_that_lost_its_header_is_listed_as_damaged(shelf, new_run):
    (new_run("lost", 2).folder / "run.json").unlink()
    row = rows(shelf)["lost"]
    assert row["status"] == "damaged"
    assert "no run.json" in row["problem"]["what"]


def test_a_run_that_is_gone_leaves_the_list(shelf, new_run, runs):
    new_run("good", 1)
    assert list(rows(shelf)) == ["good"]
    (runs / "good").rename(runs.parent / "elsewhere")
    assert rows(shelf) == {}


@pytest.mark.parametrize(
    "name", ["..", ".", "../outside", "/etc", "a/b", "a\\b", "\0", "a\0b", "", " ", ".hidden", "x" * 300, "nobody", "\u202egood"]
)
def test_no_name_leads_out_of_the_runs_folder(shelf, name, runs):
    (runs.parent / "outside").mkdir()
    (runs.parent / "outside" / "run.json").write_text("{}")
    with pytest.raises(InputError):
        shelf.shown(name)


def test_a_link_out_of_the_runs_folder_is_refused_and_reported(shelf, runs, new_run):
    writer = new_run("inside", 1)
    outside = runs.parent / "outside"
    os.rename(writer.folder, outside)
    (runs / "inside").symlink_to(outside)
    with pytest.raises(InputError, match="leads out of the runs folder"):
        shelf.shown("inside")
    assert "leads out" in rows(shelf)["inside"]["problem"]["what"]


def test_a_reader_gets_what_is_new(shelf, new_run):
    writer = new_run("good", 10)
    first = shelf.shown("good")
    writer.step(record(11))
    writer.event("checkpoint", 11, stall_s=0.5)
    second = shelf.shown(
        "good", life=first["life"], after=first["steps"]["rows"], bucket=first["steps"]["bucket"], num_events=first["num_events"]
    )
    assert first["steps"]["columns"]["step"] == list(range(1, 11))
    assert (second["steps"]["columns"]["step"], second["steps"]["from"]) == ([11], 10)
    assert [event["kind"] for event in second["events"]] == ["checkpoint"]


def test_a_reader_of_an_earlier_life_starts_over(shelf, new_run):
    new_run("good", 10)
    assert shelf.shown("good", life=99, after=5, bucket=1)["steps"]["from"] == 0


def test_what_is_reported_is_json_whatever_the_files_hold(shelf, new_run, runs):
    name = '<img src=x onerror="alert(1)">'
    writer = new_run(name, 2)
    with (writer.folder / "events.jsonl").open("ab") as file:
        file.write(
            b'{"time_s": 1, "kind": "\\ud800", "step": 1, "message": NaN, "deep": '
            + b"[" * 50
            + b"]" * 50
            + b', "long": "'
            + b"x" * 9000
            + b'"}\n'
        )
    document = json.loads(json.dumps(shelf.shown(name), allow_nan=False))
    assert document["name"] == name
    odd = document["events"][-1]
    assert (odd["kind"], odd["message"], len(odd["long"])) == ("\\ud800", None, 2004)


def test_a_name_that_is_no_text_is_listed_and_cannot_be_opened(shelf, runs):
    folder = os.fsencode(runs) + b"/bad\xff"
    os.mkdir(folder)
    with open(folder + b"/run.json", "w") as file:
        file.write("{}")
    (row,) = shelf.listed()["runs"]
    json.dumps(row, allow_nan=False).encode("ascii")
    assert (row["status"], row["is_open"]) == ("damaged", False)


def test_a_ledger_takes_the_place_of_the_estimate(shelf, new_run, plan_bytes):
    new_run("good", 20, plan=plan_bytes).finish("finished")
    assert shelf.shown("good")["is_estimate"]
    shelf.books._clerk.shutdown(wait=True)
    shown = shelf.shown("good")
    assert not shown["is_estimate"]
    assert shown["usd"] == pytest.approx(shown["ledger"]["usd"], abs=0.01)
    assert shown["ledger"]["gpu_seconds"]["compute"] > 0


def test_the_row_of_a_run_that_ended_is_kept_until_it_goes_on(shelf, new_run, plan_bytes, monkeypatch):
    writer = new_run("good", 20, plan=plan_bytes)
    writer.finish("finished")
    deadline_s = time.monotonic() + 20
    while "good" not in shelf._settled and time.monotonic() < deadline_s:
        shelf.listed()
    with monkeypatch.context() as patch:
        patch.setattr("meshwright.serve.shelf._facts", lambda *_: pytest.fail("the row was made again"))
        assert rows(shelf)["good"]["step"] == 20
    with RunWriter.resume(writer.folder, 20) as again:
        again.step(record(21))
        row = rows(shelf)["good"]
    assert (row["status"], row["step"]) == ("running", 21)


def test_racks_hold_every_rank_once(shelf, new_run, plan_bytes):
    new_run("good", 1, plan=plan_bytes)
    shown = shelf.racks("good")
    assert shown["num_ranks"] == 256
    assert shown["place"] == ["rack", "tray", "gpu"]
    places = list(zip(*(shown["columns"][name] for name in shown["place"]), strict=True))
    assert len(set(places)) == 256
    assert (shown["num_used"], shown["num_installed"]) == (64, 72)
    assert sorted(set(shown["columns"]["dp"])) == [0, 1, 2, 3]


def test_a_run_without_a_plan_has_no_racks(shelf, new_run):
    new_run("bare", 1)
    with pytest.raises(InputError, match="no plan"):
        shelf.racks("bare")


def test_health_names_slow_ranks_and_those_that_were(shelf, new_run):
    writer = new_run("good", 3, num_ranks=2)
    writer.event("slow_rank", 1, rank=7, message="rank 7 is slow")
    writer.event("slow_rank", 2, rank=9, message="rank 9 is slow")
    writer.event("recovered_rank", 3, rank=7)
    (writer.folder / "ranks.json").write_text(json.dumps({"step": 3, "num_steps": 2, "busy_s": [0.5, 0.7]}))
    health = shelf.shown("good")["health"]
    assert (health["slow"], health["recovered"]) == ({"9": "rank 9 is slow"}, [7])
    assert health["busy"] == {"step": 3, "num_steps": 2, "busy_s": [0.5, 0.7]}


def test_a_run_past_what_was_expected_has_no_end_to_tell(shelf, new_run, plan_bytes):
    writer = new_run("long", plan=plan_bytes)
    expected = rows(shelf)["long"]["expected_steps"]
    writer.step(record(expected + 1))
    shown = rows(shelf)["long"]
    assert (shown["num_steps"], shown["progress"], shown["left_s"], shown["finish_at"]) == (None, None, None, None)


def test_plain_takes_everything():
    assert plain({"a": float("inf"), "b": [1, float("nan")], 3: "x"}) == {"a": None, "b": [1, None], "3": "x"}


def test_no_change_to_a_folder_s_bytes_breaks_the_list(runs, new_run, plan_bytes):
    writer = new_run("whole", 12, plan=plan_bytes)
    writer.event("slow_rank", 3, rank=2, message="slow")
    (writer.folder / "ranks.json").write_text(json.dumps({"step": 3, "num_steps": 2, "busy_s": [1.0] * 256}))
    names = ("run.json", "plan.json", "steps.jsonl", "events.jsonl", "ranks.json")
    whole = {name: (writer.folder / name).read_bytes() for name in names}
    rng = np.random.default_rng(7)
    numbers = [b"NaN", b"-1", b"1e999", b"0", b"9" * 400, b"true", b"null", b'"<b>"', b"[]", b"{}"]
    seen = set()
    for case in range(100):
        name = names[case % len(names)]
        broken = changed(whole[name], numbers, rng)
        (writer.folder / name).write_bytes(broken)
        shelf = Shelf(runs)
        for shown in (shelf.listed(), shelf.shown("whole")):
            json.dumps(shown, allow_nan=False).encode("ascii")
        seen.add(shelf.shown("whole")["status"])
        shelf.books.close()
        (writer.folder / name).write_bytes(whole[name])
    assert {"running", "damaged"} <= seen


def changed(content: bytes, numbers: list[bytes], rng: np.random.Generator) -> bytes:
    """Some bytes lost, or one value put in another's place."""
    if rng.random() < 0.3:
        start = int(rng.integers(len(content)))
        return content[:start] + content[start + int(rng.integers(1, 40)) :]
    values = list(re.finditer(rb"(?<=: )(-?[0-9.e+-]+|\"[^\"]*\"|null)", content))
    value = values[int(rng.integers(len(values)))]
    return content[: value.start()] + numbers[int(rng.integers(len(numbers)))] + content[value.end() :]


@pytest.mark.parametrize("end", ["finished", "stopped"])
def test_simulated_weeks_are_reported_by_their_end_and_not_by_the_sample_of_steps(shelf, new_run, plan_bytes, end):
    writer = new_run("weeks", 3, plan_bytes, kind="simulated", status="running")
    (before,) = shelf.listed()["runs"]
    assert (before["step"], before["num_recorded"]) == (3, None)
    with open(writer.folder / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(f'{{"time_s": 1814400.0, "kind": "{end}", "step": 1405437}}\n')
    shelf._found.clear()
    (row,) = shelf.listed()["runs"]
    assert (row["step"], row["num_recorded"], row["busy_s"]) == (1405437, 3, 1814400.0)
    assert row["samples"] == 1405437 * 32  # the plan's batch
    assert row["predicted_s"] is None and row["predicted_usd"] is None


def test_a_trained_run_that_was_stopped_is_no_sample(shelf, new_run):
    new_run("stopped", 3).event("stopped", 9)
    (row,) = shelf.listed()["runs"]
    assert (row["step"], row["num_recorded"]) == (3, None)


def test_hundreds_of_unread_runs_do_not_hold_up_one_that_is_being_written(shelf, new_run, monkeypatch):
    writer = new_run("live", 2)
    shelf.listed()
    for number in range(30):
        new_run(f"old{number}", 1)
    asked = []
    monkeypatch.setattr(shelf, "_look_until", lambda names, until_s: asked.append(names))
    writer.steps([record(3)])
    shelf.listed()
    assert asked[0] == ["live"] and asked[1][-1] == "live" and len(asked[1]) == 31
