"""`meshwright sweep`: scaling for people and programs."""

import json
from pathlib import Path

import pytest

from meshwright.cli.main import main

SMALL = ("llama-3.2-1b", "dgx-h100-superpod", str(Path(__file__).parents[1] / "fixtures" / "small_batches.toml"))
RECORD = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", "--layout", "tp=4,cp=2,pp=8,schedule=interleaved,cp_kind=ring")


def test_json_holds_a_point_per_size(capsys):
    assert main(["sweep", *SMALL, "--gpus", "16,8", "--mode", "strong", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(point["num_accelerators"], point["global_batch"]) for point in document["points"]] == [(8, 32), (16, 32)]
    first, second = document["points"]
    assert second["efficiency"] == pytest.approx(first["step_s"] / second["step_s"] / 2)
    assert second["efficiency_low"] < second["efficiency"] < second["efficiency_high"] and first["low_s"] < first["high_s"]


def test_the_claim_of_the_record_machine_is_put_in_its_place(capsys):
    assert main(["sweep", *RECORD, "--gpus", "7168,8192"]) == 0
    out = capsys.readouterr().out
    assert "weak scaling: the batch grows with the machine" in out and "reference" in out
    assert "a pair of runs cannot show it" in " ".join(out.split())


def test_the_layout_printed_is_the_layout_priced(capsys):
    assert main(["sweep", *SMALL, "--gpus", "16", "--json"]) == 0
    step_s = json.loads(capsys.readouterr().out)["points"][0]["step_s"]
    assert main(["sweep", *SMALL, "--gpus", "16"]) == 0
    layout = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("     16  tp=")).split()[1]
    assert main(["predict", *SMALL, "--gpus", "16", "--json", "--layout", layout]) == 0
    assert json.loads(capsys.readouterr().out)["step_s"] == step_s


def test_batches_that_nobody_trained_with_cost_at_least_so_much(capsys):
    assert main(["sweep", *RECORD, "--gpus", "8192,16384"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("at least $") == 1 and "at 2,048 they are unknown" in out
    assert main(["sweep", *RECORD, "--gpus", "8192,16384", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [point["is_lower_bound"] for point in document["points"]] == [False, True]
    assert document["points"][1]["measured_batches"] == [896, 1152] and len(document["notes"]) == 2
    described, batches = document["notes"]
    assert "16,384 accelerators are more than the 9,216 described" in described and "at 2,048 they are unknown" in batches


@pytest.mark.parametrize(
    "gpus, fault",
    [
        ("", "cannot read numbers of accelerators"),
        ("a,b", "cannot read numbers of accelerators"),
        ("0,8", "0 accelerators cannot train"),
        ("-8", "-8 accelerators cannot train"),
    ],
)
def test_bad_sizes_are_refused(capsys, gpus, fault):
    assert main(["sweep", *SMALL, "--gpus", gpus]) == 2
    assert fault in capsys.readouterr().err


def test_sizes_that_do_not_spread_or_are_not_described_are_remarked_on(capsys):
    assert main(["sweep", *SMALL, "--gpus", "8,9", "--mode", "strong"]) == 0
    assert "9 accelerators do not spread evenly over nodes of 8" in " ".join(capsys.readouterr().out.split())
    assert main(["sweep", *SMALL, "--gpus", "8,2048", "--set", "workload.global_batch=2048", "--mode", "strong"]) == 0
    assert "2,048 accelerators are more than the 1,024 described" in " ".join(capsys.readouterr().out.split())
