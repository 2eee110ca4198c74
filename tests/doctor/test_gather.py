"""Four gloo ranks examine themselves, each as a node: healthy, and with a real defect in one of them."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from sick import DEFECTS, NUM_NODES, SICK, examine

from meshwright.doctor import gather as module
from meshwright.doctor.checks import FAIL, OK, findings_of
from meshwright.doctor.expected import Expected
from meshwright.doctor.gather import Network, alone, gather
from meshwright.doctor.node import Here, Sources
from meshwright.doctor.reading import Gathered, gathered_of
from meshwright.train.launch import Place
from meshwright.train.sealed import Forged

NOBODY = Expected(words="no description")
HERE = Here(node="node0")
REAL = {
    "memory already taken": "host memory",
    "a slow disk": "disk",
    "a skewed clock": "clock",
    "one slow pair of ranks": "pairs",
    "a wrong library version": "versions",
}


def examined(pools, defect: str, folder) -> Gathered:
    answers = pools.of(NUM_NODES).run(examine, defect, str(folder))
    assert answers[1:] == [None] * (NUM_NODES - 1)
    return gathered_of(answers[0])


def test_healthy_ranks_give_no_alarm(pools, tmp_path):
    found = examined(pools, "none", tmp_path)
    assert [one for one in findings_of(found, NOBODY) if one.level != OK and one.check not in ("disk", "pairs")] == []
    assert len(found.readings) == NUM_NODES and len(found.pairs) == 6
    assert all(pair.bytes_per_s > 0 for pair in found.pairs) and found.pairs_failed == ""
    assert all(abs(one.clock_ahead_s) <= one.clock_error_s + 1e-3 for one in found.readings)


@pytest.mark.parametrize("defect", REAL)
def test_a_defect_of_one_rank_is_found(pools, tmp_path, defect):
    assert defect in DEFECTS
    found = [one for one in findings_of(examined(pools, defect, tmp_path), NOBODY) if one.check == REAL[defect] and one.level == FAIL]
    named = {node for one in found for node in one.nodes}
    assert named == ({"node1", "node2"} if defect == "one slow pair of ranks" else {f"node{SICK}"})


def test_one_rank_alone_needs_no_store():
    found = alone(HERE, quick(), lambda what: None)
    assert found.num_ranks == 1 and found.readings[0].node == "node0" and found.pairs == ()


def quick() -> Sources:
    def no(*args):
        raise OSError("not there")

    return Sources(gpu_names=list, core_speed=no, memory=no, ecc=no, disk=no, versions=dict)


def test_a_rank_that_never_answers_is_named(monkeypatch):
    monkeypatch.setattr(module, "READINGS_S", 0.3)
    monkeypatch.setattr(module, "LATE_S", 0.0)
    monkeypatch.setattr(module, "GOODBYE_S", 0.1)
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=10))
    place = Place(rank=0, num_ranks=2, local_rank=0, num_local_ranks=1, store=store, secret=b"the secret of this job")
    place.control.set("doctor/node/1", "node7")
    started_s = time.monotonic()
    found = gather(place, HERE, quick(), Network(), lambda what: None)
    assert found is not None and found.silent == {1: "node7"} and found.pairs_failed == "not all ranks gave a reading"
    assert ("node7",) in [one.nodes for one in findings_of(found, NOBODY) if one.level == FAIL]
    assert place.control.get("doctor/pairs") == b"none" and time.monotonic() - started_s < 30.0


def test_a_reading_of_somebody_without_the_secret_is_refused(monkeypatch):
    monkeypatch.setattr(module, "GOODBYE_S", 0.1)
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=10))
    store.set("doctor/reading/1", "{}")
    place = Place(rank=0, num_ranks=2, local_rank=0, num_local_ranks=1, store=store, secret=b"the secret of this job")
    with pytest.raises(Forged, match="written by a process that does not have the secret"):
        gather(place, HERE, quick(), Network(), lambda what: None)
