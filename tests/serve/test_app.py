"""The routes: pages, runs and metrics are read; what is asked for wrongly is refused in words, and nothing can be written."""

from __future__ import annotations

import json

import pytest

from meshwright.serve.app import make_app
from meshwright.serve.shelf import Shelf
from meshwright.serve.static_files import static_files

from .conftest import asked


@pytest.fixture
def app(runs, new_run, plan_bytes):
    new_run("good", 50, plan=plan_bytes)
    shelf = Shelf(runs)
    yield make_app(shelf)
    shelf.books.close()


def answer(app, path):
    found = asked(app, "GET", path)
    assert found.headers["content-type"] == "application/json" and found.body.isascii()
    return found.status, json.loads(found.body, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_the_page_and_its_files_come_with_their_types(app):
    for address, (content, media_type) in static_files().items():
        found = asked(app, "GET", address)
        assert (found.status, found.body, found.headers["content-type"]) == (200, content, media_type)


def test_runs_are_listed_and_shown(app):
    status, listed = answer(app, "/api/runs")
    assert status == 200 and [row["name"] for row in listed["runs"]] == ["good"]
    status, shown = answer(app, "/api/runs/good")
    assert status == 200 and shown["step"] == 50 and shown["num_events"] == 1


def test_steps_come_in_as_many_points_as_are_asked_for_within_bounds(app):
    for query, num_points in (("", 50), ("?points=10", 7), ("?points=-5", 7), ("?points=1000000", 50)):  # buckets of 8, or steps
        status, found = answer(app, f"/api/runs/good/steps{query}")
        assert status == 200 and len(found["steps"]["columns"]["loss"]) == num_points


@pytest.mark.parametrize("query", ["?first=10&last=20", f"?first={-(2**70)}&last={2**70}", "?first=20&last=10"])
def test_any_whole_numbers_are_harmless(app, query):
    assert answer(app, f"/api/runs/good/steps{query}")[0] == 200


@pytest.mark.parametrize("path", ["/api/runs/none", "/api/runs/none/steps", "/api/runs/none/racks", "/api/runs/.hidden"])
def test_a_run_that_is_none_is_refused_with_what_to_do(app, path):
    status, found = answer(app, path)
    assert status == 404 and set(found["problem"]) == {"what", "where", "fix"} and found["problem"]["what"]


def test_racks_and_metrics_are_read(app):
    status, racks = answer(app, "/api/runs/good/racks")
    assert status == 200 and racks["num_ranks"] == 256
    metrics = asked(app, "GET", "/metrics")
    assert metrics.status == 200 and metrics.headers["content-type"].startswith("text/plain") and b'run="good"' in metrics.body


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/static/../app.py", "/static/", "/api"])
def test_nothing_else_is_there(app, path):
    assert asked(app, "GET", path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_written(app, method, runs):
    assert asked(app, method, "/api/runs/good").status == 405 and (runs / "good" / "run.json").is_file()


def test_a_control_character_in_a_refused_name_is_spelled_out(app):
    status, found = answer(app, "/api/runs/a\x1b[31m")
    assert status == 404 and "\x1b" not in json.dumps(found, ensure_ascii=False)
