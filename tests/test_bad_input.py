"""Every public function, constructor and method with wrong types and silly values: it works, or says what is wrong; nothing else.

The calls are found by walking `meshwright.__all__`: a new public name without an entry in `CALLS` fails here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter

JOB = mw.Job("llama-3.2-1b", "dgx-h100-superpod", "pretrain-1t", gpus=8).changed(
    "workload.global_batch=8", "workload.seq_len=1024", "workload.num_tokens=1e5"
)
LAYOUT = "tp=2,cp=1,pp=2,vp=1,mbs=1,zero=1,recompute=none,schedule=1f1b"
FORECAST = JOB.forecast(LAYOUT)
PLAN = mw.plan_of(FORECAST)
LONGEST = 400  # characters of a repr


@cache
def values() -> Mapping[str, Any]:
    """One value of every public class, by its name; errors are raised, not held."""
    return {
        "Cluster": JOB.cluster,
        "Forecast": FORECAST,
        "Job": JOB,
        "Layout": FORECAST.layout,
        "Model": JOB.model,
        "Plan": PLAN,
        "Planned": JOB.plan(keep=1, layout=LAYOUT),
        "Run": None,  # of a folder: the fixture makes it
        "Simulation": mw.simulate(PLAN, steps=2),
        "Sweep": JOB.sweep([8], layout=LAYOUT),
        "Terms": mw.Terms(),
        "Workload": JOB.workload,
    }


def _fields_of(value: Any) -> dict[str, Any]:
    return {spec.name: getattr(value, spec.name) for spec in fields(value)}


# A call that works, by name: each argument is replaced by something else in turn.
CALLS: Mapping[str, Mapping[str, Any]] = {
    "Cluster": _fields_of(JOB.cluster),
    "Cluster.is_fabric": {"tier": JOB.cluster.tiers[0]},
    "Cluster.nearest_sizes": {"num_accelerators": 12, "multiple_of": 1},
    "Cluster.resized": {"num_accelerators": 4},
    "Cluster.can_have": {"num_accelerators": 4},
    "Forecast": _fields_of(FORECAST),
    "Forecast.share": {"part": "compute"},
    "Forecast.to_json": {},
    "Forecast.to_pandas": {},
    "InputError": {"what": "it is wrong", "where": "here", "fix": "mend it"},
    "Job": {
        "model": "llama-3.2-1b",
        "cluster": "dgx-h100-superpod",
        "workload": "pretrain-1t",
        "software": "v5.1",
        "profile": "none",
        "gpus": 8,
        "changes": ("workload.global_batch=8",),
        "described": JOB.cluster,
    },
    "Job.changed": {"assignments": ["workload.global_batch=16"]},
    "Job.check": {"layout": FORECAST.layout},
    "Job.forecast": {"layout": LAYOUT, "terms": mw.Terms(), "ignore_memory": True},
    "Job.layout": {"text": LAYOUT},
    "Job.on": {"cluster": JOB.cluster},
    "Job.plan": {
        "keep": 1,
        "stack": "any",
        "layout": LAYOUT,
        "gpus": 8,
        "max_gpus": None,
        "objective": "time",
        "deadline_s": 1e12,
        "budget_usd": 1e12,
        "terms": mw.Terms(),
        "pareto": False,
    },
    "Job.search": {"keep": 1, "layout": LAYOUT, "stack": "any", "features": None, "progress": lambda done, total: None},
    "Job.sweep": {"gpus": [8], "mode": "weak", "base": 8, "layout": LAYOUT, "stack": "any", "terms": mw.Terms()},
    "Job.usual_layout": {},
    "Layout": _fields_of(FORECAST.layout),
    "Layout.coordinate": {"rank": 1},
    "Layout.has_part": {"part": "mlp"},
    "Layout.num_micro_batches": {"global_batch": 8},
    "Layout.rank": {"coordinate": {"tp": 0, "cp": 0, "pp": 1, "dp": 1}},
    "Layout.stride": {"axis": "pp"},
    "MeshwrightError": {"what": "it is wrong", "where": "here", "fix": "mend it"},
    "Model": _fields_of(JOB.model),
    "Model.attended_tokens": {"seq_len": 1024},
    "Model.attention_flops_per_token": {"seq_len": 1024},
    "Model.cut_to": {"num_layers": 2},
    "Model.flops_per_token": {"seq_len": 1024},
    "Model.key_copies": {"tp": 2},
    "Model.vocab_rows": {"tp": 2},
    "Model.window_of": {"layer": 1},
    "Plan": _fields_of(PLAN),
    "Plan.write": {"path": "plan.json"},
    "Planned": {},
    "Planned.to_json": {},
    "Run": {},
    "Run.to_json": {},
    "Run.to_pandas": {},
    "Simulation": {},
    "Simulation.to_json": {},
    "Sweep": {},
    "Sweep.to_json": {},
    "Terms": {"provider": "aws", "price_kind": "spot", "region": "norway", "cooling": "air", "ideal": False},
    "Workload": _fields_of(JOB.workload),
    "Workload.duration_s": {"step_s": 1.0, "evaluation_s": 1.0},
    "Workload.evaluated_steps": {"num_steps": 100},
    "Workload.is_evaluated_after": {"step": 1, "num_steps": 100},
    "Workload.num_steps": {},
    "Workload.num_evaluations": {"num_steps": 100, "after": 0},
    "load_cluster": {"name": "dgx-h100-superpod"},
    "load_model": {"name": "llama-3.2-1b"},
    "load_workload": {"name": "pretrain-1t"},
    "plan_of": {"forecast": FORECAST, "name": "a plan"},
    "read_plan": {"path": "plan.json"},
    "read_run": {"folder": "runs/first"},
    "simulate": {
        "plan": PLAN,
        "steps": 2,
        "days": None,
        "seed": 0,
        "seeds": 1,
        "jitter": 1.0,
        "noise": True,
        "slow_rank": (),
        "planes_lost": 0,
        "nics_hit": 0,
        "links_lost": 0.0,
        "neighbour": 0.0,
        "routing": "",
        "storage": None,
        "failures": "",
        "checkpoint_every": "",
        "spares": None,
        "failed_nodes": 0,
        "finish_by": "",
        "budget": None,
        "price": None,
        "sizes": False,
        "cluster": "",
        "software": "",
        "name": "",
        "runs": None,
        "progress": lambda what, done, total: None,
    },
    "table": {"forecasts": [FORECAST]},
}
RESULTS = ("Planned", "Run", "Simulation", "Sweep")  # made by functions, never by a user: their constructors check nothing
OPEN = {"InputError", "MeshwrightError", "Forecast", *RESULTS}  # constructors that hold whatever they are given


def public_calls() -> Iterator[str]:
    """Public functions, constructors and methods, by name."""
    for name in mw.__all__:
        yield name
        value = getattr(mw, name)
        if inspect.isclass(value):
            yield from (f"{name}.{key}" for key, one in vars(value).items() if inspect.isfunction(one) and not key.startswith("_"))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mw.Run]:
    """A folder of one's own with a plan and a run in it."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("place")
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.chdir(place)
        PLAN.write("plan.json")
        with RunWriter.create(place / "runs", RunHeader(name="first", kind="trained", seed=0, num_ranks=1, machine="m")) as writer:
            writer.steps(StepRecord(step=n, samples=n, loss=1.0, grad_norm=1.0, step_s=1.0, parts_s={}) for n in (1, 2, 3))
        yield mw.read_run("runs/first")


def called(name: str, run: mw.Run, arguments: Mapping[str, Any]) -> None:
    """Call a public name; a foreseen error is an answer too."""
    owner, _, method = name.partition(".")
    target: Callable[..., Any] = getattr(mw, owner)
    if method:
        target = getattr(run if owner == "Run" else values()[owner], method)
    given = dict(arguments)
    several = [key for key, one in inspect.signature(target).parameters.items() if one.kind is one.VAR_POSITIONAL]
    positional = [one for key in several for one in given.pop(key)]
    try:
        target(*positional, **given)
    except mw.MeshwrightError as error:
        assert error.what and str(error)


def test_every_public_name_has_a_call_here() -> None:
    assert sorted(public_calls()) == sorted(CALLS)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in RESULTS])
def test_the_call_works_and_names_every_argument(name: str, folder: mw.Run) -> None:
    owner, _, method = name.partition(".")
    target = inspect.getattr_static(getattr(mw, owner), method) if method else getattr(mw, owner)
    named = {key for key, one in inspect.signature(target).parameters.items() if one.kind is not one.VAR_KEYWORD and key != "self"}
    assert named <= set(CALLS[name])
    called(name, folder, CALLS[name])


SILLY = (
    None,
    True,
    -1,
    0,
    3,
    2**63,
    10**40,
    -0.5,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    1j,
    "",
    " ",
    "x",
    "tp=2",
    "\0",
    "\ud800",
    "1e999",
    "../" * 2000,
    b"bytes",
    (),
    ("x",),
    [None],
    {},
    {"x": "y"},
    {1, 2},
    Path("nowhere"),
    Path("\0"),
    np.float64("nan"),
    np.arange(3),
    object(),
    len,
    int,
)
TRIED = [(name, argument) for name in CALLS if name not in OPEN for argument in CALLS[name]]


@pytest.mark.parametrize("name, argument", TRIED, ids=[f"{name}-{argument}" for name, argument in TRIED])
def test_no_traceback_reaches_a_user(name: str, argument: str, folder: mw.Run) -> None:
    for silly in SILLY:
        if argument == "progress" and callable(silly):
            continue  # a function of the user's own, which may raise what it likes
        called(name, folder, {**CALLS[name], argument: [silly] if argument == "assignments" else silly})


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=4), st.lists(st.integers(), max_size=3)
) | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_nor_with_anything_in_several_places(folder: mw.Run, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted({name for name, _ in TRIED})))
    changed = data.draw(st.lists(st.sampled_from(sorted(CALLS[name])), min_size=1, max_size=3, unique=True))
    drawn = {argument: data.draw(ANYTHING, label=argument) for argument in changed}
    called(name, folder, {**CALLS[name], **{key: [one] if key == "assignments" else one for key, one in drawn.items()}})


@pytest.mark.parametrize("name", [name for name in mw.__all__ if inspect.isclass(getattr(mw, name)) and "Error" not in name])
def test_every_value_prints_well(name: str, folder: mw.Run) -> None:
    value = folder if name == "Run" else values()[name]
    shown = repr(value)
    assert type(value).__name__ == name and shown.startswith(f"{name}(") and len(shown) <= LONGEST and "\n" not in shown
    named = {"Layout": "tp=2", "Terms": "provider=", "Run": "first", "Workload": "pretrain-1t", "Cluster": "dgx-h100-superpod"}
    assert named.get(name, "llama-3.2-1b") in shown
