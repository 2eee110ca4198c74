"""`meshwright validate`: tables, JSON, filters and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.evidence.refit import MEASURED_CSV, PUBLISHED_CSV
from meshwright.say.vocabulary import problems


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["validate", *arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert problems(data) == []
    return data


def test_the_carried_runs(capsys):
    data = answer(capsys)
    assert len(data["rows"]) + len(data["skipped"]) == len(rows_of(MEASURED_CSV))
    assert set(data) >= {"mape_pct", "bias_pct", "worst_pct", "coverage_pct", "by_benchmark", "by_accelerator", "by_family"}
    assert all(set(row) == {"name", "row", "why"} and row["why"] for row in data["skipped"])


def test_both_formats_at_once(capsys):
    data = answer(capsys, str(MEASURED_CSV), str(PUBLISHED_CSV))
    assert len(data["rows"]) + len(data["skipped"]) == len(rows_of(MEASURED_CSV)) + len(rows_of(PUBLISHED_CSV))
    published = [row for row in data["rows"] if row["confidence"] == "published"]
    assert published and all(row["round"].startswith("nemo-") and row["submitter"] for row in published)


def test_filters(capsys):
    data = answer(capsys, "--benchmark", "gpt3,llama31_405b", "--vendor", "nvidia", "--confidence", "high")
    assert {row["benchmark"] for row in data["rows"]} == {"gpt3", "llama31_405b"}
    assert {row["confidence"] for row in data["rows"]} == {"high"}
    again = answer(capsys, "--benchmark", "gpt3", "--benchmark", "llama31_405b", "--vendor", "NVIDIA", "--confidence", "high")
    assert again == data


def test_a_filter_that_nothing_passes(capsys):
    assert main(["validate", "--benchmark", "gpt4"]) == 2
    assert capsys.readouterr().err == "meshwright: no run has benchmark 'gpt4'\n  where: --benchmark\n  fix:   did you mean gpt3?\n"


def test_the_whole_output_of_one_row(capsys, tmp_path):
    record = next(row for row in rows_of(MEASURED_CSV) if row["system"] == "2048xAzure_GB200")
    path = write(tmp_path / "one.csv", [record, {**record, "tp": ""}])
    row = answer(capsys, str(path))["rows"][0]
    assert main(["validate", str(path)]) == 0
    out = capsys.readouterr().out
    low_to_high = f"{row['low_s']:.4g} - {row['high_s']:.4g}"
    cells = ["v6.0 Azure 2048xAzure_GB200", "llama31_405b", "8192 gb200", "nvfp4", "1.27", f"{row['predicted_s']:.4g}", low_to_high]
    assert out.splitlines()[0] == "the row with the largest error"
    assert out.splitlines()[2].split("  ")[0] == cells[0]
    assert all(cell in out.splitlines()[2] for cell in cells)
    assert "by benchmark\n" in out and "by accelerator\n" in out
    assert out.endswith("rows that cannot be expressed (--rows lists each)\nrows  reason\n   1  the layout is not stated: tp empty\n\n")


def test_every_row_on_request(capsys):
    assert main(["validate", "--rows", "--benchmark", "gpt3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("every row\n") and out.split("by benchmark")[0].count(" gpt3 ") == 17


def test_rows_that_can_all_not_be_expressed(capsys, tmp_path):
    record = rows_of(MEASURED_CSV)[0]
    assert main(["validate", str(write(tmp_path / "none.csv", [{**record, "tp": ""}]))]) == 0
    assert "the layout is not stated: tp empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"step_time_s": "-1"}, ("step_time_s", "-1", "line 2")), ({"num_accelerators": "many"}, ("num_accelerators", "many"))],
)
def test_a_bad_value(capsys, tmp_path, changes, words):
    path = write(tmp_path / "bad.csv", [{**rows_of(MEASURED_CSV)[0], **changes}])
    assert main(["validate", str(path)]) == 2
    err = capsys.readouterr().err
    assert str(path) in err and all(word in err for word in words)


def test_a_missing_column(capsys, tmp_path):
    row = {name: value for name, value in rows_of(MEASURED_CSV)[0].items() if name != "tp"}
    assert main(["validate", str(write(tmp_path / "short.csv", [row]))]) == 2
    assert "tp" in capsys.readouterr().err


def test_a_missing_file(capsys):
    assert main(["validate", "nowhere.csv"]) == 2
    assert "nowhere.csv" in capsys.readouterr().err
