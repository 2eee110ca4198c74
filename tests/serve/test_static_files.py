"""The page's own files: each under its address with its type, all that the page names is there, and nothing is fetched elsewhere."""

from __future__ import annotations

import re

import pytest

from meshwright.report.page.colours import PALETTE
from meshwright.serve.static_files import FOLDER, TYPES, static_files

FILES = static_files()


def test_the_page_is_at_the_root_and_every_other_file_under_static():
    assert FILES["/"][0].startswith(b"<!doctype html>") and "/static/index.html" not in FILES
    on_disk = {f"/static/{path.relative_to(FOLDER).as_posix()}" for path in FOLDER.rglob("*") if path.suffix in TYPES}
    assert set(FILES) == (on_disk - {"/static/index.html"}) | {"/", "/static/report.css"}
    assert all(not address.endswith("LICENSE") for address in FILES)


@pytest.mark.parametrize("address", FILES)
def test_every_file_has_content_and_the_type_of_its_ending(address):
    content, media_type = FILES[address]
    ending = ".html" if address == "/" else "." + address.rsplit(".", 1)[1]
    assert content and media_type == TYPES[ending] and (ending == ".svg" or "charset=utf-8" in media_type)
    content.decode("utf-8")


def test_what_the_page_and_its_scripts_name_is_there():
    page = FILES["/"][0].decode()
    named = set(re.findall(r'(?:src|href)="(/[^"]*)"', page))
    for address, (content, _) in FILES.items():
        if address.endswith(".js") and "uplot" not in address:
            found = re.findall(r'(?:from|import) "\./([\w.]+)"', content.decode())
            named |= {f"/static/{name}" for name in found}
    assert len(named) > 8 and named <= set(FILES)


def test_no_file_of_ours_fetches_anything_from_elsewhere():
    for address, (content, _) in FILES.items():
        if "uplot" not in address:
            text = content.decode().replace("http://www.w3.org/", "")
            assert "http://" not in text and "https://" not in text and "@import" not in text, address


def test_the_live_page_has_the_colours_of_the_reports():
    style = FILES["/static/report.css"][0].decode()
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for name, (by_day, by_night) in PALETTE.items():
        assert f"--{name}:{by_day};" in light and f"--{name}:{by_night};" in dark
