"""Tables and JSON that the commands share."""

import json
from dataclasses import dataclass

import numpy as np

from meshwright.cli.show import plain_value, show_json, show_pairs, show_table


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
