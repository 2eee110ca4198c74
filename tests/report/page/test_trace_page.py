"""The page of a profile: what is hidden and exposed, process by process, and names escaped."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import check_alone, words

from meshwright.report.documents import profile_document
from meshwright.report.profile import profile_of
from meshwright.say.markdown import markdown

EVIL = "<script>alert(1)<_script>"


def test_a_profiles_page_and_its_other_forms(tmp_path: Path, profile_page: str) -> None:
    check_alone(profile_page)
    text = words(profile_page)
    assert "rank 1, GPU 0" in text and EVIL in text and "33.33 %" in text  # 10 of 30 us exposed
    profile = profile_of((tmp_path / "trace.json",))
    document = profile_document(profile)
    assert document.to_json()["processes"][0]["exposed_pct"] == pytest.approx(100 / 3)
    assert "| rank 1, GPU 0 | 30 us | 66.67 % | 33.33 % |" in markdown(document)
