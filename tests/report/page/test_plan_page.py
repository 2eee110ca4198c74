"""The page stands alone, says what the plan says, escapes what users wrote, and fits wide and narrow windows."""

from __future__ import annotations

import html
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pages import CHROMIUM, FLAGS, Elements, words

from meshwright.describe.source import Source
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.plan.explain import explain
from meshwright.plan.plan import Plan, forecast_of, plan_of
from meshwright.predict.forecast import Forecast
from meshwright.predict.software import software
from meshwright.report.page.curves import ParetoPoint, ScalingPoint
from meshwright.report.page.plan_page import plan_page, write_plan_page
from meshwright.units import energy, gib, seconds, usd

LARGEST_BYTES = 1_500_000
FETCHING = ("src", "href", "srcset", "data", "action", "poster", "xlink:href")
EVIL = '<script>alert("1")</script>&\'"'
SCALING = [
    ScalingPoint(num_accelerators=n, step_s=s, low_s=0.97 * s, high_s=1.04 * s, efficiency=e, kind=kind, note="tp=4")
    for n, s, e, kind in ((4096, 1.23, 1.0, "weak"), (8192, 1.25, 0.98, "weak"), (4096, 2.2, 1.0, "strong"), (8192, 1.25, 0.88, "strong"))
]
PARETO = [ParetoPoint(num_accelerators=n, time_to_train_s=s, cost_usd=c) for n, s, c in ((8192, 416.0, 25_600.0), (4096, 790.0, 22_000.0))]


def test_the_page_is_one_small_well_formed_file_that_fetches_nothing(forecast: Forecast) -> None:
    page = plan_page(forecast, scaling=SCALING, pareto=PARETO)
    assert len(page.encode()) < LARGEST_BYTES
    elements = Elements(page).found
    assert not {tag for tag, _ in elements} & {"script", "link", "iframe", "img", "object", "embed", "image", "use"}
    assert not [key for _, attributes in elements for key in attributes if key in FETCHING or key.startswith("on")]
    assert "url(" not in page and "@import" not in page
    assert "nan" not in re.findall(r"[a-z]+", " ".join(v or "" for _, attributes in elements for v in attributes.values()))


def test_the_page_says_what_the_forecast_says(record_forecast: Forecast) -> None:
    page, outcome = words(plan_page(record_forecast)), record_forecast.outcome
    assert outcome.offer and outcome.time_to_train_s
    numbers = (record_forecast.step_s, *record_forecast.interval, outcome.time_to_train_s.value)
    spent = (seconds(s) for s in (*numbers, *record_forecast.parts.values()) if s > 0)
    for text in (*spent, usd(outcome.offer.cost_usd.value), gib(record_forecast.peak_memory_bytes)):
        assert text in page
    for text in ("tp 4", "cp 2", "pp 8", "dp 128", "A replica is a rack", "8 spares per rack", "127 racks look the same"):
        assert text in page


def test_the_page_of_a_long_run_shows_its_goodput_and_whose_failures_it_counts() -> None:
    job = Job("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", gpus=512)
    forecast = job.forecast("tp=8,pp=8,mbs=1")
    assert forecast.goodput and forecast.time_to_train and forecast.cost and forecast.energy
    page = words(plan_page(forecast))
    shown = (
        seconds(forecast.time_to_train.value),
        usd(forecast.cost.value),
        energy(forecast.energy.value),
        f"{100 * forecast.goodput:.1f} %",
    )
    for text in (*shown, "Goodput", "failures as llama3", "419 unexpected interruptions", "arXiv 2407.21783"):
        assert text in page
    assert "Goodput" not in words(plan_page(job.forecast("tp=8,pp=8,mbs=1", ideal=True)))


@pytest.mark.parametrize("name", ["answer", "mapping", "step", "timeline", "memory", "assumptions"])
def test_every_section_is_there(forecast: Forecast, name: str) -> None:
    assert f'id="{name}"' in plan_page(forecast)


@pytest.mark.parametrize(("ep", "tiers"), [(64, ["rack"]), (128, ["rack", "fabric"])])
def test_expert_traffic_is_reported_wherever_traffic_is(experts: Plan, ep: int, tiers: list[str]) -> None:
    forecast = Job(experts.model, experts.cluster, experts.workload, "v5.1").forecast(replace(experts.layout, ep=ep))  # before overlap
    explanation = explain(forecast)
    (axis,) = (one for one in explanation.axes if one.axis == "ep")
    assert list(axis.tiers) == tiers == list(forecast.placement["ep"]) and axis.num_bytes > 0
    page = plan_page(forecast)
    table = page[page.index('aria-label="Network tiers"') :]
    crossed = [row for row in re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")]) if ">ep </b>" in row]
    assert [re.search(r"<td>(\w+)</td>", row).group(1) for row in crossed] == tiers  # type: ignore[union-attr]
    assert f"exposed ep {seconds(forecast.parts['exposed_ep'])} per step ({' and '.join(tiers)})" in page
    assert f"Their traffic goes through the {' and the '.join(tiers)}." in page
    leaves = "fabric" in tiers
    text = " ".join(explanation.reasons)
    assert ("on their way to them cross the fabric" in text) == leaves
    assert ("stay within a rack" in text) == (not leaves)


def test_data_parallelism_is_not_alone_on_the_fabric_beside_experts(experts: Plan) -> None:
    """A replica is a rack, and experts lie over the replicas of several."""
    job = Job(experts.model, experts.cluster, replace(experts.workload, global_batch=512))
    layout = replace(
        experts.layout, tp=1, cp=4, pp=16, dp=8, ep=32, vp=1, first_stage_layers=2, last_stage_layers=3, order=("tp", "cp", "pp", "dp")
    )
    with_experts, without = (" ".join(explain(job.forecast(replace(layout, ep=ep), ignore_memory=True)).reasons) for ep in (32, 1))
    assert "only data and expert parallelism cross the fabric" in with_experts
    assert "only data parallelism crosses" not in with_experts
    assert "only data parallelism crosses the fabric" in without


def test_every_picture_says_in_words_what_it_shows(forecast: Forecast) -> None:
    drawings = [attributes for tag, attributes in Elements(plan_page(forecast, scaling=SCALING, pareto=PARETO)).found if tag == "svg"]
    assert len(drawings) > 5
    assert all(d.get("aria-hidden") == "true" or (d.get("role") == "img" and d.get("aria-label")) for d in drawings)


def test_scaling_pareto_and_runners_up_come_when_given(record_forecast: Forecast) -> None:
    assert "Scaling" not in plan_page(record_forecast).split("<main>")[1]
    page = words(plan_page(record_forecast, scaling=SCALING, pareto=PARETO, runners_up=[replace(record_forecast, step_s=1.5)]))
    for text in ("strong scaling", "88.0", "Time against cost", "$22,000", "The runners-up", "1.5 s", "+19.5"):
        assert text in page


def test_sources_of_all_descriptions_are_named(forecast: Forecast) -> None:
    page, job = words(plan_page(forecast)), forecast.job
    for described in (job.model, job.cluster, job.cluster.accelerator, job.workload):
        for source in described.sources.values():
            assert " ".join(str(source).split()) in page


def test_what_users_wrote_is_escaped(record_forecast: Forecast) -> None:
    described = record_forecast.job
    tiers = tuple(replace(tier, name=f"{EVIL}{tier.name}", link=EVIL) for tier in described.cluster.tiers)
    chip = replace(described.cluster.accelerator, name=EVIL)
    cluster = replace(described.cluster, name=EVIL, tiers=tiers, accelerator=chip, sources={EVIL: Source(EVIL, EVIL)})
    model, workload = replace(described.model, name=EVIL), replace(described.workload, name=EVIL, model=EVIL, target=EVIL)
    forecast = Job(model, cluster, workload).forecast(record_forecast.layout)
    point = replace(SCALING[0], note=EVIL)
    page = plan_page(forecast, scaling=[point], pareto=[replace(PARETO[0], note=EVIL)], runners_up=[forecast])
    assert "<script" not in page
    assert html.escape(EVIL) in page
    assert not [tag for tag, _ in Elements(page).found if tag == "script"]


def test_a_plan_of_other_constants_is_priced_again(record: Plan) -> None:
    stale = plan_page(forecast_of(replace(record, step_s=2.0, parts_s={"compute": 2.0})))
    assert stale == plan_page(forecast_of(record)) and seconds(record.step_s) in words(stale)


def test_a_plan_under_a_profile_needs_the_profile(record: Plan) -> None:
    stack = replace(software(), name="ours", log_factor=0.1)
    plan = plan_of(Job(record.model, record.cluster, record.workload, stack).forecast(record.layout))
    assert seconds(plan.step_s) in words(plan_page(forecast_of(plan, stack)))
    with pytest.raises(InputError, match="the plan was made with the software profile 'ours'"):
        forecast_of(plan)


def test_a_folder_that_does_not_exist_is_named(record_forecast: Forecast, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write plan\.html: No such file"):
        write_plan_page(record_forecast, tmp_path / "none" / "plan.html")


def test_the_same_plan_gives_the_same_bytes(record_forecast: Forecast) -> None:
    assert plan_page(record_forecast) == plan_page(record_forecast)


# A window of its own for each width: the page inside sees a viewport that wide, narrower than a headless browser's can be.
WRAPPER = """<!doctype html><body style="margin:0">
<iframe width="1280" height="800" style="border:0" srcdoc="{page}"></iframe>
<iframe width="390" height="800" style="border:0" srcdoc="{page}"></iframe>
<script>
for (const frame of document.querySelectorAll("iframe")) frame.addEventListener("load", () => {{
  const page = frame.contentDocument, root = page.documentElement, text = document.createElement("p");
  const outside = e => !e.closest(".scroll, svg") && e.getBoundingClientRect().right > root.clientWidth + 1;
  const num_outside = [...page.querySelectorAll("body *")].filter(outside).length;
  const sizes = [...page.querySelectorAll("svg.chart text:not(.tight)")].map(e => Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b)
    * parseFloat(frame.contentWindow.getComputedStyle(e).fontSize));
  const letters = Math.round(10 * Math.min(99, ...sizes));
  text.textContent = ["widths", frame.contentWindow.innerWidth, root.scrollWidth, num_outside, root.scrollHeight, letters].join(" ");
  document.body.append(text);
}});
</script>"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("chromium")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def browse(profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM
    return subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments], capture_output=True, text=True, timeout=120, check=True
    )


def widths(page: str, profile: Path, folder: Path) -> tuple[dict[int, tuple[int, int, int, int]], str]:
    """By width of the window: the page's own width, elements that stick out, its height, the smallest letters of its charts in tenths of
    a pixel; and what the browser logged."""
    (folder / "wrapper.html").write_text(WRAPPER.format(page=html.escape(page)), encoding="utf-8")
    text = browse(profile, "--window-size=1700,1700", "--dump-dom", (folder / "wrapper.html").as_uri())
    found = [tuple(map(int, match)) for match in re.findall(r"<p>widths (\d+) (\d+) (\d+) (\d+) (\d+)</p>", text.stdout)]
    return {window: (width, outside, height, letters) for window, width, outside, height, letters in found}, text.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_fits_wide_and_narrow_windows_without_scrolling_sideways(forecast: Forecast, profile: Path, tmp_path: Path) -> None:
    measured, logged = widths(plan_page(forecast, scaling=SCALING, pareto=PARETO, runners_up=[forecast]), profile, tmp_path)
    assert set(measured) == {1280, 390}
    for window, (width, num_outside, height, letters) in measured.items():
        assert width <= window
        assert num_outside == 0
        assert height > 1000
        assert letters >= 110  # tenths of a pixel
    assert "CONSOLE" not in logged


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_page_that_is_too_wide_would_be_noticed(profile: Path, tmp_path: Path) -> None:
    measured, logged = widths('<div style="width:600px">wide</div><script>console.error("logged")</script>', profile, tmp_path)
    assert measured[390][:2] == (608, 1)
    assert "CONSOLE" in logged


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_draws_the_page(record_forecast: Forecast, profile: Path, tmp_path: Path) -> None:
    write_plan_page(record_forecast, tmp_path / "plan.html")
    picture = tmp_path / "plan.png"
    text = browse(profile, "--window-size=1280,2400", f"--screenshot={picture}", (tmp_path / "plan.html").as_uri())
    header = picture.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", header[16:24]) == (1280, 2400)
    assert picture.stat().st_size > 50_000  # an empty page is a few kilobytes
    assert "CONSOLE" not in text.stderr
