"""Plan, predict, simulate and run the training of large language models, and check claims about it.

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
    from meshwright.describe.cluster import Cluster as Cluster
    from meshwright.describe.load import load_cluster as load_cluster
    from meshwright.describe.load import load_model as load_model
    from meshwright.describe.load import load_workload as load_workload
    from meshwright.describe.model import Model as Model
    from meshwright.describe.workload import Workload as Workload
    from meshwright.errors import InputError as InputError
    from meshwright.errors import MeshwrightError as MeshwrightError
    from meshwright.job import Job as Job
    from meshwright.layout import Layout as Layout
    from meshwright.plan.plan import Plan as Plan
    from meshwright.plan.plan import plan_of as plan_of
    from meshwright.plan.plan import read_plan as read_plan
    from meshwright.plan.planned import Planned as Planned
    from meshwright.plan.sweep import Sweep as Sweep
    from meshwright.predict.forecast import Forecast as Forecast
    from meshwright.predict.forecast import table as table
    from meshwright.predict.outcome import Terms as Terms
    from meshwright.record.run import Run as Run
    from meshwright.record.run import read_run as read_run
    from meshwright.simulator.simulation import Simulation as Simulation
    from meshwright.simulator.simulation import simulate as simulate

# The public names, by the module that defines them. Type checkers read the imports above; a test compares the two lists.
_HOMES = {
    "describe.cluster": ("Cluster",),
    "describe.load": ("load_cluster", "load_model", "load_workload"),
    "describe.model": ("Model",),
    "describe.workload": ("Workload",),
    "errors": ("InputError", "MeshwrightError"),
    "job": ("Job",),
    "layout": ("Layout",),
    "plan.plan": ("Plan", "plan_of", "read_plan"),
    "plan.planned": ("Planned",),
    "plan.sweep": ("Sweep",),
    "predict.forecast": ("Forecast", "table"),
    "predict.outcome": ("Terms",),
    "record.run": ("Run", "read_run"),
    "simulator.simulation": ("Simulation", "simulate"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    value = getattr(import_module(f"meshwright.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
