"""The supervisors of a job on Slurm: what a node runs, what looks after the job, and how the batch script ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from meshwright.engines import slurm_supervisors as made
from meshwright.engines.hostlist import opened
from meshwright.engines.site import Site
from meshwright.engines.slurm_files import slurm_files, spare_options

KINDS = [
    Site(),
    Site(container="a/b:1", mounts=["/x:/z"], network_interface="eth0", port=29501, setup=["echo 'a b'"], examine=True, time_limit="1-0"),
]
MEETING = "NODES=2\nADDRESS=n0\nPORT=29501\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No pause before a supervisor is started again, and short waits for the others."""
    for name in ("PAUSE_S", "LEAVE_S", "REQUEUE_S"):
        monkeypatch.setattr(made, name, 0)


def scripts(request) -> dict[str, str]:
    return {file.name: file.text for file in slurm_files(request)}


def run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The output of a script in a job's environment; nothing that it starts may outlive 30 s."""
    names = {
        "SLURM_PROCID": "0",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "first",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_JOB_NODELIST": "n[0-3]",
    }
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=30, cwd=folder, env={**os.environ, **names, **variables}
    )


@pytest.mark.parametrize("site", KINDS)
def test_bash_accepts_all_scripts(request_of, site):
    found = scripts(request_of("replicas", site, name="it's a run", options=("--corpus", "/a b"), folder=Path("/it's here")))
    assert set(found) == {"job.sbatch", "supervisor.sh", "watch.sh", "spare.sbatch"}
    for text in found.values():
        checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_words_of_the_templates_stay_what_they_are_in_names_and_folders(request_of, tmp_path):
    folder = tmp_path / "EVERY LEAVE RESTARTS COMMAND" / "FOLDER PAUSE REQUEUE STEP_OPTIONS MEETING_ADDRESS"
    request = request_of("replicas", name="EVERYTHING COMMAND", folder=folder, options=("--corpus", "/EVERY/RESTARTS"))
    found = scripts(request)
    for name in ("job.sbatch", "supervisor.sh"):
        (line,) = [line for line in found[name].splitlines() if line.removeprefix("export ").startswith("JOB=")]
        assert run(f'{line}\nprintf %s "$JOB"', tmp_path).stdout == str(folder)
    (line,) = [line for line in found["supervisor.sh"].splitlines() if "--keep-going" in line]
    given = shlex.split(line)
    for option, value in (("--name", "EVERYTHING COMMAND"), ("--secret", f"{folder}/secret"), ("--corpus", "/EVERY/RESTARTS")):
        assert given[given.index(option) + 1] == value


def test_the_job_starts_a_task_on_each_node_and_outlives_nodes(request_of):
    found = scripts(request_of("replicas", KINDS[1], num_spares=2))
    assert "#SBATCH --no-kill" in found["job.sbatch"] and "#SBATCH --requeue" in found["job.sbatch"]
    assert "# Each node has a supervisor: replicas that are lost do not end the others." in found["job.sbatch"]
    step = found["job.sbatch"].partition("step() {")[2].partition("}")[0]
    for word in ("--distribution=arbitrary", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"):
        assert word in step
    main, watch = (next(line for line in found["job.sbatch"].splitlines() if name in line) for name in ("supervisor.sh", "watch.sh"))
    assert "--container-image=a/b:1 --container-mounts=/x:/z" in main and "container" not in watch  # the programs of Slurm are outside
    assert "ip -4 -o addr show dev eth0" in found["job.sbatch"].partition("printf")[2].partition("\n")[0]
    assert '--keep-going --nodes "$NODES" --node "$NODE" --meet "$ADDRESS":"$PORT"' in found["supervisor.sh"]


def test_ranks_are_started_again_together_where_replicas_cannot_come_and_go(request_of):
    found = scripts(request_of("replicas", Site(restarts=0)))
    assert list(found) == ["job.sbatch"] and "--no-kill" not in found["job.sbatch"] and "--kill-on-bad-exit=1" in found["job.sbatch"]
    assert "# After a fault the job ends, because restarts = 0 in the site file." in found["job.sbatch"]


def test_one_more_node_is_asked_for_like_the_others_and_takes_no_number_of_the_plan(request_of):
    request = request_of("replicas", Site(slurm={"partition": "gpu"}), hosts=("n0", "n1", "n2", "n3"), excluded=("bad0",), name="a b")
    options = spare_options(request)
    assert {"--nodes=1", "--job-name=a-b-spare", "--partition=gpu", "--exclude=bad0", "--gres=gpu:8"} <= set(options)
    assert not [one for one in options if one.startswith(("--nodelist", "--switches", "--requeue", "--no-kill"))]
    spare = scripts(request)["spare.sbatch"]
    number = next(line for line in spare.splitlines() if line.startswith("export MESHWRIGHT_NODE="))
    told = run(f"{number}\necho $MESHWRIGHT_NODE", Path("/"), SLURM_JOB_ID="900004").stdout
    assert told.strip() == "100004"


def test_variables_of_the_one_who_submits_do_not_number_nodes(request_of, tmp_path):
    """Sbatch hands the environment of its caller on to the job."""
    node = Node(request_of("replicas"), "exit 0")
    assert node.run(NODE="3", SLURM_PROCID="1") == 0 and "--node 1 " in node.calls[0]
    script = scripts(request_of("replicas"))["job.sbatch"]
    before_steps = script.partition("export JOB=")[2].partition("\nfirst=")[0].partition("\n")[2]
    assert run(f"{before_steps}\necho ${{MESHWRIGHT_NODE-unset}}", tmp_path, MESHWRIGHT_NODE="3").stdout == "unset\n"


def test_only_the_spares_that_a_job_has_noted_end_with_it(request_of, programs):
    """A job of the same name that has nothing to do with this one goes on."""
    request = request_of("replicas", folder=programs.folder / "a job")
    request.folder.mkdir()
    for name in ("scancel", "squeue", "sinfo", "scontrol", "srun"):
        programs.add(name, "")
    ending = "\n".join(["set -euo pipefail", "PORT=5", *made.supervised(request, "", "$first")])
    (request.folder / "nodes").write_text("n0\n")
    (request.folder / "hosts").write_text("n0\n")

    def ended() -> list[str]:
        before = len(programs.calls)
        done = run(ending, programs.folder, SLURMD_NODENAME="n0", PATH=os.environ["PATH"])
        assert done.returncode == 1 and done.stderr == ""
        return [call for call in programs.calls[before:] if call.startswith("scancel")]

    assert ended() == []  # no spare has started
    for number in ("70", "71"):
        assert run(scripts(request)["spare.sbatch"], programs.folder, SLURM_JOB_ID=number, PATH=os.environ["PATH"]).returncode == 0
    programs.add("scancel", "exit 1")
    assert ended() == ["scancel --quiet 70", "scancel --quiet 71"]
    assert ended() == []


class Node:
    """A node's script, with a supervisor that ends as the lines of a file say, in turn."""

    def __init__(self, request, *ends: str) -> None:
        self.folder = request.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "meeting").write_text(MEETING)
        (self.folder / "ends").write_text("".join(f"{end}\n" for end in ends))
        stub = self.folder / "stub"
        stub.write_text(f'cd {self.folder}\necho "$*" >> calls\nnext=$(head -n 1 ends); sed -i 1d ends; eval "${{next:-exit 0}}"\n')
        self.script = made.supervisor_script(request).replace("python3 -m meshwright", f"bash {stub}")

    def run(self, **variables: str) -> int:
        return run(self.script, self.folder, **variables).returncode

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []

    @property
    def over(self) -> str:
        return (self.folder / "over").read_text().strip() if (self.folder / "over").exists() else ""


@pytest.mark.parametrize(
    "number, ends, code, starts, over",
    [
        (0, ["exit 0"], 0, 1, "0"),
        (0, ["exit 1"], 1, 1, "1"),  # the run was given up: it is not tried again
        (0, ["kill -9 $$", "exit 0"], 0, 2, "0"),
        (0, ["exit 130"], 130, 1, "130"),
        (1, ["exit 1", "exit 0"], 0, 2, ""),
        (1, ["exit 2"], 2, 1, ""),
        (1, ["exit 1"] * 9, 1, 4, ""),
        (1, ["echo 1 > over; exit 1"], 0, 1, ""),  # the run is over
    ],
)  # fmt: skip
def test_a_supervisor_that_is_lost_is_started_again_and_the_leading_one_says_how_the_run_ended(
    request_of, number, ends, code, starts, over
):
    node = Node(request_of("replicas"), *ends)
    assert node.run(SLURM_PROCID=str(number)) == code and len(node.calls) == starts
    assert f"--nodes 2 --node {number} --meet n0:29501" in node.calls[0]
    assert node.over == over or number


def test_nothing_is_started_again_that_was_asked_to_stop(request_of):
    node = Node(request_of("replicas"), "trap 'exit 1' TERM; touch up; while true; do sleep 0.1; done")
    task = subprocess.Popen(["bash", "-c", node.script], process_group=0, env={**os.environ, "SLURM_PROCID": "1"})
    until_s = time.monotonic() + 20
    while not (node.folder / "up").exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    os.killpg(task.pid, signal.SIGTERM)
    assert task.wait(20) == 1 and len(node.calls) == 1


def test_a_node_that_comes_when_the_run_is_over_starts_nothing(request_of):
    node = Node(request_of("replicas"), "exit 0")
    (node.folder / "over").write_text("0\n")
    assert node.run(MESHWRIGHT_NODE="100007") == 0 and node.calls == []


@pytest.mark.parametrize("held, is_queued_again", [("n[0-3]", False), ("n[1-3]", True), ("n[0,2-3]", True), ("n[0-1,3]", False)])
def test_a_job_is_queued_again_without_the_node_that_leads_or_that_of_its_script(request_of, programs, monkeypatch, held, is_queued_again):
    monkeypatch.setattr(made, "WATCH_S", 0)
    programs.write("held", f"{held}\n")
    programs.add("squeue", "cat held")
    programs.write("opened", "\n".join([*opened(held), ""]))
    programs.add("scontrol", "if [ $1 = show ]; then cat opened; fi")
    programs.add("scancel", "")
    programs.write("spares", "70\n71\n")
    script = made.watch_script(request_of("replicas")).replace("while true", "for _ in 1 2")
    run(script, programs.folder, KEPT="n0 n1", PATH=os.environ["PATH"], JOB=str(programs.folder))
    asked = [call for call in programs.calls if call.startswith("scontrol requeue")]
    assert asked == (["scontrol requeue 7"] if is_queued_again else [])
    ended = [call for call in programs.calls if call.startswith("scancel")]
    assert ended == (["scancel --quiet 70", "scancel --quiet 71"] if is_queued_again else [])
    assert (programs.folder / "spares").exists() != is_queued_again


@pytest.mark.parametrize(
    "over, num_left, silent, code, why",
    [
        ("0", 3, "", 0, ""),
        ("69", 4, "", 69, ""),  # no node was lost: the next start would not have more of them
        ("69", 3, "", 69, "the run cannot go on without the nodes that were lost"),
        ("69", 4, "n3 allocated*", 69, "the run cannot go on without the nodes that were lost"),
        ("1", 3, "", 1, ""),  # the run was given up, not for want of nodes
        ("75", 3, "", 75, ""),
        ("2", 3, "", 2, ""),
        ("", 4, "n3 allocated*", 1, "all supervisors ended, and the leading one did not say how the run ended"),
        ("", 4, "", 1, ""),
    ],
)
def test_only_a_run_that_too_few_nodes_are_left_for_is_queued_again(request_of, programs, over, num_left, silent, code, why):
    request = request_of("replicas")
    request.folder.mkdir(parents=True)
    (request.folder / "nodes").write_text("n0\nn1\nn2\nn3\n")
    (request.folder / "hosts").write_text("n0\n" * 8 + "n1\n" * 8)
    programs.add("squeue", f"echo {num_left}")
    programs.add("sinfo", f"echo '{silent}'")
    programs.add("scancel", "")
    programs.add("scontrol", "")
    ended = f"echo {over} > {request.folder}/over" if over else "true"
    programs.add("srun", f'case "$*" in *watch.sh*) exit 0;; esac; {ended}')
    script = "\n".join(["set -euo pipefail", "PORT=5", *made.supervised(request, "", "$first")])
    done = run(script, programs.folder, SLURMD_NODENAME="n0", PATH=os.environ["PATH"])
    assert done.returncode == code, done.stderr
    assert ("scontrol requeue 7" in programs.calls) == bool(why)
    assert (f"meshwright: {why}; the job is queued again" in done.stdout) if why else "queued again" not in done.stdout
    assert (request.folder / "meeting").read_text() == "NODES=2\nADDRESS=n0\nPORT=5\n"
    started = next(call for call in programs.calls if "supervisor.sh" in call)
    assert "--ntasks=4 --nodes=4 --ntasks-per-node=1" in started
