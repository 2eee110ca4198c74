"""Pages show what commands print: quick commands are run again, and every shown line of their output is among the lines that they print.

`python tests/test_shown.py` writes the present output into the pages. A line that no longer exists is left as it is, and named.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from meshwright.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/first-session.md", "docs/tutorial.md", "docs/planner.md", "docs/audit.md")
FENCE = re.compile(r"^```(console|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUICK = ("describe", "predict", "plan", "sweep", "simulate", "validate", "audit")  # their output depends on the repository alone
NOT_RUN = {"eos.json"}  # files of the reader, made from public logs that are not in the repository
LEFT_OUT = "..."
PRICED = re.compile(r"^[\d,]+ layouts priced")  # the line ends with how long the search took


@dataclass(frozen=True)
class Shown:
    """A command of a page, and the lines of its output that the page shows."""

    words: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def is_quick(self) -> bool:
        return self.words[0] in QUICK and bool(self.lines) and not NOT_RUN & set(self.words)


def shown_in(block: str) -> Iterator[Shown]:
    """The commands of a console block, each with the output below it."""
    for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        if command.startswith("meshwright "):
            yield Shown(tuple(shlex.split(command, comments=True)[1:]), tuple(line for line in lines if line not in ("", LEFT_OUT)))


def steps_of(page: str) -> Iterator[Shown | tuple[str, str]]:
    """What a reader of a page does from the top: commands to run, and files (name, content) to write."""
    for language, block in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        name = re.match(r"# ([\w-]+\.toml)\n", block)
        if language == "toml" and name:
            yield name[1], block
        elif language == "console":
            yield from shown_in(block)


def printed_by(words: tuple[str, ...]) -> list[str]:
    """The lines that a command prints, messages included."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        main(list(words))
    return text.getvalue().splitlines()


def outputs_of(page: str) -> Iterator[tuple[Shown, list[str]]]:
    """The quick commands of a page with what they print, run in order in the present folder."""
    for step in steps_of(page):
        if isinstance(step, tuple):
            Path(step[0]).write_text(step[1], encoding="utf-8")
        elif step.is_quick or (step.words[0] == "plan" and "--out" in step.words):
            yield step, printed_by(step.words)


def is_shown(line: str, printed: list[str]) -> bool:
    """Whether a line of a page is printed, as it is or, where the page cuts it, up to `...`."""
    if PRICED.match(line) or line.endswith(LEFT_OUT):
        return any(one.startswith(line.removesuffix(LEFT_OUT).rstrip()) for one in printed)
    return line.rstrip() in {one.rstrip() for one in printed}


@pytest.mark.parametrize("page", PAGES)
def test_pages_show_what_commands_print(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    stale = {
        f"meshwright {shlex.join(shown.words)}": [line for line in shown.lines if not is_shown(line, printed)]
        for shown, printed in outputs_of(page)
    }
    assert {command: lines for command, lines in stale.items() if lines} == {}, "python tests/test_shown.py writes them again"


def test_a_number_of_another_day_is_noticed() -> None:
    (shown,) = shown_in("$ meshwright describe h100\nmemory  81 GB\n...\n")
    assert [line for line in shown.lines if not is_shown(line, ["memory  80 GB", "peak    989 TFLOP/s"])] == ["memory  81 GB"]


def label_of(line: str) -> str:
    """What names a line: its text up to the first wide gap, or up to its first figure."""
    return re.split(r"\s{2,}|(?<=\s)[\d$]", line.strip())[0]


def rewrite(page: str) -> None:
    """Put the present output of a page's quick commands into it, line by line."""
    path = ROOT / page
    text, at = path.read_text(encoding="utf-8"), 0
    for shown, printed in outputs_of(page):
        at = text.index(f"$ meshwright {' '.join(shown.words[:2])}", at) + 1
        rest = list(printed)
        for line in shown.lines:
            found = line if is_shown(line, printed) else next((one for one in rest if label_of(one) == label_of(line)), None)
            if found is None:
                print(f"{page}: meshwright {shlex.join(shown.words)} no longer prints: {line}")
            else:
                rest = rest[rest.index(found) + 1 :] if found in rest else rest
                text = text[:at] + text[at:].replace(f"\n{line}\n", f"\n{found.rstrip()}\n", 1)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ |= {"COLUMNS": "160"}
    for named in sys.argv[1:] or PAGES:
        with TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["XDG_CACHE_HOME"] = folder
            rewrite(named)
