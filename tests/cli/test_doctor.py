"""`meshwright doctor`: exit status, the list of bad nodes, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.cli import doctor as module
from meshwright.cli.main import main
from meshwright.describe.this_machine import CoreSpeed
from meshwright.doctor import node
from meshwright.doctor.host import DiskRates, HostMemory
from meshwright.record.bad_nodes import read_bad_nodes
from meshwright.say.vocabulary import problems


@pytest.fixture
def verb() -> str:
    return "doctor"


@pytest.fixture
def machine(monkeypatch, tmp_path) -> dict:
    """A node of two cores whose parts a test may change; the working folder is empty."""
    parts = {
        "gpu_names": list,
        "core_speed": lambda: CoreSpeed(flops_per_s=1e14, bytes_per_s=1e13),
        "memory": lambda: HostMemory(total_bytes=64e9, available_bytes=60e9),
        "ecc": lambda: None,
        "disk": lambda folder: DiskRates(folder=str(folder), write_bytes_per_s=1e9, read_bytes_per_s=2e9, free_bytes=1e12),
    }
    sources = node.Sources
    monkeypatch.setattr(node, "Sources", lambda **more: sources(**{**parts, **more}))
    monkeypatch.setattr(module.socket, "gethostname", lambda: "node-a")
    monkeypatch.setattr("meshwright.describe.this_machine.gpu_names", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return parts


def test_a_healthy_node_is_fit_and_nothing_is_written(machine, run, tmp_path):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "fit for a run" in out and "1 node, 1 rank" in out
    assert os.listdir(tmp_path) == []


def test_a_bad_node_has_exit_status_1_and_stays_on_the_list(machine, run, tmp_path):
    machine["disk"] = lambda folder: DiskRates(folder=str(folder), write_bytes_per_s=1e6, read_bytes_per_s=2e9, free_bytes=1e12)
    code, out, err = run("--bad-nodes", "bad.json")
    assert (code, err) == (1, "") and "node-a" in out and "bad.json" in out
    assert [(one.node, len(one.reasons)) for one in read_bad_nodes(tmp_path / "bad.json")] == [("node-a", 1)]
    machine["disk"] = lambda folder: DiskRates(folder=str(folder), write_bytes_per_s=1e9, read_bytes_per_s=2e9, free_bytes=1e12)
    code, out, err = run("--bad-nodes", "bad.json")
    assert code == 0 and "passes now" in " ".join(out.split())
    assert [one.node for one in read_bad_nodes(tmp_path / "bad.json")] == ["node-a"]


def test_json_follows_the_vocabulary(machine, run, tmp_path):
    machine["memory"] = lambda: HostMemory(total_bytes=64e9, available_bytes=1e9)
    code, out, _ = run("--json")
    printed = json.loads(out)
    assert code == 1 and problems(printed) == []
    assert printed["files"] == [{"what": "list of bad nodes", "path": "runs/bad-nodes.json"}]
    assert [one["node"] for one in printed["bad_nodes"]] == ["node-a"] and not printed["is_fit"]


def test_a_plan_for_gpus_fails_on_a_node_of_cores(machine, run, racks_plan):
    code, out, _ = run(str(racks_plan))
    assert code == 1 and "needs 4 gb200 on a node, and this one has 0 GPUs" in " ".join(out.split())


def test_a_reading_that_fails_is_a_finding(machine, run):
    def broken(folder):
        raise OSError("Input/output error")

    machine["disk"] = broken
    code, out, _ = run()
    assert code == 1 and "disk could not be read: Input/output error" in " ".join(out.split())


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("missing.json",), "cannot read the plan"),
        (("--bad-nodes", "list.csv"), "the list of bad nodes is written as .json"),
        (("--bad-nodes", "."), "cannot read"),
    ],
)
def test_wrong_input_is_refused(machine, run, arguments, words):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and words in err


def test_a_damaged_list_is_refused_before_anything_is_measured(machine, run, tmp_path):
    (tmp_path / "bad.json").write_text("not JSON")
    machine["disk"] = lambda folder: pytest.fail("the disk was timed")
    code, _, err = run("--bad-nodes", "bad.json")
    assert code == 2 and "not a list of bad nodes" in err


TWO_CARDS = """#!/bin/sh
case "$*" in
  *query-compute-apps*) ;;
  *query-gpu=name*) printf 'NVIDIA H200\\nNVIDIA H200\\n' ;;
  *) {answer} ;;
esac
"""
ANSWER = "echo '0, NVIDIA H200, 580.65.06, 143771, 41500, 700.00, 0, No, No, 345, 1980, 0x1'"


def two_cards(folder: Path, answer: str) -> dict[str, str]:
    """An environment in which nvidia-smi tells of two GPUs that torch cannot use."""
    (folder / "bin").mkdir()
    tool = folder / "bin" / "nvidia-smi"
    tool.write_text(TWO_CARDS.format(answer=answer))
    tool.chmod(0o755)
    hidden = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**hidden, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def test_a_rank_for_each_gpu_and_gpus_that_torch_cannot_use_are_findings(tmp_path):
    command = [sys.executable, "-m", "meshwright", "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=two_cards(tmp_path, ANSWER), capture_output=True, text=True, timeout=120)
    printed = json.loads(done.stdout)
    assert (done.returncode, done.stderr, printed["num_ranks"]) == (1, "", 2)
    failed = {(one["check"], *one["ranks"]) for one in printed["diagnoses"] if one["level"] == "fail"}
    assert {("answer", 0), ("answer", 1), ("GPU memory", 0), ("GPU memory", 1)} <= failed
    assert len(printed["bad_nodes"]) == 1


def test_a_plan_on_cores_does_not_care_about_gpus(tmp_path):
    layout = ["--layout", "tp=2,pp=2,dp=2,mbs=4", "--no-explain", "--out", str(tmp_path / "cores.json")]
    assert main(["plan", "llama-2m", "this-machine-2x4", "python-stdlib", *layout]) == 0
    command = [sys.executable, "-m", "meshwright", "doctor", "cores.json", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=two_cards(tmp_path, "exit 1"), capture_output=True, text=True, timeout=120)
    printed = json.loads(done.stdout)
    assert printed["num_ranks"] == 1 and printed["node_readings"][0]["num_gpus"] == 0
    assert printed["node_readings"][0]["product_flops_per_s"] > 0 and printed["node_readings"][0]["failed_readings"] == {}


def test_a_rank_that_dies_is_a_finding(tmp_path):
    """The tool kills whoever asks it about the second GPU: the rank, as a broken driver might."""
    answer = f'case "$*" in *--id=1*) kill -9 $PPID ;; *) {ANSWER} ;; esac'
    command = [sys.executable, "-m", "meshwright", "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=two_cards(tmp_path, answer), capture_output=True, text=True, timeout=120)
    printed = json.loads(done.stdout)
    assert done.returncode == 1 and "rank 1 was killed" in done.stderr
    assert [one["ranks"] for one in printed["diagnoses"] if one["level"] == "fail"] == [[1]] and len(printed["bad_nodes"]) == 1


def test_an_interrupt_ends_all_ranks(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", "doctor"],
        cwd=tmp_path,
        env=two_cards(tmp_path, "touch asked; exec sleep 8"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until_s = time.monotonic() + 60.0
    while not (tmp_path / "asked").exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "meshwright: interrupted\n")
    assert sorted(os.listdir(tmp_path)) == ["asked", "bin"]


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", "doctor"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(3.0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT, 0)  # 0: it was done already
    assert os.listdir(tmp_path) == []


def test_the_help_has_examples(capsys):
    assert main(["doctor", "--help"]) == 0
    assert "meshwright doctor plan.json" in capsys.readouterr().out
