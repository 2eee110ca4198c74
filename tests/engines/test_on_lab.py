"""Jobs on a real Slurm and by real ssh, on the hosts of a lab: needs root and Debian's packages."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from meshwright.errors import MeshwrightError
from meshwright.lab import system
from meshwright.lab.nodes import ACCOUNTING_TOOLS, SLURM_TOOLS, SSH_TOOLS

spec = importlib.util.spec_from_file_location("on_lab", Path(__file__).parents[1] / "lab" / "on_lab.py")
assert spec and spec.loader
on_lab = importlib.util.module_from_spec(spec)
spec.loader.exec_module(on_lab)
SMALL = ("llama-2m", "python-stdlib", "--set", "workload.global_batch=4")


@pytest.fixture(scope="module")
def needs_root():
    try:
        system.check_able()
    except MeshwrightError as error:
        pytest.skip(f"no lab can be made here: {error.what}")


@pytest.fixture(scope="module")
def lab(needs_root):
    """Two racks of two hosts with one rank each, with Slurm and ssh."""
    on_lab.needs({**SLURM_TOOLS, **SSH_TOOLS})
    with on_lab.made("j", "--ranks", "1", "--slurm", "--ssh", "--uplink", "1gbit") as made:
        yield made


def planned(lab, folder: Path, layout: str, *options: str) -> Path:
    """A plan for the lab."""
    path = folder / "plan.json"
    model, workload, *changes = SMALL
    words = ("plan", model, str(lab.description), workload, *changes, "--layout", layout, "--no-explain", "--out", str(path), *options)
    done = lab.call(*words)
    assert done.returncode == 0, done.stderr
    return path


def test_a_job_on_slurm_is_placed_by_its_racks_followed_and_recorded(lab, tmp_path):
    plan = planned(lab, tmp_path, "pp=2,dp=2,mbs=1")
    done = lab.launch(plan, "--on", "slurm", "--name", "first", "--follow", options=["--steps", "2"])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "4 nodes in 2 racks (rack0, rack1): r0h[0-1],r1h[0-1]" in done.stdout
    assert "the job is done: step 2 of 2" in done.stdout
    ranks = (tmp_path / "jobs" / "first" / "ranks.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in ranks[1:]] == ["r0h0", "r0h1", "r1h0", "r1h1"]
    assert len((tmp_path / "runs" / "first" / "steps.jsonl").read_text().splitlines()) == 2


def test_a_job_by_ssh_runs_on_the_hosts_and_is_recorded(lab, tmp_path):
    plan = planned(lab, tmp_path, "dp=2,mbs=1", "--gpus", "2")
    done = lab.launch(plan, "--on", "ssh", "--name", "by-ssh", options=["--steps", "2"])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "running on 2 nodes: r0h[0-1]" in done.stdout and "the job is done: step 2 of 2" in done.stdout
    refused = lab.launch(plan, "--on", "ssh", "--nodes", "r0h0,nowhere", "--name", "lost", options=["--steps", "2"])
    assert refused.returncode == 2 and "nowhere cannot be reached by ssh" in refused.stderr


def test_what_slurm_could_never_run_is_refused_and_nothing_is_queued(lab, tmp_path):
    plan = planned(lab, tmp_path, "pp=2,dp=2,mbs=1")
    site = tmp_path / "site.toml"
    text = lab.folder.site.read_text()
    for changed, said in (
        (text.replace(f'partition = "{lab.name}"', 'partition = "gold"'), "Slurm has no partition 'gold'"),
        (text.replace("gpu:1", "gpu:8"), "0 of the 4 nodes of partition"),
        (text.replace("[slurm]", '[slurm]\nreservation = "none"'), "the reservation does not exist"),
    ):
        site.write_text(changed)
        words = ("meshwright", "launch", str(plan), "--on", "slurm", "--site", str(site), "--name", "bad", "--follow")
        done = lab.on_login(*words, cwd=tmp_path)
        assert (done.returncode, said in done.stderr, done.stderr.count("meshwright:")) == (2, True, 1), done.stderr
    refused = lab.launch(plan, "--on", "slurm", "--spares", "3", "--name", "many")
    assert refused.returncode == 2 and "has 4 nodes, and the job asks for 7 (4 and 3 to spare)" in refused.stderr
    assert lab.on_login("squeue", "--noheader").stdout == ""


def test_a_job_that_never_starts_is_given_up_and_cancelled(lab, tmp_path):
    plan = planned(lab, tmp_path, "pp=2,dp=2,mbs=1")
    held = lab.on_login("sbatch", "--parsable", "--exclusive", "--nodes=4", "--output=/dev/null", "--wrap", "sleep 60")
    done = lab.launch(plan, "--on", "slurm", "--name", "late", "--give-up-after", "2", options=["--steps", "2"])
    assert done.returncode == 2 and "the job did not start within 2 s, and was cancelled" in done.stderr
    assert lab.on_login("squeue", "--noheader", "--format=%i").stdout.split() == [held.stdout.strip()]
    lab.on_login("scancel", held.stdout.strip())


def test_a_job_that_is_cancelled_from_outside_is_said_to_be(lab, tmp_path):
    plan = planned(lab, tmp_path, "dp=2,mbs=1", "--gpus", "2")
    with ThreadPoolExecutor(1) as pool:
        words = ("--on", "slurm", "--name", "gone", "--follow")
        following = pool.submit(lab.launch, plan, *words, options=["--steps", "2000"])
        until_s = time.monotonic() + 90
        running: list[str] = []
        while not running and time.monotonic() < until_s:
            time.sleep(0.5)
            running = lab.on_login("squeue", "--noheader", "--states=RUNNING", "--format=%i").stdout.split()
        time.sleep(3)  # so that the job is seen to run
        lab.on_login("scancel", *running)
        done = following.result()
    assert done.returncode == 1 and "the job was cancelled from outside" in done.stderr


DEATH = ["--steps", "40", "--checkpoint-every", "5"]


def awaited_steps(steps: Path, count: int) -> None:
    until_s = time.monotonic() + 180
    while not steps.exists() or len(steps.read_text().splitlines()) < count:
        assert time.monotonic() < until_s, "the run makes no steps"
        time.sleep(0.5)


@pytest.mark.long
def test_a_job_whose_first_node_dies_is_requeued_elsewhere_and_resumes(lab, tmp_path):
    plan = planned(lab, tmp_path, "dp=2,mbs=1", "--gpus", "2")
    steps = tmp_path / "runs" / "death" / "steps.jsonl"
    submitted = lab.launch(plan, "--on", "slurm", "--name", "death", options=DEATH)
    assert submitted.returncode == 0, submitted.stderr
    awaited_steps(steps, 12)
    rack = lab.on_login("squeue", "--noheader", "--format=%N").stdout.strip()[:2]
    assert lab.call("lab", "host", f"{rack}h0", "--down", "--name", lab.name).returncode == 0
    done = lab.launch(plan, "--on", "slurm", "--name", "death", "--follow", options=DEATH)
    lab.call("lab", "host", f"{rack}h0", "--up", "--name", lab.name)
    assert done.returncode == 0, done.stderr + done.stdout
    other = {"r0": "r1", "r1": "r0"}[rack]
    assert f"running on 2 nodes: {other}h[0-1]" in done.stdout
    numbers = [json.loads(line)["step"] for line in steps.read_text().splitlines()]
    assert max(numbers) == 40 and set(range(1, 41)) <= set(numbers)
    assert f"2 nodes in 1 rack (rack{other[1]})" in done.stdout


@pytest.mark.long
def test_a_job_goes_on_without_a_node_that_dies_and_one_more_node_takes_its_place(lab, tmp_path):
    plan = planned(lab, tmp_path, "dp=2,zero=1,mbs=1", "--gpus", "2")
    run = tmp_path / "runs" / "alone"

    def events(kind: str) -> list[dict[str, Any]]:
        lines = (run / "events.jsonl").read_text().splitlines() if (run / "events.jsonl").exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def awaited(kind: str, reason: str) -> None:
        until_s = time.monotonic() + 180
        while not [event for event in events(kind) if event["reason"] == reason]:
            assert time.monotonic() < until_s, events(kind)
            time.sleep(0.2)

    submitted = lab.launch(plan, "--on", "slurm", "--name", "alone", options=["--steps", "4000"])
    assert submitted.returncode == 0, submitted.stderr
    awaited_steps(run / "steps.jsonl", 5)
    rack = lab.on_login("squeue", "--noheader", "--format=%N").stdout.strip()[:2]
    assert lab.call("lab", "host", f"{rack}h1", "--down", "--name", lab.name).returncode == 0
    awaited("incident", "node")
    added = lab.on_login("sbatch", "--parsable", str(tmp_path / "jobs" / "alone" / "spare.sbatch"))
    assert added.returncode == 0, added.stderr
    awaited("membership", "joined")
    lab.call("lab", "host", f"{rack}h1", "--up", "--name", lab.name)
    lab.on_login("scancel", "--name=alone")
    until_s = time.monotonic() + 90
    while lab.on_login("squeue", "--noheader").stdout and time.monotonic() < until_s:
        time.sleep(0.5)
    (incident,) = events("incident")
    assert incident["action"] == "went on with 1 of 2 replicas" and incident["num_lost_steps"] <= 1
    last = json.loads((run / "steps.jsonl").read_text().splitlines()[-1])["step"]
    assert (run / "checkpoints" / f"step-{last:08d}").is_dir()  # it was saved when it was cancelled
    assert lab.on_login("squeue", "--noheader").stdout == ""  # the node that was added has ended with the run
    assert " Restarts=0 " in lab.on_login("scontrol", "show", "job", submitted.stdout.split()[-1]).stdout


@pytest.mark.long
def test_a_job_whose_nodes_are_taken_by_an_urgent_one_is_queued_again_and_resumes(lab, tmp_path):
    plan = planned(lab, tmp_path, "pp=2,dp=2,mbs=1")
    steps = tmp_path / "runs" / "pushed" / "steps.jsonl"
    submitted = lab.launch(plan, "--on", "slurm", "--name", "pushed", options=DEATH)
    assert submitted.returncode == 0, submitted.stderr
    awaited_steps(steps, 7)
    urgent = lab.on_login(
        "sbatch", "--parsable", "--partition=urgent", "--exclusive", "--nodes=4", "--output=/dev/null", "--wrap", "sleep 5"
    )
    assert urgent.returncode == 0, urgent.stderr
    done = lab.launch(plan, "--on", "slurm", "--name", "pushed", "--follow", options=DEATH)
    assert done.returncode == 0, done.stderr + done.stdout
    jobs = lab.on_login("scontrol", "show", "job").stdout
    assert "JobName=pushed" in jobs and " Restarts=1 " in jobs.partition("JobName=pushed")[2].partition("JobId=")[0]
    numbers = [json.loads(line)["step"] for line in steps.read_text().splitlines()]
    assert max(numbers) == 40 and set(range(1, 41)) <= set(numbers)


@pytest.mark.long
def test_a_job_by_ssh_goes_on_without_a_host_that_loses_its_power_and_takes_it_back(needs_root, tmp_path):
    on_lab.needs(SSH_TOOLS)
    run = tmp_path / "runs" / "power"

    def events(kind: str) -> list[dict[str, Any]]:
        lines = (run / "events.jsonl").read_text().splitlines() if (run / "events.jsonl").exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def awaited(met: Callable[[], object]) -> None:
        until_s = time.monotonic() + 180
        while not met():
            assert time.monotonic() < until_s and job.is_alive(), events("membership")
            time.sleep(0.1)

    with on_lab.made("p", "--racks", "1", "--ranks", "1", "--ssh") as lab:
        plan = planned(lab, tmp_path, "dp=2,zero=1,mbs=1", "--gpus", "2")
        ended: list[subprocess.CompletedProcess[str]] = []
        job = Thread(target=lambda: ended.append(lab.launch(plan, "--on", "ssh", "--name", "power", options=["--steps", "150"])))
        job.start()
        awaited(lambda: (run / "steps.jsonl").exists() and len((run / "steps.jsonl").read_text().splitlines()) >= 5)
        assert lab.call("lab", "host", "r0h1", "--down", "--name", lab.name).returncode == 0
        awaited(lambda: events("incident"))
        assert lab.call("lab", "host", "r0h1", "--up", "--name", lab.name).returncode == 0
        awaited(lambda: events("membership")[-1]["reason"] == "joined")
        job.join()
    assert ended[0].returncode == 0, ended[0].stderr + ended[0].stdout
    (incident,) = events("incident")
    assert (incident["reason"], incident["action"]) == ("node", "went on with 1 of 2 replicas") and incident["num_lost_steps"] <= 1


@pytest.mark.long
def test_a_job_is_planned_again_for_racks_of_another_shape(needs_root, lab, tmp_path):
    plan = planned(lab, tmp_path, "pp=2,dp=2,mbs=1")
    with on_lab.made("w", "--hosts", "3", "--ranks", "1", "--slurm", "--uplink", "1gbit") as wide:
        words = ("--on", "slurm", "--name", "again", "--follow", "--nodes", "r0h[0-2],r1h0")
        done = wide.launch(plan, *words, options=["--steps", "2"])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "planned again, because 4 nodes were allocated in racks of 3, 1" in done.stdout
    assert "the job is done: step 2 of 2" in done.stdout


@pytest.mark.long
def test_accounts_know_a_job_and_refuse_an_account_that_does_not_exist(needs_root, tmp_path):
    on_lab.needs({**SLURM_TOOLS, **ACCOUNTING_TOOLS})
    with on_lab.made("a", "--ranks", "1", "--slurm", "--accounting", "--uplink", "1gbit") as lab:
        plan = planned(lab, tmp_path, "dp=2,mbs=1", "--gpus", "2")
        done = lab.launch(plan, "--on", "slurm", "--name", "counted", "--follow", options=["--steps", "2"])
        assert done.returncode == 0, done.stderr + done.stdout
        kept = lab.on_login("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobName,State,NNodes").stdout
        assert "counted|COMPLETED|2" in kept.splitlines()
        site = tmp_path / "site.toml"
        site.write_text(lab.folder.site.read_text().replace("[slurm]", '[slurm]\naccount = "nobody"'))
        words = ("meshwright", "launch", str(plan), "--on", "slurm", "--site", str(site), "--name", "refused")
        refused = lab.on_login(*words, cwd=tmp_path)
    assert refused.returncode == 2 and "Slurm refused the job: this user may not use the account" in refused.stderr


def test_nothing_of_a_lab_with_slurm_is_left(needs_root):
    on_lab.needs(SLURM_TOOLS)
    with on_lab.made("g", "--racks", "1", "--hosts", "1", "--ranks", "1", "--slurm") as lab:
        folder, prefix = lab.folder.path, f"mw-{lab.name}-"
        running = {pid for name in system.namespaces(prefix) for pid in system.processes(name)}
    assert running and system.namespaces(prefix) == [] and not folder.exists()
    until_s = time.monotonic() + 10  # the system's first process may take a moment to forget those that it adopted
    while any(os.path.exists(f"/proc/{pid}") for pid in running) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not [pid for pid in running if os.path.exists(f"/proc/{pid}")]
