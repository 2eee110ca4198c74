"""What a run leaves for others: only runs with adapters have an adapter."""

from __future__ import annotations

from pathlib import Path

from meshwright.train.interop.tuned import adapted_model, tokenizer_files


def test_a_folder_that_is_no_run_has_no_adapters(folder: Path) -> None:
    assert adapted_model(folder) is None


def test_files_of_a_tokenizer_are_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    assert tokenizer_files(tmp_path) == {"tokenizer.json": b"{}"}
