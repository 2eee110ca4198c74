"""With a machine's own profile, a search ranks layouts by what the profile says, as a prediction with it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.profile import load_profile
from meshwright.job import Job
from meshwright.layout import Layouts
from meshwright.plan.search import search
from meshwright.predict.footprint import reserve_for
from meshwright.predict.prediction import predict
from meshwright.predict.software import on_profile, software

PROFILE = Path(__file__).parents[1] / "fixtures" / "profile_of_cores.json"


def test_a_search_with_a_profile_gives_the_best_of_all_by_that_profile() -> None:
    model, cluster, workload = load_model("llama-2m"), load_cluster("this-machine-2x4"), load_workload("python-stdlib")
    stack = on_profile(software(), load_profile(PROFILE))
    found = search(Job(model, cluster, workload, stack), keep=8, reserve_bytes=reserve_for(cluster.accelerator))
    every = search(Job(model, cluster, workload, stack), keep=8, prune=False, reserve_bytes=reserve_for(cluster.accelerator))
    assert found.layouts[0] == every.layouts[0]
    again = predict(Job(model, cluster, workload, stack), Layouts.of(list(found.layouts))).step_s
    assert bool(np.all(np.diff(again) >= -1e-9 * again[:-1]))
    plain = search(Job(model, cluster, workload), keep=8, reserve_bytes=reserve_for(cluster.accelerator))
    assert not np.allclose(plain.step_s[:1], found.step_s[:1])
