"""Plans that the export tests share, and the foreign packages where they are installed (the extra `export-test`)."""

import importlib.util
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.layout import parse_layout
from meshwright.plan.make import make_plan


@pytest.fixture(scope="session")
def record():
    return make_plan(
        load_model("llama-3.1-405b"),
        load_cluster("azure-gb200-128"),
        load_workload("mlperf-llama31-405b"),
        parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1"),
    )


@pytest.fixture(scope="session")
def planned():
    """A plan of any layout: Llama 3.1 8B on 64 H100 unless said otherwise, fitting or not."""
    base = make_plan(
        load_model("llama-3.1-8b"), load_cluster("dgx-h100-superpod").resized(64), job("bf16"), parse_layout("tp=2,dp=32,mbs=1")
    )

    def plan_of(layout, *, model="llama-3.1-8b", machine="dgx-h100-superpod", precision="bf16", seq_len=8192, **changes):
        made = parse_layout(layout)
        cluster = load_cluster(machine).resized(made.num_ranks)
        chosen = load_model(model) if isinstance(model, str) else model
        return replace(
            base, model=chosen, cluster=cluster, layout=made, workload=replace(job(precision), seq_len=seq_len, **changes), name="by hand"
        )

    return plan_of


def job(precision):
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
