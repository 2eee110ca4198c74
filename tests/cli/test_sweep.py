"""`meshwright sweep`: scaling for people and programs."""

import json

import pytest

from meshwright.cli.main import main

SMALL = ("llama-3.2-1b", "dgx-h100-superpod", "pretrain-1t", "--batch", "32", "--seq", "2048")
RECORD = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", "--layout", "tp=4,cp=2,pp=8,schedule=interleaved,cp_kind=ring")


def test_json_holds_a_point_per_size(capsys):
    assert main(["sweep", *SMALL, "--gpus", "16,8", "--mode", "strong", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(point["num_accelerators"], point["global_batch"]) for point in said["points"]] == [(8, 32), (16, 32)]
    first, second = said["points"]
    assert second["efficiency"] == pytest.approx(first["step_time_s"] / second["step_time_s"] / 2)
    assert second["efficiency_low"] < second["efficiency"] < second["efficiency_high"] and first["low_s"] < first["high_s"]


def test_the_claim_of_the_record_machine_is_put_in_its_place(capsys):
    assert main(["sweep", *RECORD, "--gpus", "7168,8192"]) == 0
    out = capsys.readouterr().out
    assert "weak scaling: the batch grows with the machine" in out and "reference" in out
    assert "a pair of runs cannot show it" in " ".join(out.split())


@pytest.mark.parametrize("gpus", ["", "a,b", "0,8", "-8"])
def test_bad_sizes_are_refused(capsys, gpus):
    assert main(["sweep", *SMALL, "--gpus", gpus]) == 2
    assert "cannot read numbers of accelerators" in capsys.readouterr().err
