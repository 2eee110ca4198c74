"""What the page may open: plain files of runs in the runs folder, and nothing that a name or a link leads to elsewhere."""

from __future__ import annotations

import os

import pytest

from meshwright.errors import InputError
from meshwright.serve.files import check_plain, open_plain, run_folder, run_names, touched_s


def made(folder, *names, at_s=1000.0):
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}")
        os.utime(folder / name, (at_s, at_s))
    return folder


def test_a_run_is_found_by_its_name(runs):
    assert run_folder(runs, made(runs / "first", "run.json").name) == runs / "first"


@pytest.mark.parametrize("name", ["", ".", "..", "../runs", "a/b", "/etc", ".hidden", "a\0b", "x" * 300, "none"])
def test_a_name_that_is_none_or_leads_elsewhere_is_an_error(runs, name):
    with pytest.raises(InputError):
        run_folder(runs, name)


def test_a_link_that_leads_out_is_refused_and_one_inside_is_not(runs, tmp_path):
    made(tmp_path / "secret", "run.json")
    (runs / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out of the runs folder"):
        run_folder(runs, "out")
    made(runs / "first", "run.json")
    (runs / "again").symlink_to(runs / "first")
    assert run_folder(runs, "again") == runs / "again"
    (runs / "broken").symlink_to(runs / "nowhere")
    with pytest.raises(InputError, match="no run is called"):
        run_folder(runs, "broken")


def test_a_file_in_the_place_of_a_folder_is_no_run(runs):
    (runs / "file").write_text("")
    with pytest.raises(InputError, match="no run is called"):
        run_folder(runs, "file")


def test_runs_come_newest_first_and_only_folders_that_hold_a_file_of_one(runs):
    made(runs / "old", "run.json", at_s=100.0)
    made(runs / "new", "steps.jsonl", at_s=300.0)
    made(runs / "b", "events.jsonl", at_s=200.0)
    made(runs / "a", "plan.json", at_s=200.0)
    made(runs / "other", "notes.txt")
    made(runs / ".hidden", "run.json")
    (runs / "file").write_text("")
    assert run_names(runs) == {"new": 300.0, "a": 200.0, "b": 200.0, "old": 100.0}
    assert list(run_names(runs)) == ["new", "a", "b", "old"]


def test_a_folder_that_is_missing_or_a_file_has_no_runs(runs, tmp_path):
    assert run_names(tmp_path / "nowhere") == {}
    (tmp_path / "file").write_text("")
    assert run_names(tmp_path / "file") == {} == run_names(runs)


def test_the_last_write_is_that_of_any_of_its_files(runs):
    folder = made(runs / "first", "run.json", at_s=100.0)
    (folder / "steps.jsonl").write_text("")
    os.utime(folder / "steps.jsonl", (500.0, 500.0))
    assert touched_s(folder) == 500.0 and touched_s(runs / "none") == 0.0 == touched_s("a\0b")


def test_a_link_does_not_say_when_its_file_was_written(runs, tmp_path):
    (tmp_path / "other").write_text("")
    os.utime(tmp_path / "other", (5.0, 5.0))
    folder = made(runs / "first")
    (folder / "run.json").symlink_to(tmp_path / "other")
    assert touched_s(folder) > 5.0


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_plain_files_are_opened(runs, tmp_path, kind):
    path = runs / "run.json"
    if kind == "link":
        (tmp_path / "other").write_text("secret")
        path.symlink_to(tmp_path / "other")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(InputError, match=r"run\.json is not a plain file"):
        check_plain(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((InputError, OSError)):
        open_plain(path)
    assert len(os.listdir("/proc/self/fd")) == before  # no descriptor is left open


def test_a_plain_file_is_opened_for_reading_alone(runs):
    path = runs / "run.json"
    path.write_text("content")
    assert check_plain(path).st_size == 7
    descriptor = open_plain(path)
    try:
        assert os.read(descriptor, 100) == b"content"
        with pytest.raises(OSError):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
    with pytest.raises(FileNotFoundError):
        open_plain(runs / "none")
