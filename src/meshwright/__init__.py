"""Plan, predict, simulate, run and prove the training of large language models.

::

    import meshwright as mw

    job = mw.Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
    forecast = job.forecast("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1")
    forecast.step_s, forecast.interval, forecast.parts, forecast.memory, forecast.cost
    best = job.search(keep=5, stack="megatron")
    mw.table(best)  # as a pandas DataFrame
    mw.read_run("runs/first")  # a run folder; a notebook shows its report

Names are loaded when they are first used, so that `import meshwright` is quick. Nothing here imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.describe.cluster import Cluster
    from meshwright.describe.load import load_cluster, load_model, load_workload
    from meshwright.describe.model import Model
    from meshwright.describe.workload import Workload
    from meshwright.errors import InputError, MeshwrightError
    from meshwright.job import Job
    from meshwright.layout import Layout
    from meshwright.plan.plan import Plan, plan_of, read_plan
    from meshwright.plan.planned import Planned
    from meshwright.plan.sweep import Sweep
    from meshwright.predict.forecast import Forecast, table
    from meshwright.predict.outcome import Terms
    from meshwright.record.run import Run, read_run
    from meshwright.simulator.simulation import Simulation, simulate

__all__ = [
    "Cluster",
    "Forecast",
    "InputError",
    "Job",
    "Layout",
    "MeshwrightError",
    "Model",
    "Plan",
    "Planned",
    "Run",
    "Simulation",
    "Sweep",
    "Terms",
    "Workload",
    "load_cluster",
    "load_model",
    "load_workload",
    "plan_of",
    "read_plan",
    "read_run",
    "simulate",
    "table",
]

_HOMES = {
    "Cluster": "describe.cluster",
    "Forecast": "predict.forecast",
    "InputError": "errors",
    "Job": "job",
    "Layout": "layout",
    "MeshwrightError": "errors",
    "Model": "describe.model",
    "Plan": "plan.plan",
    "Planned": "plan.planned",
    "Run": "record.run",
    "Simulation": "simulator.simulation",
    "Sweep": "plan.sweep",
    "Terms": "predict.outcome",
    "Workload": "describe.workload",
    "load_cluster": "describe.load",
    "load_model": "describe.load",
    "load_workload": "describe.load",
    "plan_of": "plan.plan",
    "read_plan": "plan.plan",
    "read_run": "record.run",
    "simulate": "simulator.simulation",
    "table": "predict.forecast",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    value = getattr(import_module(f"meshwright.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
