"""The page in a real browser: list, open, live update, compare, damaged runs, phones, keyboards, hostile names."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from meshwright.serve.app import guarded
from meshwright.serve.guard import Door
from meshwright.serve.shelf import Shelf

from .chromium import chromium
from .conftest import record

playwright_api = pytest.importorskip("playwright.sync_api")
PATIENCE_MS = 15_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here, and none could be installed")
    with playwright_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def shelf(runs) -> Iterator[Shelf]:
    shelf = Shelf(runs)
    yield shelf
    shelf.books.close()


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def new_page(browser, complaints) -> Iterator[Any]:
    """Opens a page that may complain of nothing: no error, no breach of the content policy, no request to elsewhere."""
    contexts = []

    def open_page(width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda asked: None if asked.url.startswith("http://127.0.0.1:") else complaints.append(asked.url))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def base(served, shelf) -> str:
    return served(guarded(shelf, Door()))


def expect_text(page: Any, selector: str, text: str) -> None:
    playwright_api.expect(page.locator(selector).first).to_contain_text(text, timeout=PATIENCE_MS)


def test_list_open_and_back(base, new_page, new_run, plan_bytes):
    new_run("first", 30, plan=plan_bytes).finish("finished")
    new_run("second", 5, plan=plan_bytes)
    page = new_page()
    page.goto(base)
    expect_text(page, "tbody", "first")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="first"))
    for fact in ("finished", "llama-3.1-405b", "step 30", "1 s", "$"):
        playwright_api.expect(row).to_contain_text(fact)
    page.get_by_role("link", name="first").click()
    expect_text(page, "h1", "first")
    assert page.url.endswith("#/run/first")
    for heading in ("Loss", "Step time", "Parts of the step", "Rack map", "Events"):
        playwright_api.expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    expect_text(page, "main", "256 ranks in 4 racks")
    page.get_by_role("link", name="All runs").click()
    expect_text(page, "h1", "Runs")


def test_a_run_grows_before_one_s_eyes(base, new_page, new_run, plan_bytes):
    writer = new_run("live", 10, plan=plan_bytes)
    page = new_page()
    page.goto(f"{base}#/run/live")
    expect_text(page, ".tiles", "step 10 of")
    stop = threading.Event()

    def train() -> None:
        for step in range(11, 500):
            if stop.is_set():
                break
            writer.step(record(step, loss=1.234 if step >= 20 else None))
            if step == 20:
                writer.event("slow_rank", step, rank=7, message="rank 7 is 30 % slower than the others")
            time.sleep(0.02)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        expect_text(page, ".live-events", "rank 7 is 30 % slower")
        expect_text(page, ".tiles", "1.234")
        expect_text(page, ".legend >> text=slow (1)", "slow (1)")
    finally:
        stop.set()
        thread.join()
    writer.finish("target_reached")
    expect_text(page, ".chips", "target reached")


def test_a_run_with_experts_shows_its_routers_and_dead_experts(base, new_page, new_run, plan_bytes):
    writer = new_run("experts", plan=plan_bytes)
    for step in range(1, 41):
        routers = {"expert_peak": 1 + 4 / step, "router_entropy": 2.0 - step / 100, "balance_loss": 1 + 1 / step}
        writer.step(replace(record(step), extra=routers, expert_loads=((0.5, 1.5), (1.0, 1.0))))
    writer.event("dead_experts", 40, layer=1, experts=[3], message="expert 3 of layer 1 had no token in 100 steps")
    new_run("dense", 10, plan=plan_bytes)
    page = new_page()
    page.goto(f"{base}#/run/experts")
    for heading in ("Experts", "Fullest expert over the mean", "Entropy of the router", "Balance loss"):
        playwright_api.expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    expect_text(page, ".live-events", "expert 3 of layer 1 had no token in 100 steps")
    page.goto(f"{base}#/run/dense")
    expect_text(page, ".tiles", "step 10 of")
    playwright_api.expect(page.get_by_role("heading", name="Experts", exact=True)).to_be_hidden()


def test_what_is_not_done_or_not_the_runs_own_is_reported(base, new_page, new_run, plan_bytes):
    writer = new_run("few", 12, plan=plan_bytes)
    writer.event("evaluation", 6, loss=1.0, seconds=3.0)
    writer.finish("finished")
    swapped = new_run("swapped", 12, plan=plan_bytes)
    (swapped.folder / "plan.json").write_bytes(plan_bytes + b"\n")
    unreadable = new_run("unreadable", 12, plan=plan_bytes)
    unreadable.finish("finished")
    (unreadable.folder / "steps.jsonl").write_text("no json\n" * 12)
    page = new_page()
    page.goto(base)
    expect_text(page, "tr:has-text('few')", "step 12 of")
    expect_text(page, "tr:has-text('swapped')", "plan.json is not the run's own plan")
    expect_text(page, "tr:has-text('unreadable')", "no step can be read: steps.jsonl line 1")
    page.goto(f"{base}#/run/few")
    expect_text(page, ".tiles", "step 12 of")
    expect_text(page, "main", "mean of the 10 steady steps among all 12.")
    page.goto(f"{base}#/run/swapped")
    expect_text(page, ".live-notices", "What was predicted is not shown: plan.json is not the run's own plan")
    page.goto(f"{base}#/run/unreadable")
    expect_text(page, ".live-notices", "This run cannot be shown: no step can be read")
    assert not page.locator("main").is_visible()


def test_runs_are_compared(base, new_page, new_run, plan_bytes):
    for number in range(11):
        new_run(f"run-{number:02}", 40 + number, plan=plan_bytes).finish("finished")
    page = new_page()
    page.goto(base)
    expect_text(page, "tbody", "run-10")
    boxes = page.get_by_role("checkbox")
    for at in range(11):
        boxes.nth(at).click()
    assert sum(boxes.nth(at).is_checked() for at in range(11)) == 10
    expect_text(page, "main", "Ten runs can be compared at once")
    page.get_by_role("link", name="Compare 10 runs").click()
    expect_text(page, "h1", "10 runs compared")
    playwright_api.expect(page.locator(".live-compared tbody tr")).to_have_count(10)
    assert page.locator("canvas").count() == 2
    page.get_by_text("Samples", exact=True).click()
    assert page.get_by_role("radio", name="Samples").is_checked()
    playwright_api.expect(page.locator(".live-compared tbody tr")).to_have_count(10)


def test_different_models_and_damage_are_reported_when_compared(base, new_page, new_run, plan_bytes, complaints):
    other = plan_bytes.replace(b'"name": "llama-3.1-405b"', b'"name": "another-model"')
    new_run("one", 9, plan=plan_bytes)
    new_run("two", 9, plan=other)
    (new_run("three", 9).folder / "run.json").write_text('{"format": 9}')
    page = new_page()
    page.goto(f"{base}#/compare/one/two/three/nobody")
    expect_text(page, ".live-notices", "different models (llama-3.1-405b, another-model)")
    expect_text(page, ".live-notices >> text=three", "three cannot be shown")
    expect_text(page, ".live-notices >> text=nobody", "nobody cannot be shown")
    complaints[:] = [text for text in complaints if "404" not in text]


def test_damaged_and_newer_runs_are_shown_as_such(base, new_page, new_run, complaints):
    (new_run("newer", 3).folder / "run.json").write_text('{"format": 2}')
    (new_run("lost", 3).folder / "run.json").write_text("{")
    torn = new_run("torn", 3)
    with (torn.folder / "steps.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    page = new_page()
    page.goto(base)
    expect_text(page, "tr:has-text('newer')", "the run's format is 2; this meshwright reads up to 1")
    expect_text(page, "tr:has-text('lost')", "cannot read the run's header")
    expect_text(page, "tr:has-text('torn')", "1 damaged line")
    page.get_by_role("link", name="newer").click()
    expect_text(page, ".live-notices", "update meshwright")
    page.goto(f"{base}#/run/torn")
    expect_text(page, ".live-notices", "1 line of this run cannot be read")
    page.get_by_text("Which lines").click()
    expect_text(page, ".live-notices", "steps.jsonl line 4")
    page.goto(f"{base}#/run/nobody")
    expect_text(page, "header", "no run is called 'nobody'")
    complaints[:] = [text for text in complaints if "404" not in text]  # the browser's own line for the last one


def test_names_and_log_lines_are_shown_and_not_run(base, new_page, new_run):
    script, image = "<script>alert(1)<", "<img src=x onerror=alert(2)>"
    for name in (script, image):
        writer = new_run(name, 12, machine=image)
        writer.event(image, 3, message=image)
        writer.event("evaluation", 5, **{image: image})
    page = new_page()
    page.goto(base)
    expect_text(page, "tbody", script)
    for name in (script, image):
        page.get_by_role("link", name=name).click()
        expect_text(page, "h1", name)
        expect_text(page, ".live-events", image)
        page.go_back()
    assert page.locator("img").count() == 0
    page.goto(f"{base}#/compare/{'/'.join(map(quoted, (script, image)))}")
    expect_text(page, "table", image)


def quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def test_an_empty_folder_says_how_to_start(base, new_page, new_run):
    page = new_page()
    page.goto(base)
    expect_text(page, ".live-empty", "meshwright train")
    new_run("first", 2)
    expect_text(page, "tbody", "first")


def test_a_stretch_of_a_long_run_can_be_seen_finer(base, new_page, new_run):
    new_run("long", 5000).finish("finished")
    page = new_page()
    page.goto(f"{base}#/run/long")
    expect_text(page, "main", "Each point shows 4 steps")
    area = page.locator(".u-over").first.bounding_box()
    page.mouse.move(area["x"] + 50, area["y"] + 50)
    page.mouse.down()
    page.mouse.move(area["x"] + 120, area["y"] + 50, steps=5)
    page.mouse.up()
    button = page.get_by_role("button", name="Show the whole run")
    playwright_api.expect(button).to_be_visible()
    playwright_api.expect(page.get_by_text("Each point shows")).to_have_count(0)
    button.click()
    expect_text(page, "main", "Each point shows 4 steps")


def test_the_keyboard_is_enough(base, new_page, new_run, plan_bytes):
    new_run("first", 20, plan=plan_bytes)
    page = new_page()
    page.goto(base)
    expect_text(page, "tbody", "first")
    page.get_by_role("link", name="first").focus()
    page.keyboard.press("Enter")
    expect_text(page, "main", "256 ranks in 4 racks")
    page.get_by_role("application").focus()
    expect_text(page, ".rank-caption", "Rank 0: rack 0, tray 0, GPU 0")
    page.keyboard.press("ArrowRight")
    expect_text(page, ".rank-caption", "Rank 1: rack 0, tray 0, GPU 1")
    page.keyboard.press("End")
    expect_text(page, ".rank-caption", "Rank 255: rack 3, tray 15, GPU 3")
    page.get_by_role("radio", name="Health").focus()
    page.keyboard.press("ArrowRight")
    expect_text(page, "main", "pp 7")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(base, new_page, new_run, plan_bytes, width, scheme, tmp_path):
    new_run("a-run-with-a-rather-long-name-as-people-give-them-after-a-while", 50, plan=plan_bytes)
    new_run("second", 50, plan=plan_bytes)
    page = new_page(width, scheme)
    for address, seen in (
        ("#/", "second"),
        ("#/run/second", "256 ranks"),
        ("#/compare/second/a-run-with-a-rather-long-name-as-people-give-them-after-a-while", "fastest"),
    ):
        page.goto(f"{base}{address}")
        expect_text(page, "#content", seen)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(20, 23, 28)" if scheme == "dark" else "rgb(255, 255, 255)")


def test_a_link_lets_a_browser_in_and_leaves_the_address(shelf, served, new_page, new_run, complaints):
    new_run("first", 2)
    door = Door(token="a-token-of-thirty-two-characters", on_entry=lambda ticket: None)
    base = served(guarded(shelf, door))
    ticket = door.ticket
    page = new_page()
    assert page.goto(base).status == 401
    page.goto(f"{base}enter/{ticket}")
    expect_text(page, "tbody", "first")
    assert page.url.rstrip("#/") == base.rstrip("/")
    assert page.evaluate("document.cookie") == ""
    complaints[:] = [text for text in complaints if "401" not in text and "404" not in text]  # the first page, and its missing icon


def test_a_server_that_goes_away_is_reported_and_found_again(new_page, shelf, new_run, served, complaints):
    new_run("first", 2)
    app = guarded(shelf, Door())
    is_down = threading.Event()

    async def sometimes(scope: Any, receive: Any, send: Any) -> None:
        if is_down.is_set() and scope["type"] == "http":
            raise ConnectionError("gone")
        await app(scope, receive, send)

    page = new_page()
    page.goto(served(sometimes))
    expect_text(page, "tbody", "first")
    is_down.set()
    expect_text(page, "#lost", "does not answer")
    is_down.clear()
    playwright_api.expect(page.locator("#lost")).to_be_hidden(timeout=PATIENCE_MS)
    complaints[:] = [text for text in complaints if "500" not in text]


@pytest.mark.long
def test_a_real_training_is_seen_as_it_goes(base, new_page, runs):
    command = [
        sys.executable,
        "-m",
        "meshwright",
        "train",
        "--layout",
        "dp=1",
        "--steps",
        "40",
        "--runs",
        str(runs),
        "--name",
        "real",
        "--no-save",
    ]
    page = new_page()
    page.goto(base)
    expect_text(page, ".live-empty", "No run yet")
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as training:
        page.set_default_timeout(120_000)
        page.get_by_role("link", name="real").click(timeout=120_000)
        playwright_api.expect(page.locator(".chips").first).to_contain_text("running", timeout=60_000)
        seen = set()
        while training.poll() is None:
            seen.add(page.locator(".tiles .remark").first.text_content())
            page.wait_for_timeout(300)
        assert training.wait() == 0, training.stderr.read().decode()
    assert len(seen) >= 4
    playwright_api.expect(page.locator(".chips").first).to_contain_text("finished", timeout=30_000)
