"""Rows of measured runs become the nouns, or are listed with the reason; a bad cell refuses the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured_rows import BRIDGE, RECORD, one, refusal, write

from meshwright.errors import InputError
from meshwright.evidence import mlperf, published
from meshwright.evidence.runs import Runs, high_confidence_nvidia, read_runs

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the measured runs are not beside the repository")


def test_a_skipped_row_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    runs = read_runs(write(tmp_path, RECORD, RECORD | {"system": "other", "tp": ""}, RECORD))
    assert [run.source_row for run in runs.rows] == [2, 4]
    (skipped,) = runs.skipped
    assert (skipped.name, skipped.source_row) == ("v6.0 Azure other llama31_405b", 3)
    assert runs.num_skipped_by_reason() == {"the layout is not stated: tp empty": 1}


def test_runs_for_fitting_are_clean_nvidia_and_of_high_confidence(tmp_path: Path) -> None:
    oracle = {"round": "v4.1", "submitter": "Oracle", "num_accelerators": "3072", "dp": "48", "global_batch_size": "384"}
    runs = read_runs(write(tmp_path, RECORD, RECORD | {"layout_confidence": "medium"}, RECORD | {"vendor": "AMD"}, RECORD | oracle))
    assert [run.source_row for run in high_confidence_nvidia(runs.rows)] == [2]
    assert [run.is_clean for run in runs.rows] == [True, True, True, False]


@pytest.mark.parametrize("column", mlperf.REQUIRED)
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    path = write(tmp_path, {name: cell for name, cell in RECORD.items() if name != column})
    assert refusal(path).what == f"column {column} is missing"


@pytest.mark.parametrize("column", published.REQUIRED)
def test_a_missing_column_of_the_other_format_is_named(tmp_path: Path, column: str) -> None:
    path = write(tmp_path, {name: cell for name, cell in BRIDGE.items() if name != column})
    assert refusal(path).what == f"column {column} is missing"


@pytest.mark.parametrize(
    "column, cell, what",
    [
        ("tp", "four", "tp is 'four', not a number"),
        ("tp", "-4", "tp is '-4', not a whole number of at least 1"),
        ("tp", "0", "tp is '0', not a whole number of at least 1"),
        ("pp", "1.5", "pp is '1.5', not a whole number of at least 1"),
        ("dp", "1_28", "dp is '1_28', not a number"),
        ("num_accelerators", "", "num_accelerators is empty"),
        ("num_accelerators", "9" * 400, "num_accelerators is '" + "9" * 37 + "...', not a number"),
        ("seq_len", "8k", "seq_len is '8k', not a number"),
        ("step_time_s", "nan", "step_time_s is 'nan', not a number"),
        ("step_time_s", "inf", "step_time_s is 'inf', not a number"),
        ("step_time_s", "-1.27", "step_time_s is '-1.27', and must be above 0"),
        ("step_time_s", "", "step_time_s is empty"),
        ("benchmark", " ", "benchmark is empty"),
    ],
)
def test_a_bad_cell_is_named_with_its_line_and_column(tmp_path: Path, column: str, cell: str, what: str) -> None:
    path = write(tmp_path, RECORD, RECORD | {column: cell})
    error = refusal(path)
    assert error.what == what
    assert error.where == f"{path}, line 3, column {column}"


@pytest.mark.parametrize("changes", [{"gbs": ""}, {"model": "unknown"}, {"gpu": "unknown"}])
def test_a_bad_cell_refuses_the_file_even_in_a_row_that_would_be_skipped(tmp_path: Path, changes: dict[str, str]) -> None:
    assert refusal(write(tmp_path, BRIDGE | changes | {"ep": "x"})).what == "ep is 'x', not a number"


def test_whole_numbers_may_be_written_as_spreadsheets_do(tmp_path: Path) -> None:
    assert one(tmp_path, RECORD, tp="4.0", num_accelerators=" 8192 ").layout.tp == 4


@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"\xff\xfe\x00r", "byte 0 (0xff) is not UTF-8"),
        (b'round,"system\n1,2', "the file is not a CSV: unexpected end of data"),
        (b"a;b\n1;2\n", "the first line is not the header of a file of runs"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert refusal(path).what == what


@pytest.mark.parametrize("extra, num_cells", [(-3, len(RECORD) - 3), (1, len(RECORD) + 1)])
def test_a_row_with_too_few_or_too_many_cells_is_refused(tmp_path: Path, extra: int, num_cells: int) -> None:
    cells = [*RECORD.values(), "x"][: len(RECORD) + extra]
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(RECORD)}\n{','.join(cells)}\n", encoding="utf-8")
    assert refusal(path).what == f"the row has {num_cells} cells, and the header {len(RECORD)}"


def test_a_column_that_stands_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(RECORD)},tp\n", encoding="utf-8")
    assert refusal(path).what == "column tp stands twice in the header"


def test_a_file_without_a_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(",".join(RECORD.values()) + "\n", encoding="utf-8")
    assert refusal(path).what == "the first line is not the header of a file of runs"


def test_folders_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).what == "cannot read the file: Is a directory"
    assert refusal(tmp_path / "none.csv").what == "cannot read the file: No such file or directory"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, RECORD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_runs(path).rows[0].measured_s == 1.27035


def test_a_header_alone_holds_no_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(",".join(RECORD) + "\n", encoding="utf-8")
    assert read_runs(path) == Runs(rows=(), skipped=())


fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
cells = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["0", "-1", "1e308", "1e-320", "nan", "8x 400Gb/s", "9999x 99999Gb/s", "GB300", "gpt3", "fp8", "h=0 l=0 heads=0"]),
    st.integers().map(str),
    st.floats().map(str),
)


def survives(path: Path, num_rows: int) -> bool:
    """A file is read whole, every row expressed or listed, or refused in words."""
    try:
        runs = read_runs(path)
    except InputError as error:
        return bool(error.what and error.where)
    return len(runs.rows) + len(runs.skipped) == num_rows


@fuzz
@given(row=st.sampled_from([RECORD, BRIDGE]), data=st.data())
def test_no_cell_brings_a_traceback(tmp_path: Path, row: dict[str, str], data: st.DataObject) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(row)), cells, min_size=1, max_size=3))
    assert survives(write(tmp_path, row, row | changes), 2)


@fuzz
@given(content=st.binary(max_size=400))
def test_no_file_brings_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_runs(path)


@needs_data
def test_every_submission_is_expressed_or_listed() -> None:
    runs = read_runs(DATA / "measured_runs.csv")
    assert (len(runs.rows), len(runs.skipped)) == (158, 27)
    assert all(run.measured_s > 0 and run.layout.num_ranks == run.num_accelerators for run in runs.rows)
    fitting = high_confidence_nvidia(runs.rows)
    by_benchmark = {
        name: sum(run.benchmark == name for run in fitting) for name in ("gpt3", "llama31_405b", "llama31_8b", "llama2_70b_lora")
    }
    assert by_benchmark == {"gpt3": 15, "llama31_405b": 15, "llama31_8b": 18, "llama2_70b_lora": 81}


@needs_data
def test_every_published_row_is_expressed_or_listed() -> None:
    runs = read_runs(DATA / "published_runs.csv")
    assert (len(runs.rows), len(runs.skipped)) == (1795, 81)
    llama = [run for run in runs.rows if run.release.startswith("nemo") and run.model.name.startswith("llama") and run.kind == "pretrain"]
    assert len(llama) == 66
    assert sum(run.peak_memory_bytes > 0 and run.release == "megatron-2025" for run in runs.rows) == 43
