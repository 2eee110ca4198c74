"""The files that `meshwright plan` writes: what is asked for is read, what cannot be written is refused before the search."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.plan.export import EXPORTS, FILE_NAMES
from meshwright.plan.plan import read_plan
from meshwright.plan.planned import Planned, plan_job
from meshwright.report.plan_files import Files, Written, read_exports, with_files
from meshwright.say.document import Document, Text


@cache
def found() -> Planned:
    job = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=64)
    return plan_job(job, keep=1, layout="tp=2,cp=1,pp=1,dp=32,mbs=1,zero=1,order=tp-cp-dp-pp,recompute=selective")


def nothing(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def test_exports_are_kinds_and_files() -> None:
    assert read_exports(["megatron=a.sh", "deepspeed=b=c.json"]) == (("megatron", Path("a.sh")), ("deepspeed", Path("b=c.json")))
    assert read_exports([]) == ()


@pytest.mark.parametrize(
    "text, what, fix",
    [
        ("nemo=a", "no export named 'nemo'", "use one of megatron"),
        ("=a", "no export named ''", "use one of"),
        ("megatron", "'megatron' names no file", "write "),
        ("megatron=", "'megatron=' names no file", "write "),
    ],
)
def test_what_is_no_export_is_refused(text: str, what: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        read_exports([text])
    assert caught.value.what == what and caught.value.where == "export" and caught.value.fix.startswith(fix)


@pytest.mark.parametrize(
    "asked, what",
    [
        ({"out": "none/plan.json"}, "no folder none for the plan"),
        ({"html": "here"}, "here is a folder, not a file"),
        ({"out": "a.json", "trace": "here/../a.json"}, "is named for both the plan and the trace"),
        ({"rank_map": "ranks.txt"}, "the rank map is written as .csv or .json, not ranks.txt"),
        ({"plot": "plan.png"}, "the plot is written as .svg, not plan.png"),
        ({"export_dir": "a-file"}, "a-file cannot be a folder"),
        ({"export_dir": "none/here"}, "none/here cannot be a folder"),
        ({"out": "here/deepspeed.json", "export_dir": "here"}, "is named for both the plan and the deepspeed export of --export-dir"),
    ],
)
def test_what_could_not_be_written_is_refused_first(
    asked: dict[str, str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    Path("a-file").write_text("")
    with pytest.raises(InputError) as caught:
        Files(**{name: Path(path) for name, path in asked.items()}).check()
    assert what in caught.value.what and caught.value.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file", "here"]


def test_everything_is_written_and_named(tmp_path: Path) -> None:
    files = Files(
        out=tmp_path / "plan.json",
        rank_map=tmp_path / "ranks.csv",
        trace=tmp_path / "trace.json",
        plot=tmp_path / "plan.svg",
        exports=(("megatron", tmp_path / "args.sh"),),
        export_dir=tmp_path / "all",
    )
    files.check()
    written = files.write(found(), nothing)
    assert all(path.is_file() for _, path in written.files)
    assert [what for what, _ in written.files][:5] == ["plan", "rank map", "trace", "plot", "megatron export"]
    assert read_plan(tmp_path / "plan.json") == found().plan
    with open(tmp_path / "ranks.csv", newline="", encoding="utf-8") as table:
        assert len(list(csv.DictReader(table))) == 64
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    in_folder = {path.name for path in (tmp_path / "all").iterdir()}
    assert in_folder | {FILE_NAMES[kind] for kind, _ in written.refused} == set(FILE_NAMES.values())


def test_what_a_stack_cannot_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    job = found().ask.job
    by_halves = plan_job(job, keep=1, layout="tp=2,cp=1,pp=2,dp=16,mbs=1,schedule=zero-bubble")
    refusing = [kind for kind in EXPORTS if kind in dict(_refused(by_halves, tmp_path))]
    assert refusing, "a zero-bubble schedule is not in every stack"
    files = Files(out=tmp_path / "plan.json", exports=((refusing[0], tmp_path / "x"),))
    with pytest.raises(InputError):
        files.write(by_halves, nothing)
    assert not (tmp_path / "plan.json").exists() and not (tmp_path / "x").exists()


def _refused(planned: Planned, tmp_path: Path) -> tuple[tuple[str, str], ...]:
    return Files(export_dir=tmp_path / "all").write(planned, nothing).refused


def test_a_page_has_curves_around_the_plan(tmp_path: Path) -> None:
    free = plan_job(found().ask.job, keep=1, layout="tp=2,cp=1,pp=1,mbs=1,zero=1")  # of any number of replicas
    Files(html=tmp_path / "plan.html").write(free, nothing)
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "weak scaling: batch grows with the machine" in page and ">128</td>" in page  # twice the plan's size


def test_what_was_written_is_in_the_document() -> None:
    made = with_files(
        Document(kind="plan", title="a", blocks=(Text("before"),), values={"x": 1}),
        Written(files=(("plan", Path("p.json")),), refused=(("deepspeed", "no pipeline; take pp=1"),)),
    )
    assert [block.text for block in made.blocks if isinstance(block, Text)] == [
        "before",
        "wrote the plan: p.json",
        "not written, deepspeed: no pipeline; take pp=1",
    ]
    assert made.values == {
        "x": 1,
        "files": [{"what": "plan", "path": "p.json"}],
        "not_exported": {"deepspeed": "no pipeline; take pp=1"},
    }
