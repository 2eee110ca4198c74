"""What-if: each key changes one thing, and an unknown one is answered with the nearest."""

from dataclasses import replace

import pytest

from meshwright.describe.load import load_cluster, load_workload
from meshwright.describe.whatif import changed, known_keys, using
from meshwright.errors import InputError

RECORD, JOB = load_cluster("azure-gb200-128"), load_workload("mlperf-llama31-405b")


def fabric(*assignments):
    return changed(RECORD, JOB, assignments)[0].tiers[-1]


def test_planes_scale_the_bandwidth():
    assert fabric("fabric.planes=7").bytes_per_s == pytest.approx(RECORD.tiers[-1].bytes_per_s * 7 / 8)


def test_bandwidth_and_latency_take_their_units():
    assert fabric("fabric.GB_per_s=200").bytes_per_s == 200e9
    assert fabric("fabric.Gbit_per_s=400").bytes_per_s == 50e9
    assert fabric("fabric.latency_us=7").latency_s == pytest.approx(7e-6)


def test_gpus_come_last_whatever_their_place():
    machine, _ = changed(RECORD, JOB, ["gpus=7168", "fabric.planes=7"])
    assert machine.num_accelerators == 7168 and machine.tiers[0].num_accelerators == 64


def test_a_domain_used_whole_keeps_the_number_of_domains():
    machine, _ = changed(RECORD, JOB, ["rack.num_accelerators=72"])
    assert (machine.tiers[0].num_accelerators, machine.num_accelerators) == (72, 128 * 72)
    assert using(RECORD, 0, 32).num_accelerators == 128 * 32


def test_the_chip_and_the_job_change():
    machine, workload = changed(
        RECORD,
        JOB,
        ["accelerator.memory_GB=100", "accelerator.dense_TFLOP_per_s.fp4=5000", "accelerator.power_cap_W=900", "workload.global_batch=512",
         "workload.precision=mxfp8", "workload.num_tokens=1e12"],
    )  # fmt: skip
    chip = machine.accelerator
    assert (chip.memory_bytes, chip.dense_flops_per_s["fp4"], chip.power_cap_w) == (100e9, 5e15, 900.0)
    assert (workload.global_batch, workload.precision, workload.num_tokens, workload.convergence) == (512, "mxfp8", 1e12, None)


def test_every_known_key_can_be_set():
    values = {
        "workload.precision": "bf16",
        "workload.attention_precision": "bf16",
        "workload.expert_imbalance": "1.5",
        "fabric.num_accelerators": "4096",
        "gpus": "512",
        "rack.routing": "hashed",
        "fabric.routing": "hashed",
    }
    already = {"rack.planes", "workload.attention_precision"}  # one plane, bf16: setting them changes nothing
    for key in set(known_keys(RECORD)) - already:
        assert changed(RECORD, JOB, [f"{key}={values.get(key, '1')}"]) != (RECORD, JOB), key


@pytest.mark.parametrize(
    "text, what, fix",
    [
        ("fabric.plans=7", "no value 'fabric.plans' can be set", "did you mean fabric.planes"),
        ("rack.num_accelerators=80", "a rack has 72 accelerators, fewer than 80", "use at most 72"),
        ("fabric.planes=9", "fabric has 8 planes, so 9 cannot be up", "choose from 1 to 8"),
        ("gpus=1.5", "gpus is 1.5, not a whole number", "gpus=1024"),
        ("gpus", "cannot read 'gpus'", "KEY=VALUE"),
        ("fabric.GB_per_s=fast", "not a number", "fabric.GB_per_s=100"),
        ("fabric.GB_per_s=-1", "not a number from 1e-24 to 1e+24", "fabric.GB_per_s=100"),
        ("fabric.GB_per_s=nan", "not a number from 1e-24 to 1e+24", "fabric.GB_per_s=100"),
        ("fabric.GB_per_s=1e-300", "not a number from 1e-24 to 1e+24", "fabric.GB_per_s=100"),
        ("model.layers=3", "'model.layers' cannot be set", "a TOML file of your own, with another num_layers, and give that file"),
        ("model=x", "'model' cannot be set", "a TOML file of your own, and give"),
        ("workload.planes=3", "no value 'workload.planes' can be set", "did you mean workload."),
        ("workload.precision=fp9", "no precision named 'fp9'", "fp8"),
    ],
)
def test_bad_input_is_one_clear_message(text, what, fix):
    with pytest.raises(InputError) as raised:
        changed(RECORD, JOB, [text])
    assert what in raised.value.what and fix in raised.value.fix and "changes" in raised.value.where


def test_a_value_set_twice_is_refused():
    with pytest.raises(InputError, match=r"fabric\.planes is set twice"):
        changed(RECORD, JOB, ["fabric.planes=7", "fabric.planes=6"])


def test_part_of_a_domain_of_several_tiers_keeps_its_nodes_even():
    tier = load_cluster("dgx-h100-superpod").tiers[0]
    tiers = (
        tier,
        replace(tier, name="rack", num_accelerators=64, num_installed=64),
        replace(tier, name="hall", num_accelerators=512, num_installed=512),
    )
    machine = replace(load_cluster("dgx-h100-superpod"), tiers=tiers)
    assert [t.num_accelerators for t in using(machine, 1, 36)] == [6, 36, 288]
    with pytest.raises(InputError, match="37 accelerators do not spread evenly over nodes of 8"):
        using(machine, 1, 37)
