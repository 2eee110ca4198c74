"""The Python API: quick to import, documented, and with the same answers as the command line, to the last digit."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.cli.main import main
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter

JOB = ("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b")
LAYOUT = "tp=2,pp=2"
Printed = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own, without a hardware profile of this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """What a command prints as JSON."""

    def run(*arguments: str) -> dict[str, Any]:
        assert main([*arguments, "--json"]) == 0
        values: dict[str, Any] = json.loads(capsys.readouterr().out)
        return values

    return run


@pytest.fixture
def plan(folder: Path) -> Path:
    path = folder / "plan.json"
    mw.plan_of(mw.Job(*JOB, gpus=16).forecast(LAYOUT)).write(path)
    return path


@pytest.fixture
def run(folder: Path) -> Path:
    header = RunHeader(name="first", kind="trained", seed=0, num_ranks=2, machine="a machine", sequence_length=128)
    with RunWriter.create(folder / "runs", header) as writer:
        writer.steps(
            StepRecord(step=n, samples=16 * n, loss=5.0 / n, grad_norm=1.0, step_s=0.5 + 0.01 * (n % 3), parts_s={"compute": 0.4})
            for n in range(1, 21)
        )
        writer.event("start", 0, 1.0)
        writer.event("evaluation", 20, 13.3, loss=4.5, seconds=2.0)
        writer.finish("finished")
    return folder / "runs" / "first"


def same(values: dict[str, Any]) -> dict[str, Any]:
    """Values as JSON reads them back."""
    back: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    return back


def test_importing_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, meshwright; print(*(name for name in ('torch', 'numpy', 'pandas', 'pydantic', 'rich') if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_using_every_name_loads_no_torch() -> None:
    code = "import sys, meshwright as mw; [getattr(mw, name) for name in mw.__all__]; print('torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["False"]


def test_public_names_are_sorted_and_listed_once() -> None:
    assert mw.__all__ == sorted(set(mw.__all__)) and set(mw.__all__) <= set(dir(mw))


def test_type_checkers_see_the_same_names_from_the_same_modules():
    tree = ast.parse(Path(mw.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {one.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for one in node.names}
    assert seen == {name: f"meshwright.{home}" for name, home in mw._HOME_OF.items()}


def test_a_job_shows_itself_in_a_notebook():
    shown = mw.Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=64)._repr_html_()
    assert "<table>" in shown and "64 h100" in shown and "8.03 B parameters" in shown


def test_a_forecast_equals_itself_after_pickling():
    for cluster, workload in (("dgx-h100-superpod", "pretrain-1t"), ("azure-gb200-128", "mlperf-llama31-8b")):
        found = mw.Job("llama-3.1-8b", cluster, workload, gpus=64).forecast("tp=2,dp=32", ignore_memory=True)
        assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("name", mw.__all__)
def test_a_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(mw, name)
    assert value.__name__ == name and value.__doc__ and not value.__doc__.startswith(f"{name}(")
    methods = [one for key, one in vars(value).items() if not key.startswith("_")] if inspect.isclass(value) else []
    functions = [one.fget if isinstance(one, property) else one for one in methods if isinstance(one, property) or inspect.isfunction(one)]
    assert [one.__qualname__ for one in functions if not one.__doc__] == []


def test_a_name_that_there_is_not_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mw.nothing


def test_a_forecast_is_what_predict_prints(printed: Printed) -> None:
    forecast = mw.Job(*JOB, gpus=16).forecast(LAYOUT)
    assert same(forecast.to_json()) == printed("predict", *JOB, "--gpus", "16", "--layout", LAYOUT)


def test_a_forecast_under_other_terms_is_what_predict_prints(printed: Printed) -> None:
    job = mw.Job(*JOB, "v5.1", gpus=16).changed("workload.global_batch=64")
    forecast = job.forecast(LAYOUT, terms=mw.Terms(provider="nebius", price_kind="spot", region="norway"))
    options = ("--software", "v5.1", "--set", "workload.global_batch=64")
    terms = ("--provider", "nebius", "--price-kind", "spot", "--region", "norway")
    assert same(forecast.to_json()) == printed("predict", *JOB, "--gpus", "16", "--layout", LAYOUT, *options, *terms)


def test_a_planned_job_is_what_plan_prints(printed: Printed) -> None:
    job = mw.Job(*JOB)
    values, command = same(job.plan(gpus=16, keep=3).to_json()), printed("plan", *JOB, "--gpus", "16", "--keep", "3")
    assert values.pop("search_s") > 0 and command.pop("search_s") > 0  # seconds by the clock
    assert (command.pop("files"), command.pop("not_exported")) == ([], {})
    assert values == command
    explained = [plan.pop("explanation") for plan in values["plans"]]
    found = [same(forecast.to_json()) for forecast in mw.Job(*JOB, gpus=16).search(keep=3)]
    assert len(explained) == 3 and all(one.pop("schema") for one in found) and found == values["plans"]


def test_a_plan_with_an_aim_is_what_plan_prints(printed: Printed) -> None:
    planned = mw.Job(*JOB).plan(keep=1, max_gpus=16, objective="cost", layout="tp=2")
    options = ("--keep", "1", "--max-gpus", "16", "--objective", "cost", "--layout", "tp=2")
    values, command = same(planned.to_json()), printed("plan", *JOB, *options)
    assert {key: command[key] for key in values if key != "search_s"} == {key: values[key] for key in values if key != "search_s"}
    assert "by cost: llama-3.1-8b on dgx-h100-superpod" in str(planned) and "<table>" in planned._repr_html_()


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_sweep_is_what_sweep_prints(mode: str, printed: Printed) -> None:
    sweep = mw.Job(*JOB).sweep([8, 16], mode=mode, layout="tp=1,pp=1")
    assert same(sweep.to_json()) == printed("sweep", *JOB, "--gpus", "8,16", "--mode", mode, "--layout", "tp=1,pp=1")
    assert f"{mode} scaling: 8 (100.0 %), 16 (" in str(sweep) and "<table>" in sweep._repr_html_()


@pytest.mark.parametrize(
    "options, arguments",
    [
        ({"steps": 8, "seed": 3}, ("--steps", "8", "--seed", "3")),
        ({"days": 2, "seeds": 2}, ("--days", "2", "--seeds", "2")),
    ],
    ids=["steps", "days"],
)
def test_a_simulation_is_what_simulate_prints(options: dict[str, Any], arguments: tuple[str, ...], plan: Path, printed: Printed) -> None:
    simulation = mw.simulate(plan, name="python", runs="runs", **options)
    values, command = same(simulation.to_json()), printed("simulate", str(plan), "--name", "command", *arguments)
    assert (values.pop("folder"), command.pop("folder")) == ("runs/python", "runs/command")
    assert values == command


def test_a_run_is_what_report_prints(run: Path, printed: Printed) -> None:
    command = printed("report", str(run))
    assert command.pop("files") == [] and same(mw.read_run(run).to_json()) == command


def test_a_simulated_run_is_what_report_prints(plan: Path, printed: Printed) -> None:
    simulation = mw.simulate(plan, steps=8, name="few", runs="runs")
    assert simulation.folder is not None
    command = printed("report", "runs/few")
    assert command.pop("files") == [] and same(mw.read_run(simulation.folder).to_json()) == command


def test_a_run_in_words_and_as_a_fragment(run: Path) -> None:
    read = mw.read_run(run)
    assert str(read) == "first: trained, finished, 20 steps, median 510 ms"
    assert repr(read) == f"Run({str(run)!r}, 20 steps, 2 events, status='finished')"
    html = read._repr_html_()
    assert html.startswith('<div class="meshwright"><h3>run first: trained, finished</h3><table>') and "where the time went" in html


def test_a_run_without_a_step_can_be_shown_and_says_so(folder: Path) -> None:
    RunWriter.create(folder, RunHeader(name="<empty>", kind="trained", seed=0, num_ranks=1, machine="m")).close()
    read = mw.read_run(folder / "<empty>")
    assert str(read) == "<empty>: trained, running, no step yet" and "<h3>&lt;empty&gt;: trained" in read._repr_html_()
    with pytest.raises(mw.InputError, match="the run has no step yet"):
        read.to_json()


def test_steps_become_a_data_frame(run: Path) -> None:
    pytest.importorskip("pandas")
    read = mw.read_run(run)
    frame = read.to_pandas()
    assert list(frame.columns) == list(read.columns) and len(frame) == 20
    assert frame["step_s"].median() == 0.51 and frame["step"].tolist() == list(range(1, 21))


def test_forecasts_become_a_data_frame(printed: Printed) -> None:
    pytest.importorskip("pandas")
    best = mw.Job(*JOB, gpus=16).search(keep=3)
    frame = mw.table(best)
    assert len(frame) == 3 and frame["step_s"].tolist() == [forecast.step_s for forecast in best]
    assert frame["layout"].tolist() == [str(forecast.layout) for forecast in best] and frame["tp"].tolist() == [f.layout.tp for f in best]
    assert frame["compute_s"].tolist() == [forecast.parts["compute"] for forecast in best]
    parts = [name for name in frame.columns if name in {f"{part}_s" for part in best[0].parts}]
    assert frame[parts].sum(axis=1).tolist() == pytest.approx(frame["step_s"].tolist())
    assert not {"schema", "memory", "prices", "notes"} & set(frame.columns) and frame["cost_usd"].notna().all()
    assert best[0].to_pandas().iloc[0].to_dict() == frame.iloc[0].to_dict()


def test_without_pandas_the_message_says_how_to_get_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mw.InputError, match="a DataFrame needs pandas") as error:
        mw.read_run(run).to_pandas()
    assert error.value.fix == "pip install pandas"
    with pytest.raises(mw.InputError, match="a DataFrame needs pandas"):
        mw.table([])
