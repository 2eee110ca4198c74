"""Wrong input under torchrun is reported once, and later attempts end at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import cli
from meshwright.cli.main import main
from meshwright.cli.retries import first_to_refuse, is_retried, refused_before


def worker(logs: Path, rank: int, attempt: int, world: int = 2) -> dict[str, str]:
    """The variables that torchrun gives a rank, with the folder that it makes for it."""
    folder = logs / f"attempt_{attempt}" / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    given = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    elastic = {"TORCHELASTIC_RESTART_COUNT": str(attempt), "TORCHELASTIC_MAX_RESTARTS": "2"}
    return given | elastic | {"TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}


def test_one_rank_of_a_machine_reports_and_torchrun_knows_it_of_all(tmp_path: Path) -> None:
    assert [first_to_refuse("no such plan", worker(tmp_path, rank, 0)) for rank in (1, 0)] == [True, False]
    for rank in (0, 1):
        told = json.loads((tmp_path / "attempt_0" / str(rank) / "error.json").read_text())
        assert told["message"]["message"] == "no such plan" and told["message"]["extraInfo"]["timestamp"].isdigit()


def test_later_attempts_end_at_once_and_the_last_one_repeats_the_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first_to_refuse("no such plan", worker(tmp_path, 0, 0))
    assert not refused_before(worker(tmp_path, 1, 0))  # a rank of the same attempt finds out for itself
    assert refused_before(worker(tmp_path, 0, 1)) and refused_before(worker(tmp_path, 1, 2))
    assert capsys.readouterr().err == ""
    assert refused_before(worker(tmp_path, 0, 2))
    assert capsys.readouterr().err == "meshwright: no such plan\n  (refused in attempt 1; the others were not tried)\n"


def test_another_number_of_ranks_is_tried(tmp_path: Path) -> None:
    first_to_refuse("the plan needs 4 ranks", worker(tmp_path, 0, 0))
    assert not refused_before(worker(tmp_path, 0, 1, world=4))


@pytest.mark.parametrize("content", ["", "[]", '{"attempt": "one", "message": ""}', "\x00"])
def test_a_damaged_note_is_none(tmp_path: Path, content: str) -> None:
    first_to_refuse("no such plan", worker(tmp_path, 0, 0))
    next(tmp_path.glob("meshwright-refused-*")).write_text(content)
    assert not refused_before(worker(tmp_path, 0, 1))


def test_without_torchrun_everyone_reports() -> None:
    for given in ({}, {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_ERROR_FILE": ""}):
        assert not is_retried(given) and not refused_before(given) and first_to_refuse("no such plan", given)


def test_a_folder_that_cannot_be_written_hides_no_message(tmp_path: Path) -> None:
    given = worker(tmp_path, 0, 0) | {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "gone" / "attempt_0" / "0" / "error.json")}
    assert first_to_refuse("no such plan", given) and first_to_refuse("no such plan", given)


@pytest.mark.parametrize("arguments", [["train", "--steps", "0"], ["train", "nowhere.json", "--name", "a"]])
def test_the_command_notes_what_it_refuses(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in worker(tmp_path, 0, 0).items():
        monkeypatch.setenv(name, value)
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("meshwright: ")
    assert main(arguments) == 2 and capsys.readouterr().err == ""  # as the second rank of the machine
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert cli.run() == 2
    assert capsys.readouterr().err == message + "  (refused in attempt 1; the others were not tried)\n"


def test_a_refused_attempt_loads_no_commands(tmp_path: Path) -> None:
    first_to_refuse("no such plan", worker(tmp_path, 1, 0))
    code = "import sys; from meshwright.cli import run; run(); sys.exit('typer' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, **worker(tmp_path, 1, 1)}).returncode == 0
