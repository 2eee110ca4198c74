"""Tables and JSON that the commands share."""

import json
import os
import pty
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest

from meshwright.cli.show import plain_value, show, show_json, show_pairs, show_table, show_text
from meshwright.errors import InputError
from meshwright.say.document import Document, Finding, Lines


def test_a_table(capsys):
    show_table("parts [s]", ("part", "time>"), [("compute", "1.2 s"), ("bubble", "12 ms")])
    assert capsys.readouterr().out == "parts [s]\npart      time\ncompute  1.2 s\nbubble   12 ms\n\n"


def test_a_table_too_wide_goes_on_below_with_its_first_column(capsys, monkeypatch):
    monkeypatch.setattr("meshwright.cli.show.PIPED_WIDTH", 30)
    rows = [("0 (first)", "36.3 GiB", "23.2 GiB", "of the loss"), ("7", "1.1 GiB", "0.5 GiB", "later")]
    show_table("memory", ("stage", "weights>", "gradients>", "peak"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["memory", "stage       weights  gradients", "0 (first)  36.3 GiB   23.2 GiB"]
    assert lines[5:7] == ["stage      peak", "0 (first)  of the loss"]


def test_pairs(capsys):
    show_pairs("entry", [("memory", "80 GB"), ("power cap", "[700] W")])
    assert capsys.readouterr().out == "entry\nmemory     80 GB\npower cap  [700] W\n\n"


def test_no_colour_when_piped(capsys):
    show_pairs("entry", [("a", "b")])
    assert "\x1b" not in capsys.readouterr().out


@dataclass
class Thing:
    name: str
    sizes: tuple[float, ...]


def test_json_of_anything(capsys):
    show_json({"thing": Thing("x", (1.0, float("inf"))), 3: np.float64(2.5), "rows": np.array([1, 2]), "none": float("nan")})
    assert json.loads(capsys.readouterr().out) == {"thing": {"name": "x", "sizes": [1.0, None]}, "3": 2.5, "rows": [1, 2], "none": None}


def test_plain_values_keep_their_types():
    assert plain_value([True, 1, "a", None, 1.5]) == [True, 1, "a", None, 1.5]


BAD = "name\x1b]0;title\x07\x9b31m\u202ederas\r\ud800"
SHOWN = r"name\x1b]0;title\x07\x9b31m\u202ederas\x0d\ud800"


def test_what_a_terminal_would_obey_is_spelled_out(capsys):
    show_table(BAD, (BAD, "time>"), [(BAD, "1 s")])
    show_pairs(BAD, [(BAD, BAD)])
    show_text(BAD)
    show_json({"name": BAD})
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\x9b\u202e\r\ud800")
    assert out.count(SHOWN) == 7
    assert json.loads(out[out.index("{") :]) == {"name": BAD}


def test_errors_too():
    error = InputError(f"no {BAD}", where=BAD, fix="line one\nline two\tend")
    assert str(error) == f"no {SHOWN}\n  where: {SHOWN}\n  fix:   line one\nline two\tend"


def on_a_terminal(command, **environment):
    """What a command prints on a terminal of its own."""
    reading, writing = pty.openpty()
    with subprocess.Popen(command, stdout=writing, stderr=writing, stdin=writing, env={**os.environ, **environment}) as process:
        os.close(writing)
        out = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(reading, 65536):
                out += part
    os.close(reading)
    assert process.returncode == 0
    return out.decode()


def test_no_color_leaves_no_escape_code_on_a_terminal():
    command = [sys.executable, "-m", "meshwright", "describe", "h100"]
    assert "\x1b" not in on_a_terminal(command, NO_COLOR="1", TERM="xterm")
    assert "\x1b" in on_a_terminal(command, NO_COLOR="", TERM="xterm")


@pytest.mark.parametrize("closed, code", [(">&-", 0), ("2>&-", 0), (">&- 2>&- <&-", 0), ("| true", 0)])
def test_a_closed_output_is_no_traceback(closed, code):
    command = f"{shlex.quote(sys.executable)} -m meshwright describe h100 --json {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_terminal_shows_every_text(example, texts, capsys):
    show(example(), as_json=False)
    printed = capsys.readouterr().out
    assert all(text in printed for text in texts(example()))
    assert "note: a note, word." in printed and "svg" not in printed


@pytest.mark.parametrize("word", ["<script>alert(1)</script>", "[bold]x[/bold]", "[link=x]", ":smile:", "\\[", "100 %"])
def test_the_terminal_takes_no_word_for_markup(word, example, texts, capsys):
    show(example(word), as_json=False)
    printed = capsys.readouterr().out
    assert all(text in printed for text in texts(example(word)))
    assert "\x1b" not in printed


def test_lines_are_not_folded(capsys):
    long = "x" * 1000
    show(Document(kind="example", title="", blocks=(Lines("whole", (long,)),)), as_json=False)
    assert long in capsys.readouterr().out.splitlines()


def test_a_document_is_printed_as_the_json_it_gives(example, capsys):
    show(example("<b>\u202e"), as_json=True)
    assert json.loads(capsys.readouterr().out) == example("<b>\u202e").to_json()


def test_a_judged_statement(capsys):
    findings = (Finding("impossible", "", "too <dear>"), Finding("impossible", "price", "24 times the list", ("$1 / 2 h", "24 x")))
    show(Document(kind="claims", title="one claim", blocks=findings), as_json=False)
    assert capsys.readouterr().out == ("impossible: too <dear>\n\n  impossible  price: 24 times the list\n      $1 / 2 h\n      24 x\n\n")
