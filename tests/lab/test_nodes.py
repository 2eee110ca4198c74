"""Hosts that run services: what must be installed, and that they start, die and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from on_lab import needs

from meshwright.errors import InputError
from meshwright.lab import nodes, state, system
from meshwright.lab.description import Host, Lab
from meshwright.lab.services import Folder

AT = Folder(Path("/run/meshwright/services-lab"))


def test_what_must_be_installed_is_said(monkeypatch):
    monkeypatch.setattr(system.shutil, "which", lambda tool, path: None if tool in ("slurmd", "munged") else f"/usr/sbin/{tool}")
    with pytest.raises(InputError) as found:
        nodes.check_services(Lab(has_slurm=True))
    assert found.value.what == "a lab with Slurm needs slurmd, munged, which this machine does not have"
    assert found.value.fix == "install munge and slurm-wlm: apt-get install munge slurm-wlm"
    nodes.check_services(Lab())


def test_a_host_runs_its_services_and_the_login_host_the_controller():
    lab = Lab(has_slurm=True, has_ssh=True)
    on_host = [words[0].rpartition("/")[2] for words in nodes.service_commands(lab, AT, Host(0, 1))]
    on_login = [words[0].rpartition("/")[2] for words in nodes.service_commands(lab, AT, None)]
    assert (on_host, on_login) == (["slurmd", "sshd"], ["munged", "slurmctld"])


def test_commands_on_the_login_host_do_not_inherit_another_slurm():
    found = nodes.environment(Lab(has_slurm=True), AT, {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm/slurm.conf", "HOME": "/root"})
    assert (found["SLURM_CONF"], found["HOME"], "SLURM_JOB_ID" in found) == (str(AT.slurm_conf), "/root", False)


def test_hosts_without_services_and_unknown_hosts_are_refused():
    with pytest.raises(InputError, match="run nothing by themselves"):
        nodes.check_host(Lab(), "r0h0")
    with pytest.raises(InputError, match="no host is named 'r0h7'"):
        nodes.check_host(Lab(has_ssh=True), "r0h7")
    assert nodes.check_host(Lab(has_ssh=True), "r1h0") == Host(1, 0)


def test_a_lab_whose_making_is_killed_is_removed_whole(can_make_labs):
    needs(nodes.SSH_TOOLS)
    name = f"k{os.getpid() % 10**8}"
    before = nodes.SSHD_FOLDER.exists()
    making = subprocess.Popen([sys.executable, "-m", "meshwright", "lab", "up", "--racks", "1", "--hosts", "2", "--ssh", "--name", name])
    folder = nodes.folder_of(name, state.FOLDER)
    try:
        until_s = time.monotonic() + 30
        while not folder.log("r0h0").exists() and making.poll() is None and time.monotonic() < until_s:
            time.sleep(0.02)
        making.send_signal(signal.SIGKILL)
    finally:
        making.wait()
        state.down(name)
    assert system.namespaces(Lab(name=name).prefix) == [] and not folder.path.exists() and nodes.SSHD_FOLDER.exists() == before
    assert not state.path_of(name).exists()
