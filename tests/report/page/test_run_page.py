"""Pages of runs and profiles stand alone, say what the runs say, escape what users wrote, and are legible on a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pages import CHROMIUM, FLAGS, check_alone, words

from meshwright.plan.plan import Plan
from meshwright.record.entries import PART_NAMES
from meshwright.report.documents import report_document
from meshwright.report.facts import RunFacts, facts_of_runs
from meshwright.report.page.run_page import run_page
from meshwright.say.html import fragment
from meshwright.say.markdown import markdown
from meshwright.units import seconds

EVIL = "<script>alert(1)<_script>"


def test_a_runs_page_says_what_the_run_says(trained: Path) -> None:
    (facts,) = facts_of_runs([trained])
    page = run_page([facts])
    check_alone(page)
    for name in ("answer", "time", "steps", "parts", "exposed", "loss", "memory", "ranks", "events", "money"):
        assert f'id="{name}"' in page
    text = words(page)
    assert facts.plan is not None and facts.noise is not None
    times = (
        facts.summary.median_step_s,
        facts.summary.worst_step_s,
        facts.time.total_s,
        facts.plan.step_s,
        facts.time.seconds_per_sample,
    )
    for expected in (*map(seconds, times), f"{facts.summary.p99_over_p50:.3f}", f"{facts.noise.floor_pct:.2g} %", "5.2500", "18.6 GiB"):
        assert expected in text
    assert "rank 3 is 1.4 times as slow as its stage" in text and "cause <b>network</b>" in text
    assert "modelled" in text and "usa, 2023, lifecycle" in text


def test_a_simulated_run_beside_a_trained_one_is_set_beside_it(trained: Path, simulated: Path) -> None:
    page = run_page(facts_of_runs([trained, simulated]))
    check_alone(page)
    assert "Parts of the step: predicted, simulated, measured" in page and "Simulated: simulated." in page
    assert "runs compared" not in page


def test_names_are_shown_and_not_run(make_run, workstation: Plan) -> None:
    folder = make_run(EVIL, plan=workstation)
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**header, "machine": '"><img src=x onerror=alert(2)>'}))
    page = run_page(facts_of_runs([folder]))
    check_alone(page)
    assert EVIL in words(page) and html.escape(EVIL) in page


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_runs_of_few_steps_can_be_drawn(make_run, count: int) -> None:
    page = run_page(facts_of_runs([make_run(times_s=[0.5] * count)]))
    check_alone(page)
    assert ("too few" in page) == (count < 9)


def test_thousands_of_steps_and_events_stay_small(make_run, workstation: Plan, steps_around) -> None:
    times = steps_around(20_000)
    times[100] = 50.0
    events = [("evaluation", step, 0.5 * step, {"loss": 3.0, "seconds": 0.1}) for step in range(1, 20_000, 5)]
    page = run_page(facts_of_runs([make_run(plan=workstation, times_s=times, events=events)]))
    check_alone(page)
    assert len(page) < 150_000 and "step 101: 50 s" in page


def test_runs_are_compared_and_scaled(make_run, workstation: Plan, steps_around) -> None:
    runs = [make_run(f"run{n}", plan=workstation, batch=16, times_s=steps_around(60, 0.5 + 0.1 * n)) for n in range(3)]
    page = run_page(facts_of_runs(runs))
    check_alone(page)
    assert "3 runs compared" in page and "slower (95 %:" in page
    assert page.count('class="run-name"') == 3 and page.count("<polyline") >= 6


def test_different_models_are_shown_with_what_cannot_be_compared(make_run, workstation: Plan, record: Plan) -> None:
    page = run_page(facts_of_runs([make_run("small", plan=workstation), make_run("large", plan=record)]))
    check_alone(page)
    assert "Different models: llama-3.2-1b (small); llama-3.1-405b (large)." in page
    assert "they are not drawn over each other" in page


def test_more_runs_than_colours_are_drawn_and_folded_away(make_run) -> None:
    page = run_page(facts_of_runs([make_run(f"run{n}") for n in range(12)]))
    check_alone(page)
    assert page.count("<details") == 12 and 'open="open"' not in page


def test_json_holds_the_same(trained: Path, simulated: Path) -> None:
    runs = facts_of_runs([trained, simulated])
    values = report_document(runs).to_json()
    first = values["runs"][0]
    assert first["median_step_s"] == runs[0].summary.median_step_s and first["simulated_beside"] == "simulated"
    assert sum(first["spent_s"].values()) == pytest.approx(first["run_s"])
    assert all("compute" in first[key] for key in ("predicted_parts_s", "simulated_parts_s", "mean_parts_s"))
    assert first["ledger"]["energy_source"] == "modelled" and first["event_counts"]["evaluation"] == 1
    assert values["differences"][0]["base_label"] == "trained"


def test_markdown_is_tables_with_names_escaped(make_run, trained: Path, workstation: Plan) -> None:
    text = markdown(report_document(facts_of_runs([trained, make_run("a|b*c<d>", plan=workstation)])))
    assert "# 2 runs compared" in text and r"a\|b\*c\<d\>" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 15 and all(line.endswith("|") for line in rows)


# A window of its own for each width: the page inside sees a viewport that wide, narrower than a headless browser's can be.
WRAPPER = """<!doctype html><body style="margin:0">
<iframe width="1280" height="800" style="border:0" srcdoc="{page}"></iframe>
<iframe width="390" height="800" style="border:0" srcdoc="{page}"></iframe>
<script>
for (const frame of document.querySelectorAll("iframe")) frame.addEventListener("load", () => {{
  const page = frame.contentDocument, root = page.documentElement, text = document.createElement("p");
  const outside = e => !e.closest(".scroll, svg") && e.getBoundingClientRect().right > root.clientWidth + 1;
  const num_outside = [...page.querySelectorAll("body *")].filter(outside).length;
  const sizes = [...page.querySelectorAll("svg text")].map(e => Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b)
    * parseFloat(frame.contentWindow.getComputedStyle(e).fontSize));
  const letters = Math.round(10 * Math.min(99, ...sizes));
  text.textContent = ["widths", frame.contentWindow.innerWidth, root.scrollWidth, num_outside, root.scrollHeight, letters].join(" ");
  document.body.append(text);
}});
</script>"""


def check_widths(page: str, folder: Path) -> None:
    """The page fits a phone and a desktop, and the letters of its charts are at least 11 pixels high."""
    assert CHROMIUM
    (folder / "wrapper.html").write_text(WRAPPER.format(page=html.escape(page)), encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'chromium'}", "--window-size=1700,1700", "--dump-dom"]
    text = subprocess.run([*command, (folder / "wrapper.html").as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = [tuple(map(int, match)) for match in re.findall(r"<p>widths (\d+) (\d+) (\d+) (\d+) (\d+)</p>", text.stdout)]
    assert {window for window, *_ in found} == {1280, 390}
    for window, width, num_outside, height, letters in found:
        assert width <= window and num_outside == 0 and height > 800 and letters >= 110
    assert "CONSOLE" not in text.stderr
    shutil.rmtree(folder / "chromium", ignore_errors=True)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_pages_fit_a_phone_and_a_desktop(make_run, trained: Path, profile_page: str, record: Plan, steps_around, tmp_path: Path) -> None:
    check_widths(run_page(facts_of_runs([trained])), tmp_path)
    long_name = "a-very-long-name-of-a-run-that-nobody-would-want-to-type-twice-" * 2
    runs: list[RunFacts] = facts_of_runs([trained, make_run(long_name, plan=record, times_s=steps_around(3000), kind="simulated")])
    check_widths(run_page(runs), tmp_path)
    check_widths(profile_page, tmp_path)


def as_markdown(runs: list[RunFacts]) -> str:
    return markdown(report_document(runs))


def as_fragment(runs: list[RunFacts]) -> str:
    return fragment(report_document(runs))


@pytest.mark.parametrize("made", [run_page, as_markdown, as_fragment], ids=["page", "Markdown", "notebook"])
def test_parts_have_the_names_that_a_prediction_prints(made, make_run, workstation: Plan) -> None:
    text = made(facts_of_runs([make_run(plan=workstation)]))
    for part in ("compute", "exposed_tp", "exposed_dp", "bubble", "optimizer", "overhead"):
        assert PART_NAMES[part] in text
    for other in ("pipeline bubble", "exposed_tp", ">host<", "| host |", ">storage<"):
        assert other not in text
