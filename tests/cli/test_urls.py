"""URLs on the command line. tests/train/record/test_storing.py runs whole commands with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.cli.urls import by_url, check_on_disk, checkpoints_of, corpus_here, kept_runs, local_runs, run_here
from meshwright.errors import InputError
from meshwright.storage import Remote


def test_a_path_is_itself(tmp_path: Path) -> None:
    assert run_here(tmp_path) == corpus_here(tmp_path) == tmp_path
    assert checkpoints_of(tmp_path) is None
    check_on_disk(tmp_path, "runs")


def test_each_url_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = (local_runs(Remote.at(url)) for url in ("s3://bucket/runs", "s3://bucket/other"))
    assert one != two and one.is_relative_to(tmp_path / "meshwright" / "runs")
    assert local_runs(Remote.at("s3://bucket//runs/")) == one


def test_a_message_about_a_copy_names_the_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, unknown = kept_runs(Remote.at("s3://bucket/runs")), local_runs(Remote.at("s3://bucket/other"))
    assert by_url(f"where: {folder}/first/run.json") == "where: s3://bucket/runs/first/run.json"
    assert by_url(f"where: {unknown}/first") == f"where: {unknown}/first"


def test_the_checkpoints_of_a_url_are_there() -> None:
    assert str(checkpoints_of(Path("s3://bucket/runs/first"))) == "s3://bucket/runs/first/checkpoints"


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/"])
def test_a_bucket_is_no_run(url: str) -> None:
    with pytest.raises(InputError, match="names a bucket, not a run"):
        run_here(Path(url))


def test_what_needs_a_folder_refuses_a_url() -> None:
    with pytest.raises(InputError, match="simulated runs are in a folder of this machine, not at a URL"):
        check_on_disk(Path("az://container/runs"), "simulated runs")
