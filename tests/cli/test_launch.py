"""`meshwright launch`: its files, its examples, and what it refuses."""

from __future__ import annotations

import pytest

from meshwright.job import Job
from meshwright.plan.plan import plan_of


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    job = Job("llama-3.1-8b", "gb200-nvl72-ndr", "mlperf-llama31-8b", gpus=128, changes=("workload.precision=bf16",))
    plan_of(job.forecast("tp=4,dp=32,mbs=1"), "racks").write(path)
    return str(path)


@pytest.fixture
def verb():
    return "launch"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_prints_the_files_and_writes_none(run, plan, tmp_path):
    code, out, err = run(plan, "--on", "slurm", "--name", "a", "--dry-run", "--", "--steps", "5")
    assert (code, err) == (0, "") and list(tmp_path.iterdir()) == []
    assert out.startswith("==> job.sbatch <==\n#!/bin/bash\n") and "#SBATCH --nodes=36\n" in out  # with the idle nodes of two racks
    assert f"--name a --runs {tmp_path}/runs --resume-if-exists --secret {tmp_path}/jobs/a/secret --steps 5 --keep-going " in out


def test_spares_are_as_many_as_asked_for(run, plan):
    assert "--nodes=32\n" in run(plan, "--on", "slurm", "--dry-run", "--spares", "0")[1]
    code, _, err = run(plan, "--on", "ssh", "--nodes", "n[0-31]", "--spares", "1", "--dry-run")
    assert code == 2 and "ssh has no spare nodes to ask for" in err


def test_ssh_takes_its_hosts_from_the_command_or_the_site(run, plan, tmp_path):
    (tmp_path / "site.toml").write_text('[ssh]\nhosts = ["m[0-31]"]')
    assert "BatchMode=yes n31 " in run(plan, "--on", "ssh", "--nodes", "n[0-31]", "--dry-run")[1]
    assert "BatchMode=yes m31 " in run(plan, "--on", "ssh", "--site", "site.toml", "--dry-run")[1]
    (tmp_path / "site.toml").write_text('racks = { a = "a[0-15]", b = "b[0-15]" }')
    assert "BatchMode=yes b15 " in run(plan, "--on", "ssh", "--site", "site.toml", "--dry-run")[1]


def test_paths_are_below_the_folder_that_the_nodes_share(run, plan, tmp_path):
    (tmp_path / "site.toml").write_text('workdir = "/shared/me"')
    out = run(plan, "--on", "slurm", "--site", "site.toml", "--name", "a", "--dry-run")[1]
    assert "#SBATCH --chdir=/shared/me\n" in out and "--place /shared/me/jobs/a" in out and "--runs /shared/me/runs" in out


@pytest.mark.parametrize("engine", ["slurm", "kubernetes", "ssh", "local"])
def test_an_example_site_file_is_printed(run, engine):
    code, out, err = run("--example", engine)
    assert (code, err) == (0, "") and out.startswith(f"# A site file for meshwright launch --on {engine}.")


@pytest.mark.parametrize(
    "arguments, what, fix",
    [
        ([], "no plan to launch", "meshwright plan"),
        (["--example", "slurn"], "no engine is called 'slurn'", "did you mean slurm?"),
        (["PLAN", "--on", "pbs"], "no engine is called 'pbs'", "use one of kubernetes, local, slurm, ssh"),
        (["none.json"], "cannot read the plan", "meshwright plan"),
        (["PLAN", "--dry-run", "--", "--stepz", "1"], "no option --stepz", "did you mean --steps?"),
        (["PLAN", "--dry-run", "--", "--steps", "x"], "--steps is 'x'", "give a whole number"),
        (["PLAN", "--dry-run", "--", "--name=b"], "--name is given by launch itself", "before the --"),
        (["PLAN", "--on", "ssh", "--nodes", "a;b"], "'a;b' is no name of a host", "write names"),
        (["PLAN", "--on", "ssh", "--nodes", "a,b"], "the plan needs 32 nodes, and 2 are named", "name 32 hosts"),
        (["PLAN", "--name", "../x"], "the run name '../x'", "no slash"),
        (["PLAN", "--site", "no.toml"], "cannot read the site file", "give the path"),
    ],
)
def test_what_cannot_be_launched_is_refused(run, plan, arguments, what, fix):
    code, out, err = run(*(plan if word == "PLAN" else word for word in arguments))
    assert (code, out) == (2, "") and err.startswith(f"meshwright: {what}") and fix in err


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A Slurm of 40 nodes whose commands are scripts; the job waits, runs, and is done."""
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "nodes").write_text("".join(f"low|n{i:02}|gpu:4\n" for i in range(40)))
    (fake / "states").write_text("PENDING|Priority|low|\nRUNNING|None|low|n[00-31]\nCOMPLETED|None|low|n[00-31]\n")
    bodies = {
        "sinfo": "cat nodes",
        "sbatch": "echo 17",
        "scancel": "echo $1 > cancelled; echo 'CANCELLED|None|low|' > states",
        "squeue": 'case "$*" in *PENDING*) echo 17;; *) head -n 1 states; [ $(wc -l < states) -gt 1 ] && sed -i 1d states; true;; esac',
    }
    for name, body in bodies.items():
        (fake / name).write_text(f"#!/bin/bash\ncd {fake}\n{body}\n")
        (fake / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:/usr/bin:/bin")
    monkeypatch.setattr("meshwright.engines.follow.sleep", lambda seconds: None)
    return fake


def test_a_job_is_submitted_and_its_number_printed(run, plan, slurm, tmp_path):
    code, out, err = run(plan, "--on", "slurm", "--name", "a")
    assert (code, out) == (0, "17\n") and err.startswith("meshwright: submitted to slurm as job 17; its files are in ")
    assert (tmp_path / "jobs" / "a" / "job.sbatch").is_file()


def test_a_job_is_followed_to_its_end(run, plan, slurm):
    code, out, _ = run(plan, "--on", "slurm", "--name", "a", "--follow")
    assert code == 0
    assert out.splitlines() == [
        "number 1 of 1 in the queue: PENDING (Priority)",
        "running on 32 nodes: n[00-31]",
        "the job is done: no step yet",
    ]


def test_a_job_under_way_is_not_submitted_twice_but_followed(run, plan, slurm):
    assert run(plan, "--on", "slurm", "--name", "a")[0] == 0
    code, _, err = run(plan, "--on", "slurm", "--name", "a")
    assert code == 2 and "the job a is under way already, as 17" in err
    code, out, err = run(plan, "--on", "slurm", "--name", "a", "--follow")
    assert (code, err) == (0, "") and "the job is done" in out


def test_a_job_that_never_starts_is_cancelled(run, plan, slurm):
    (slurm / "states").write_text("PENDING|Resources|low|\n")
    code, _, err = run(plan, "--on", "slurm", "--name", "a", "--give-up-after", "0")
    assert code == 2 and "the job did not start within 0 s, and was cancelled" in err
    assert (slurm / "cancelled").read_text() == "17\n"


@pytest.mark.parametrize("cancels", [True, False])
def test_ctrl_c_leaves_the_job_or_cancels_it_as_asked(run, plan, slurm, monkeypatch, cancels):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.engines.follow.sleep", interrupt)
    code, _, err = run(plan, "--on", "slurm", "--name", "a", "--follow", *(["--cancel-on-interrupt"] if cancels else []))
    assert code == 130 and (slurm / "cancelled").exists() is cancels
    assert ("job 17 was cancelled" if cancels else "job 17 goes on; end it with: scancel 17") in err


def test_a_job_that_fails_is_a_failure(run, plan, slurm):
    (slurm / "states").write_text("NODE_FAIL|None|low|\n")
    code, out, err = run(plan, "--on", "slurm", "--name", "a", "--follow")
    assert (code, out) == (1, "") and "the job failed: NODE_FAIL; no step yet" in err


def test_a_real_job_on_this_machine(run, tmp_path):
    """Two ranks train three steps, and are followed."""
    path = tmp_path / "plan.json"
    job = Job("llama-2m", "this-machine-2x4", "python-stdlib", gpus=2, profile="none", changes=("workload.global_batch=4",))
    plan_of(job.forecast("dp=2,mbs=2"), "two").write(path)
    code, out, err = run(str(path), "--name", "real", "--", "--steps", "3", "--no-save")
    assert code == 0, err + (tmp_path / "jobs" / "real" / "output.log").read_text()
    assert out.splitlines()[0] == "running" and "the job is done: step 3 of 3, loss " in out.splitlines()[-1]
    assert (tmp_path / "runs" / "real" / "run.json").is_file()


def test_inside_a_job_ranks_are_placed(run, plan, slurm, tmp_path):
    assert run(plan, "--on", "slurm", "--name", "a")[0] == 0
    (tmp_path / "jobs" / "a" / "allocated").write_text("\n".join(f"n{i:02}" for i in range(36)))
    code, out, err = run("--place", "jobs/a")
    assert (code, err) == (0, "") and out.startswith("meshwright: 32 nodes: n[00-31]; 4 to spare: n[32-35]")
    assert len((tmp_path / "jobs" / "a" / "hosts").read_text().splitlines()) == 128
