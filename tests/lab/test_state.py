"""Labs that are made, changed and removed, and their files."""

from __future__ import annotations

import json
import subprocess

import pytest

from meshwright.errors import InputError, MeshwrightError
from meshwright.lab import network, state, system
from meshwright.lab.description import Lab


def rate_of(lab: Lab, name: str) -> str:
    """What `tc` says about the first end of a link."""
    namespace, interface = network.chosen(lab, name, 0)[0].ends[0]
    return system.execute(("tc", "-n", namespace, "qdisc", "show", "dev", interface))


def test_a_lab_is_made_changed_and_removed(make, tmp_path):
    made = make()
    assert set(system.namespaces(made.lab.prefix)) == set(made.lab.namespaces())
    assert "rate 100Mbit" in rate_of(made.lab, "rack1")
    changed = state.change_link(made, "rack1", bits_per_s=5e7, folder=tmp_path)
    assert "rate 50Mbit" in rate_of(made.lab, "rack1") and "rate 100Mbit" in rate_of(made.lab, "rack0")
    assert state.read_state(made.lab.name, tmp_path) == changed
    removed = state.down(made.lab.name, tmp_path)
    assert removed.num_namespaces == len(list(made.lab.namespaces()))
    assert system.namespaces(made.lab.prefix) == [] and list(tmp_path.iterdir()) == []


def test_a_second_lab_of_the_name_is_refused_and_the_first_is_left_alone(make, tmp_path):
    made = make(num_racks=1, num_hosts=1)
    with pytest.raises(InputError, match=f"a lab named '{made.lab.name}' is already up"):
        state.up(made.lab, tmp_path)
    assert set(system.namespaces(made.lab.prefix)) == set(made.lab.namespaces())


def test_half_of_a_lab_is_said_to_be_there_and_is_removed(make, tmp_path):
    made = make(num_racks=1, num_hosts=2)
    system.execute(("ip", "netns", "del", made.lab.namespace(made.lab.hosts[0])))
    state.path_of(made.lab.name, tmp_path).unlink()
    with pytest.raises(InputError, match="or a part of one, is already there"):
        state.up(made.lab, tmp_path)
    state.down(made.lab.name, tmp_path)
    assert system.namespaces(made.lab.prefix) == []


def test_a_lab_that_cannot_be_finished_leaves_nothing(make, tmp_path, monkeypatch):
    lab = make(num_racks=1, num_hosts=1).lab
    state.down(lab.name, tmp_path)
    real = network.up_commands
    monkeypatch.setattr(network, "up_commands", lambda lab: iter([*list(real(lab))[:5], ("false",)]))
    with pytest.raises(MeshwrightError, match="`false` failed"):
        state.up(lab, tmp_path)
    assert system.namespaces(lab.prefix) == [] and list(tmp_path.iterdir()) == []


def test_hosts_reach_each_other_through_every_plane_and_without_one_of_them(make, tmp_path):
    made = make(num_planes=2)
    lab, far = made.lab, made.lab.hosts[-1]
    code = (
        "import socket,sys\n"
        "if sys.argv[1] == 'serve':\n"
        "    s = socket.create_server((sys.argv[2], 9000)); print('ready', flush=True)\n"
        "    for _ in range(2): s.accept()[0].sendall(b'hello')\n"
        "else:\n"
        "    print(socket.create_connection((sys.argv[2], 9000), timeout=10).recv(5).decode())\n"
    )

    def on(host, word):
        return ["ip", "netns", "exec", lab.namespace(host), "python3", "-c", code, word, lab.address(far)]

    server = subprocess.Popen(on(far, "serve"), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        assert subprocess.run(on(lab.hosts[0], "ask"), capture_output=True, text=True).stdout == "hello\n"
        for host in lab.hosts:
            state.change_link(state.read_state(lab.name, tmp_path), str(host), plane=1, is_up=False, folder=tmp_path)
        assert subprocess.run(on(lab.hosts[0], "ask"), capture_output=True, text=True).stdout == "hello\n"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_lab_that_is_not_up_is_named_with_those_that_are(tmp_path):
    state.write_state(state.State(lab=Lab(name="other")), tmp_path)
    with pytest.raises(InputError) as found:
        state.read_state("lab", tmp_path)
    assert found.value.what == "no lab named 'lab' is up"
    assert found.value.fix == "make it: `meshwright lab up --name lab`; these are up: other"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"kind": "meshwright lab", "version": 2}',
        '{"kind": "meshwright lab", "version": 1, "lab": {"x": 1}, "changed": {}}',
    ],
)
def test_a_damaged_file_is_an_error_that_says_how_to_go_on(text, tmp_path):
    state.path_of("lab", tmp_path).write_text(text)
    with pytest.raises(InputError) as found:
        state.read_state("lab", tmp_path)
    assert found.value.what.startswith("the file of the lab is damaged")
    assert found.value.fix == "remove the lab: `meshwright lab down --name lab`"


def test_the_file_holds_the_whole_state(tmp_path):
    kept = state.State(lab=Lab(num_racks=3), changed={"rack0/0": state.LinkState(5e7, False)})
    state.write_state(kept, tmp_path)
    assert state.read_state("lab", tmp_path) == kept
    assert json.loads(state.path_of("lab", tmp_path).read_text())["lab"]["num_racks"] == 3
