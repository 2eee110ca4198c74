"""A dictionary that cannot be changed, and the public values that have one."""

import copy
import json
import pickle

import pytest

from meshwright.frozen import FrozenDict
from meshwright.job import Job

CHANGES = {
    "set": lambda value: value.__setitem__("compute", 0.0),
    "delete": lambda value: value.__delitem__("compute"),
    "update": lambda value: value.update(compute=0.0),
    "or": lambda value: value.__ior__({"compute": 0.0}),
    "pop": lambda value: value.pop("compute"),
    "popitem": lambda value: value.popitem(),
    "setdefault": lambda value: value.setdefault("more", 0.0),
    "clear": lambda value: value.clear(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_refused_and_says_what_to_do(change) -> None:
    value = FrozenDict({"compute": 1.0})
    with pytest.raises(TypeError, match=r"dict\(value\)"):
        change(value)
    assert value == {"compute": 1.0}


def test_it_is_a_dictionary_otherwise() -> None:
    value = FrozenDict({"compute": 1.0, "bubble": 2.0})
    assert json.loads(json.dumps(value)) == value == dict(value) == copy.deepcopy(value) == pickle.loads(pickle.dumps(value))
    assert hash(value) == hash(FrozenDict({"bubble": 2.0, "compute": 1.0}))


def test_public_values_can_be_kept_in_sets_and_a_forecast_cannot_be_changed() -> None:
    job = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=64)
    forecast, again = job.forecast("tp=2"), job.forecast("tp=2")
    assert len({job, Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=64)}) == 1
    assert hash(forecast) == hash(again) and len({job.model, job.cluster, job.workload, job.software}) == 4
    with pytest.raises(TypeError):
        forecast.parts["compute"] = 0.0  # type: ignore[index]
