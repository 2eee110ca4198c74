"""The batch script of Slurm: its options, and that bash accepts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.engines.site import Site
from meshwright.engines.slurm_files import _attempts, batch_script, sbatch_options, slurm_files
from meshwright.errors import InputError


def options_of(request) -> dict[str, str]:
    found = (option.removeprefix("--").partition("=") for option in sbatch_options(request))
    return {name: value for name, _, value in found}


def test_whole_racks_are_asked_for_with_their_spares(request_of):
    options = options_of(request_of(num_spares=4))
    assert options["nodes"] == "36" and options["switches"] == "2@12:00:00"
    assert options["gres"] == "gpu:4" and options["ntasks-per-node"] == "4"
    assert "requeue" in options and "exclusive" in options and "segment" not in options


def test_blocks_are_asked_for_by_their_size(request_of):
    site = Site(slurm={"topology": "block"})
    assert options_of(request_of(site=site))["segment"] == "16"
    assert options_of(request_of(site=site, num_spares=4))["segment"] == "18"
    with pytest.raises(InputError, match="3 spare nodes cannot be spread over 2 blocks"):
        sbatch_options(request_of(site=site, num_spares=3))


def test_a_plan_without_groups_asks_for_no_racks_and_one_on_cores_for_no_gpus(request_of):
    options = options_of(request_of("cores"))
    assert options["nodes"] == "2" and not {"switches", "segment", "gres"} & set(options)


def test_what_the_site_says_is_in_the_options(request_of):
    site = Site(
        time_limit="1-0",
        workdir="/my home",
        slurm={"partition": "gpu", "account": "me", "qos": "q", "reservation": "r", "constraint": "c", "gres": "gpu:h200:8",
               "exclusive": False, "topology": "none", "options": ["--mail-type=END"]},
    )  # fmt: skip
    options = options_of(request_of("replicas", site, folder=Path("/j/100%")))
    assert {key: options[key] for key in ("partition", "account", "qos", "reservation", "constraint", "gres", "time", "mail-type")} == {
        "partition": "gpu", "account": "me", "qos": "q", "reservation": "r", "constraint": "c", "gres": "gpu:h200:8", "time": "1-0",
        "mail-type": "END",
    }  # fmt: skip
    assert options["signal"] == "TERM@60" and options["chdir"] == "'/my home'" and options["output"] == "/j/100%%/output.log"
    assert not {"exclusive", "switches"} & set(options)


def test_named_nodes_are_asked_for_and_bad_ones_excluded(request_of):
    options = options_of(request_of("replicas", hosts=("n0", "n1", "n2", "n3"), excluded=("n3", "n4", "n5")))
    assert options["nodelist"] == "'n[0-3]'" and options["exclude"] == "'n[4-5]'" and "switches" not in options


@pytest.mark.parametrize(
    "site",
    [
        Site(),
        Site(examine=True, container="a/b:1", mounts=["/x:/z"], network_interface="eth0", port=29501),
        Site(setup=["echo 'a b'"], environment={"A": "it's"}, modules=["cuda"]),
    ],
)
def test_bash_accepts_the_script(request_of, site):
    script = batch_script(request_of(site=site, name="it's a run", options=("--corpus", "/a b")))
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_script_places_ranks_before_it_starts_them(request_of):
    file = slurm_files(request_of(site=Site(examine=True, container="a/b:1", mounts=["/x:/z"], port=29501)))[0]
    lines = file.text.splitlines()
    order = [
        next(number for number, line in enumerate(lines) if word in line) for word in ("hostnames", "doctor", "--place", "/supervisor.sh")
    ]
    assert order == sorted(order) and file.name == "job.sbatch"
    assert "--distribution=arbitrary" in file.text and "--kill-on-bad-exit=1" in file.text and "--gpu-bind=none" in file.text
    assert "--container-image=a/b:1 --container-mounts=/x:/z" in file.text and "PORT=29501" in lines


def test_the_first_rank_is_met_on_the_network_of_the_site(request_of):
    assert "ip -4 -o addr show dev eth0" in batch_script(request_of(site=Site(network_interface="eth0", restarts=0)))
    assert "MASTER_ADDR=$first" in batch_script(request_of(site=Site(restarts=0)))


@pytest.mark.parametrize("refuses, restarts, code, starts", [(False, 2, 1, 3), (True, 2, 1, 1), (False, 0, 1, 1)])
def test_ranks_are_started_again_unless_their_input_is_wrong(tmp_path, refuses, restarts, code, starts):
    command = f"{{ echo x >> {tmp_path}/starts; {'touch $REFUSED;' if refuses else ''} false; }}"
    script = "\n".join(["set -euo pipefail", f"REFUSED={tmp_path}/refused", *_attempts(restarts, command)])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == code and (tmp_path / "starts").read_text().count("x") == starts


def test_a_rank_is_told_to_stop_and_its_exit_status_is_kept(request_of):
    script = batch_script(request_of(site=Site(restarts=0)))
    wrapped = script.partition("bash -c '")[2].partition("' rank")[0].replace('$(grep -cx "$SLURMD_NODENAME" "$SLURM_HOSTFILE")', "1")
    rank = "import signal,sys,time\nsignal.signal(15, lambda *_: sys.exit(75))\nprint('up', flush=True)\ntime.sleep(30)"
    names = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "REFUSED": "/nowhere"}
    words = ["bash", "-c", wrapped, "rank", sys.executable, "-c", rank]
    task = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **names}, process_group=0)
    assert task.stdout is not None and task.stdout.readline() == "up\n"
    os.killpg(task.pid, signal.SIGTERM)
    with task.stdout:
        assert task.wait(20) == 75
