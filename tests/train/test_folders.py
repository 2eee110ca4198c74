"""What a folder must be before a command begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.train.folders import PLAN, check_folder, check_new_folder, check_trained


def test_a_new_run_needs_a_name_that_nobody_has(tmp_path: Path) -> None:
    check_folder(tmp_path / "runs", "first", resume=False)
    assert not (tmp_path / "runs").exists()  # looked at, not made
    (tmp_path / "runs" / "first").mkdir(parents=True)
    check_folder(tmp_path / "runs", "first", resume=False)
    (tmp_path / "runs" / "first" / PLAN).touch()
    with pytest.raises(InputError, match="exists and is not empty"):
        check_folder(tmp_path / "runs", "first", resume=False)
    check_folder(tmp_path / "runs", "first", resume=True)


def test_a_run_to_go_on_with_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run named 'first'"):
        check_folder(tmp_path, "first", resume=True)


def test_a_file_is_no_place_for_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(InputError, match="runs is no folder"):
        check_folder(tmp_path / "runs", "first", resume=False)


def test_a_folder_to_write_must_be_free(tmp_path: Path) -> None:
    check_new_folder(tmp_path / "new")
    check_new_folder(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in (tmp_path, tmp_path / "link"):
        with pytest.raises(InputError, match="there is something already"):
            check_new_folder(taken)


@pytest.mark.parametrize("name", [PLAN, "config.json"])
def test_a_trained_model_is_a_runs_or_hugging_faces(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="neither a run"):
        check_trained(tmp_path)
    (tmp_path / name).touch()
    check_trained(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        check_trained(tmp_path / "elsewhere")
