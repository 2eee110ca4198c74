"""The slide is one SVG of 16:9 that any program can show."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.predict.forecast import Forecast
from meshwright.report.page.plan_page import write_plan_page
from meshwright.report.page.plot import write_plot
from meshwright.units import seconds


def test_the_slide_is_well_formed_and_says_what_the_plan_says(forecast: Forecast, tmp_path: Path) -> None:
    write_plot(forecast, tmp_path / "plan.svg")
    root = ET.parse(tmp_path / "plan.svg").getroot()
    words = " ".join("".join(element.itertext()) for element in root)
    assert root.get("viewBox") == "0 0 1600 900"
    for text in (
        forecast.job.name,
        seconds(forecast.step_s),
        f"dp {forecast.layout.dp}",
        *(seconds(s) for s in forecast.parts.values() if s > 0),
    ):
        assert text in words


def test_the_slide_needs_no_style_script_or_network(record_forecast: Forecast, tmp_path: Path) -> None:
    write_plot(record_forecast, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert "var(" not in text and "<style" not in text and "<script" not in text and "href" not in text
    assert text.count("http") == 1  # the name of the SVG vocabulary


def test_nothing_is_drawn_outside_the_slide(forecast: Forecast, tmp_path: Path) -> None:
    write_plot(forecast, tmp_path / "plan.svg")
    for element in ET.parse(tmp_path / "plan.svg").getroot().iter("{http://www.w3.org/2000/svg}rect"):
        x, y, width, height = (float(element.get(key, "0")) for key in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + width <= 1600 and y + height <= 900


def test_names_are_escaped(record_forecast: Forecast, tmp_path: Path) -> None:
    job = record_forecast.job
    named = replace(job, model=replace(job.model, name="<script>&"))
    write_plot(replace(record_forecast, job=named), tmp_path / "plan.svg")
    root = ET.parse(tmp_path / "plan.svg").getroot()
    assert "<script>&" in "".join(root.itertext())


@pytest.mark.parametrize(
    "name, text", [("plan.png", "written as SVG, not as .png"), ("none/plan.svg", "cannot write plan.svg: No such file")]
)
def test_other_formats_and_missing_folders_are_refused(record_forecast: Forecast, tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        write_plot(record_forecast, tmp_path / name)


def test_half_a_character_in_a_name_is_no_traceback(record_forecast: Forecast, tmp_path: Path) -> None:
    job = replace(record_forecast.job, model=replace(record_forecast.job.model, name="half \ud800"))
    broken = replace(record_forecast, job=job)
    write_plot(broken, tmp_path / "plan.svg")
    write_plan_page(broken, tmp_path / "plan.html")
    assert "half ?" in (tmp_path / "plan.svg").read_text() and "half ?" in (tmp_path / "plan.html").read_text()
