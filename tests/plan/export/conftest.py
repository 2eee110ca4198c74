"""Plans that the export tests share, and the foreign packages where they are installed (the extra `export-test`)."""

import importlib.util
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.plan import plan_of


@pytest.fixture(scope="session")
def record():
    return plan_of(Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b").forecast("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1"))


@pytest.fixture(scope="session")
def planned():
    """A plan of any layout: Llama 3.1 8B on 64 H100 unless given otherwise, fitting or not."""
    base = plan_of(Job("llama-3.1-8b", "dgx-h100-superpod", llama_workload("bf16"), gpus=64).forecast(parse_layout("tp=2,dp=32,mbs=1")))

    def made_of(layout, *, model="llama-3.1-8b", machine="dgx-h100-superpod", precision="bf16", seq_len=8192, **changes):
        chosen_layout = parse_layout(layout)
        cluster = load_cluster(machine).resized(chosen_layout.num_ranks)
        chosen = load_model(model) if isinstance(model, str) else model
        workload = replace(llama_workload(precision), seq_len=seq_len, **changes)
        return replace(base, model=chosen, cluster=cluster, layout=chosen_layout, workload=workload, name="by hand")

    return made_of


def llama_workload(precision):
    return replace(load_workload("pretrain-1t"), precision=precision, global_batch=256, seq_len=8192)


@pytest.fixture(scope="session")
def imported():
    """A foreign module, or a skip; its warnings at import are its own."""

    def import_module(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pytest.importorskip(name, exc_type=ImportError)

    return import_module


@pytest.fixture(scope="session")
def package():
    """The folder of a foreign package, found without importing it, or a skip."""

    def folder_of(name):
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip(f"no {name}")
        return Path(next(iter(found.submodule_search_locations)))

    return folder_of
