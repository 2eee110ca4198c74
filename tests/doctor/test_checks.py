"""Each of eight defects is found in one node among healthy ones, by its check, and nothing else is; healthy nodes give no alarm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import CARDS, DEFECTS, GPU, SICK, TOGETHER, card_node, healthy, with_reading

from meshwright.doctor.checks import FAIL, OK, WARN, failed_nodes, findings_of
from meshwright.doctor.expected import Expected
from meshwright.doctor.reading import Gathered, Reading
from meshwright.units import GB, GIB, MEGA, TERA


def alarms(gathered: Gathered, expected: Expected = CARDS) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.level, one.check, one.nodes) for one in findings_of(gathered, expected) if one.level != OK]


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 7])
def test_healthy_nodes_give_no_alarm(num_nodes):
    assert alarms(healthy(num_nodes)) == []


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_one_node_is_found_and_named(defect):
    check, put_in = DEFECTS[defect]
    nodes = {f"node{SICK}"} | ({"node1"} if check == "pairs" else set())  # of one slow pair, either end may be at fault
    found = alarms(put_in(healthy()))
    assert {level for level, _, _ in found} == {FAIL}
    assert {name for _, name, _ in found} == {check}
    assert {node for _, _, some in found for node in some} == nodes
    assert set(failed_nodes(findings_of(put_in(healthy()), CARDS))) == nodes


@pytest.mark.parametrize("defect", [name for name in DEFECTS if name not in TOGETHER])
def test_one_node_alone_is_compared_with_its_description(defect):
    check, put_in = DEFECTS[defect]
    assert [(level, name) for level, name, _ in alarms(put_in(healthy(1)))] == [(FAIL, check)]


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_finding_says_what_was_measured_what_was_expected_and_what_to_do(defect):
    _, put_in = DEFECTS[defect]
    wrong = [one for one in findings_of(put_in(healthy()), CARDS) if one.level == FAIL]
    assert all(one.what and one.measured and one.expected and one.fix for one in wrong), wrong


def test_processes_that_hold_memory_are_named():
    _, put_in = DEFECTS["memory already taken"]
    assert "python (process 7)" in next(one.fix for one in findings_of(put_in(healthy()), CARDS) if one.level == FAIL)


def test_without_a_description_ranks_are_compared_with_each_other():
    nobody = Expected(words="no description")
    assert alarms(healthy(), nobody) == []
    assert alarms(with_reading(healthy(), copy_bytes_per_s=2125 * GB), nobody) == [(FAIL, "copy", ("node2",))]
    assert alarms(with_reading(healthy(), flops_per_s=500 * TERA), nobody) == [(FAIL, "product", ("node2",))]
    assert alarms(with_reading(healthy(1), flops_per_s=1.0), nobody) == []  # nothing to compare with


def test_a_plan_for_gpus_fails_on_a_node_without():
    cores = Reading(node="cores", flops_per_s=2e11, copy_bytes_per_s=2e10)
    assert alarms(Gathered(num_ranks=1, readings=(cores,))) == [(FAIL, "GPUs", ("cores",))]


def test_another_gpu_than_the_plans_is_found():
    other = with_reading(healthy(1), gpu=replace(GPU, name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB))
    assert (FAIL, "GPUs", ("node0",)) in alarms(other)


@pytest.mark.parametrize("slowdowns", [0x8, 0x20, 0x40, 0x80, 0x4 | 0x40])
def test_a_hot_or_starved_gpu_is_found_whatever_its_clock(slowdowns):
    busy = replace(GPU, clock_hz=1900 * MEGA, slowdowns=slowdowns)
    assert alarms(with_reading(healthy(1), busy_gpu=busy)) == [(FAIL, "GPU clock", ("node0",))]


def test_the_power_cap_may_slow_a_clock_but_not_to_half():
    at_cap = replace(GPU, clock_hz=1300 * MEGA, slowdowns=0x4)
    assert alarms(with_reading(healthy(1), busy_gpu=at_cap)) == []
    assert alarms(with_reading(healthy(1), busy_gpu=replace(at_cap, clock_hz=900 * MEGA))) == [(FAIL, "GPU clock", ("node0",))]


def test_a_lowered_power_limit_is_a_warning():
    assert alarms(with_reading(healthy(1), gpu=replace(GPU, power_limit_w=500.0))) == [(WARN, "power limit", ("node0",))]


@pytest.mark.parametrize("change", [{"rows_pending": True}, {"rows_failed": True}])
def test_bad_rows_of_memory_are_found(change):
    assert alarms(with_reading(healthy(1), gpu=replace(GPU, **change))) == [(FAIL, "memory errors", ("node0",))]


def test_memory_errors_of_the_host_are_found():
    assert alarms(with_reading(healthy(1), ecc_uncorrected=1)) == [(FAIL, "memory errors", ("node0",))]


def test_a_plan_on_cores_needs_room_for_its_ranks():
    cores = Reading(node="cores", memory_bytes=32 * GIB, available_bytes=20 * GIB)
    one = Gathered(num_ranks=1, readings=(cores,))
    assert alarms(one, Expected(words="a plan", host_bytes=16 * GIB)) == []
    assert alarms(one, Expected(words="a plan", host_bytes=24 * GIB)) == [(FAIL, "host memory", ("cores",))]


def test_a_part_that_could_not_be_read_and_a_silent_rank_are_findings():
    assert alarms(with_reading(healthy(1), failed={"disk": "Input/output error"})) == [(FAIL, "answer", ("node0",))]
    silent = Gathered(num_ranks=2, readings=(card_node(0),), silent={1: "node1"}, pairs_failed="not all ranks gave a reading")
    assert alarms(silent) == [(FAIL, "answer", ("node1",)), (WARN, "pairs", ())]


def test_of_two_clocks_rank_0s_is_taken_to_be_right_and_a_slow_answer_accuses_nobody():
    two = with_reading(healthy(2), clock_ahead_s=-3.0)
    assert alarms(two) == [(FAIL, "clock", ("node1",))]
    assert alarms(with_reading(healthy(2), clock_ahead_s=-3.0, clock_error_s=4.0)) == []
    assert alarms(with_reading(healthy(2), clock_ahead_s=0.3)) == [(WARN, "clock", ("node1",))]


def test_rank_0s_own_clock_is_found_where_others_agree():
    readings = tuple(replace(one, clock_ahead_s=0.0 if one.rank == 0 else -5.0) for one in healthy().readings)
    assert alarms(replace(healthy(), readings=readings)) == [(FAIL, "clock", ("node0",))]


def test_a_pair_that_never_finished_is_named():
    stuck = replace(healthy(), pairs=(), stuck=((1, 2),), pairs_failed="it took longer than 12 s")
    assert alarms(stuck) == [(FAIL, "pairs", ("node1",)), (FAIL, "pairs", ("node2",))]


def test_a_kernel_may_differ_with_a_warning_and_other_software_may_not():
    versions = card_node(0).versions
    assert alarms(with_reading(healthy(), versions={**versions, "kernel": "6.9.0"})) == [(WARN, "versions", ("node2",))]
    assert alarms(with_reading(healthy(), versions={**versions, "python": "3.11.2"})) == [(FAIL, "versions", ("node2",))]


def test_one_node_alone_has_versions_that_are_too_old_or_do_not_fit():
    versions = card_node(0).versions
    assert alarms(with_reading(healthy(1), versions={**versions, "torch": "2.5.1"})) == [(FAIL, "versions", ("node0",))]
    assert alarms(with_reading(healthy(1), versions={**versions, "torch's nccl": "2.30.4", "nccl": "2.21.5"})) == [
        (FAIL, "versions", ("node0",))
    ]
