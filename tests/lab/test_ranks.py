"""Where ranks sit, how they start, and that they end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from meshwright.describe.load import load_model, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.lab import system
from meshwright.lab.cluster import lab_cluster
from meshwright.lab.description import Host, Lab
from meshwright.lab.ranks import in_order, planned_slots, run, shuffled, starts
from meshwright.layout import Layout
from meshwright.plan.plan import Plan, plan_of


def a_plan(lab: Lab, layout: Layout) -> Plan:
    cluster = lab_cluster(lab)
    cluster = cluster if layout.num_ranks == cluster.num_accelerators else cluster.resized(layout.num_ranks)
    return plan_of(Job(load_model("llama-2m"), cluster, load_workload("python-stdlib"), profile="none").forecast(layout))


def test_a_plan_for_the_whole_lab_fills_it_in_order():
    assert planned_slots(a_plan(Lab(), Layout(tp=2, pp=2, dp=2)), Lab()) == tuple(range(8))


def test_a_plan_for_fewer_ranks_sits_where_its_rank_map_says():
    lab = Lab(num_racks=4, num_hosts=2, num_ranks=2)
    slots = planned_slots(a_plan(lab, Layout(tp=2, pp=2, dp=2)), lab)
    assert len(set(slots)) == 8
    assert [str(lab.host_at(slot)) for slot in slots[:2]] == ["r0h0", "r0h0"]


def test_a_plan_that_needs_more_than_the_lab_has_is_refused():
    plan = a_plan(Lab(num_racks=4), Layout(tp=2, pp=2, dp=4))
    with pytest.raises(InputError, match="the plan needs 4 racks, and lab 'lab' has 2"):
        planned_slots(plan, Lab())


def test_a_shuffle_is_a_permutation_and_the_same_again():
    assert sorted(shuffled(8, 1)) == list(in_order(8))
    assert shuffled(8, 1) == shuffled(8, 1) != shuffled(8, 2)


def test_ranks_get_the_variables_of_torchrun_for_their_place():
    found = starts(Lab(), ["hostname"], (4, 0, 1), num_cores=2)
    assert [(one.host, one.environment["LOCAL_RANK"], one.environment["LOCAL_WORLD_SIZE"]) for one in found] == [
        (Host(1, 0), "0", "1"),
        (Host(0, 0), "0", "2"),
        (Host(0, 0), "1", "2"),
    ]
    assert {one.environment["MASTER_ADDR"] for one in found} == {"10.65.0.3"}
    assert found[0].environment["WORLD_SIZE"] == "3" and found[0].environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert found[0].environment["OMP_NUM_THREADS"] == "1"
    assert found[0].command[-2:] == ("r1h0", "hostname")


def test_the_word_meshwright_is_this_meshwright():
    command = starts(Lab(), ["meshwright", "train", "plan.json"], (0,), num_cores=2)[0].command
    assert command[-5:] == (sys.executable, "-m", "meshwright", "train", "plan.json")


@pytest.mark.parametrize("slots, what", [((), "no ranks to start"), ((0, 0), "the same place"), ((8,), "has no place 8")])
def test_places_that_cannot_be_are_refused(slots, what):
    with pytest.raises(InputError, match=what):
        starts(Lab(), ["true"], slots, num_cores=2)


def test_each_rank_runs_on_its_host_and_prints_with_its_place(make, capfd):
    lab = make(num_ranks=1).lab
    assert run(starts(lab, ["sh", "-c", "hostname; ip -br -4 addr show eth0"], in_order(4), num_cores=2)) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[0] == "r0h0" and lab.address(Host(0, 0)) in out
    assert "[r1h1 rank 3] r1h1" in err and f"{lab.address(Host(1, 1))}/16" in err


def test_the_status_is_that_of_the_rank_that_failed_and_no_rank_is_left(make, monkeypatch):
    from meshwright.lab import ranks

    monkeypatch.setattr(ranks, "LAST_WORDS_S", 0.2)
    lab = make(num_ranks=1).lab
    assert run(starts(lab, ["sh", "-c", "test $RANK = 2 && exit 7; sleep 60"], in_order(4), num_cores=2)) == 7
    assert [system.processes(lab.namespace(host)) for host in lab.hosts] == [[]] * 4


def test_ranks_die_with_the_process_that_started_them(make):
    lab = make(num_racks=1, num_hosts=2, num_ranks=1).lab
    code = (
        "from meshwright.lab.description import Lab\nfrom meshwright.lab.ranks import run, starts\n"
        f"run(starts(Lab(name={lab.name!r}, num_racks=1, num_hosts=2, num_ranks=1), ['sleep', '60'], (0, 1), 2))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: sum(len(system.processes(lab.namespace(host))) for host in lab.hosts) == 2)
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: not any(system.processes(lab.namespace(host)) for host in lab.hosts))
    finally:
        parent.kill()
        parent.wait()


def wait_until(is_so, within_s=20.0):
    until_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until_s, "it did not come to pass"
        time.sleep(0.05)


def test_ranks_have_their_program_at_the_same_addresses_where_the_system_lets_them(make, capfd):
    if subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let programs choose their addresses")
    lab = make(num_racks=1, num_hosts=2, num_ranks=1).lab
    assert run(starts(lab, ["head", "-n1", "/proc/self/maps"], in_order(2), num_cores=2)) == 0
    first, other = capfd.readouterr()
    assert first.split()[0] == other.split("] ", 1)[1].split()[0]
