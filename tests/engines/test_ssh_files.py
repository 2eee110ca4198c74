"""The commands of ssh: one a host, which ends its ranks when its input ends."""

from __future__ import annotations

import subprocess
import time

import pytest

from meshwright.engines.site import Site
from meshwright.engines.ssh_files import remote_command, ssh_commands, ssh_files
from meshwright.errors import InputError

HOSTS = ("n0", "n1", "n2", "n3")
RACKS = {"a": "n0,n2", "b": "n1,n3"}


def test_there_is_a_command_for_each_host_in_the_plans_order(request_of):
    site = Site(racks=RACKS, ssh={"user": "me", "options": ["-p", "22"]})
    hosts, ranks, commands = ssh_files(request_of("replicas", site, hosts=HOSTS))
    assert hosts.text.splitlines()[::8] == ["n0", "n2", "n1", "n3"]
    assert ranks.text.splitlines()[9] == "8,n2,a,0,0,1,0,0" and not commands.is_kept
    words = ssh_commands(request_of("replicas", site, hosts=HOSTS), ("n0", "n2", "n1", "n3"))
    assert [one[:6] for one in words] == [["ssh", "-o", "BatchMode=yes", "-p", "22", f"me@{host}"] for host in ("n0", "n2", "n1", "n3")]
    assert "--keep-going --nodes 4 --node 3 --meet n0:29500" in words[3][-1]
    assert "kill -TERM" in words[0][-1] and "kill" not in words[3][-1]  # the first one ends with its connection, and the others with it
    alone = ssh_commands(request_of("replicas", site.model_copy(update={"restarts": 0}), hosts=HOSTS), HOSTS)
    assert all("--node-rank" in one[-1] and "kill -TERM" in one[-1] for one in alone)
    checked = subprocess.run(["bash", "-n"], input=commands.text, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    "hosts, excluded, what",
    [
        (HOSTS[:3], (), "the plan needs 4 nodes, and 3 are named"),
        (
            HOSTS,
            ("n1",),
            "32 ranks on 4 nodes: 2 x 2 that share a rack (one replica): the hosts do not allow it; on the list of bad nodes: n1",
        ),
    ],
)
def test_hosts_that_do_not_suffice_are_refused(request_of, hosts, excluded, what):
    with pytest.raises(InputError) as caught:
        ssh_files(request_of("replicas", Site(racks=RACKS), hosts=hosts, excluded=excluded))
    assert caught.value.what == what


@pytest.fixture
def remote(request_of, tmp_path):
    """What a host runs, with a script in the place of Python."""

    def start(script: str) -> subprocess.Popen:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/bash\n{script}\n")
        python.chmod(0o755)
        command = remote_command(request_of("cores", Site(python=str(python), workdir=str(tmp_path))), 0, 4, "n0")
        return subprocess.Popen(["bash", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def test_ranks_that_end_by_themselves_are_not_waited_for(remote):
    process = remote('echo "$@"; exit 3')
    assert process.wait(20) == 3
    assert "--keep-going --nodes 2 --node 0 --meet n0:29500" in process.stdout.read() and process.stderr.read() == ""
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_the_ranks_are_ended_when_the_input_ends(remote, tmp_path):
    process = remote(f"trap 'echo ended > {tmp_path}/end; exit 9' TERM; echo up > {tmp_path}/up; while :; do sleep 0.05; done")
    until_s = time.monotonic() + 20
    while not (tmp_path / "up").exists():
        assert time.monotonic() < until_s and process.poll() is None
        time.sleep(0.02)
    process.stdin.close()
    assert process.wait(20) == 9 and (tmp_path / "end").read_text() == "ended\n"
    process.stdout.close()
    process.stderr.close()
