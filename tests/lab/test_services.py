"""The files of Slurm and ssh on a lab, read without running them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.engines.seating import racks_of_slurm
from meshwright.engines.site import read_site
from meshwright.errors import InputError
from meshwright.lab.description import Lab
from meshwright.lab.services import (
    Folder,
    gres_conf,
    hosts_text,
    known_hosts,
    site_text,
    slurm_conf,
    slurmdbd_conf,
    ssh_config,
    sshd_config,
    topology_conf,
)

LAB = Lab(num_racks=2, num_hosts=2, num_ranks=4, has_slurm=True, has_ssh=True)
AT = Folder(Path("/run/meshwright/services-lab"))


def test_every_host_is_a_node_of_slurm_with_as_many_gpus_as_ranks():
    lines = slurm_conf(LAB, AT).splitlines()
    nodes = [line for line in lines if line.startswith("NodeName=")]
    assert nodes[2] == "NodeName=r1h0 NodeAddr=10.80.0.3 CPUs=4 RealMemory=4000 Gres=gpu:pretended:4"
    assert len(nodes) == 4 and "SlurmctldHost=login(10.80.255.254)" in lines
    assert gres_conf(LAB, AT).count("/dev/gpu") == 4


def test_slurm_reads_and_writes_nothing_outside_the_labs_folder():
    paths = [word for line in slurm_conf(LAB, AT).splitlines() for word in line.replace("socket=", "").split("=") if word.startswith("/")]
    assert paths and all(path.startswith(f"{AT.path}/") for path in paths)
    own = [line.split()[1] for line in sshd_config(AT).splitlines() if "/" in line]
    assert own and all(path.startswith(f"{AT.path}/") for path in own)


def test_accounts_are_kept_only_where_they_are_asked_for():
    lab = replace(LAB, has_accounting=True)
    assert "Accounting" not in slurm_conf(LAB, AT)
    assert "AccountingStorageHost=10.80.255.254" in slurm_conf(lab, AT).splitlines()
    paths = [line.partition("=")[2] for line in slurmdbd_conf(lab, AT).splitlines() if "=/" in line]
    assert paths and all(path.startswith(f"{AT.path}/") for path in paths)
    assert lab.words.endswith("with Slurm and its accounts, with ssh")
    with pytest.raises(InputError, match="accounts are those of a Slurm"):
        Lab(has_accounting=True)


def test_racks_are_the_switches_that_a_job_is_placed_by():
    shown = topology_conf(LAB).replace("Nodes=", "Level=0 Nodes=").replace("Switches=", "Level=1 Switches=")
    assert racks_of_slurm(shown) == {"r0h0": "rack0", "r0h1": "rack0", "r1h0": "rack1", "r1h1": "rack1"}


def test_names_lead_to_the_jobs_network_on_hosts_and_to_the_management_network_on_the_login_host():
    assert "10.65.0.2 r0h1" in hosts_text(LAB, is_login=False).splitlines()
    assert "10.80.0.2 r0h1" in hosts_text(LAB, is_login=True).splitlines()


def test_the_site_file_is_one_that_launch_reads(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(site_text(LAB, AT, "/usr/bin/python3"))
    site = read_site(path)
    assert (site.network_interface, site.slurm.gres, site.slurm.partition) == ("eth0", "gpu:4", "lab")
    assert site.ssh.hosts == ["r0h0", "r0h1", "r1h0", "r1h1"] and site.ssh.options == ["-F", str(AT.ssh_config)]
    assert set(tomllib.loads(site_text(Lab(has_slurm=True), AT, "python3"))) == {"python", "network_interface", "environment", "slurm"}


def test_ssh_knows_the_hosts_by_their_key():
    assert ssh_config(LAB, AT).startswith("Host r0h0 r0h1 r1h0 r1h1\n")
    assert known_hosts(LAB, "ssh-ed25519 AAAA somebody\n").endswith(",r1h1,10.80.0.4 ssh-ed25519 AAAA\n")
