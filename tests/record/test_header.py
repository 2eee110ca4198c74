"""A name stays inside the runs folder; a header that cannot be used is an error that says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.record.header import FORMAT, RunHeader, check_name, read_header
from meshwright.record.run import read_run
from meshwright.record.writer import RunWriter


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "a\nb", "a\x00b", "a\x1b[2J", "a\u202eb", " a", "a ", "x" * 201]
)
def test_a_name_that_could_leave_the_runs_folder_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="the run name"):
        check_name(name)


@pytest.mark.parametrize("name", ["first", "tp2-pp2.dp2", "<script>alert(1)</script>".replace("/", ""), "läuft 3", "a..b"])
def test_a_name_may_be_anything_else(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"format": FORMAT + 1}, "this meshwright reads up to"),
        ({"format": "1"}, "not a whole number"),
        ({"name": "../../etc"}, "the run's header is damaged: the run name"),
        ({"status": "well"}, "a run's status cannot be 'well'"),
        ({"seed": None}, "seed is missing"),
        ({"created": "yesterday"}, "Invalid isoformat"),
        ({"created": "2026-01-01"}, "no time zone"),
    ],
)
def test_a_header_that_cannot_be_used_is_an_error(writer: RunWriter, changes: dict[str, object], complaint: str) -> None:
    path = writer.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match=complaint):
        read_run(writer.folder)


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        ({"num_ranks": 2**64}, "num_ranks is 18446744073709551616"),
        ({"machine": "a\x1bb"}, "characters that cannot be shown"),
        ({"conditions": ("a\nb",)}, "characters that cannot be shown"),
        ({"created": "2026-01-01"}, "no time zone"),
        ({"target": "low"}, "target is 'low'"),
    ],
)
def test_a_header_that_could_not_be_read_back_is_not_made(changes: dict[str, object], complaint: str) -> None:
    fields: dict[str, object] = {"name": "a", "kind": "trained", "seed": 2**63 - 1, "num_ranks": 1, "machine": "here"}
    RunHeader(**fields)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"a run's header cannot hold this: .*{complaint}"):
        RunHeader(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_folder_without_a_header_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        read_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a run folder"):
        read_run(tmp_path / "file")


@pytest.mark.parametrize("target", ["NaN", "Infinity", -1.0])
def test_a_target_that_no_loss_can_reach_is_damage(writer: RunWriter, target: object) -> None:
    header = json.loads((writer.folder / "run.json").read_text())
    (writer.folder / "run.json").write_text(json.dumps({**header, "target": target}))
    with pytest.raises(InputError, match="the run's header is damaged: target is"):
        read_header(writer.folder)
