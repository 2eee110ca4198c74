"""`meshwright serve`: what it says, and what it refuses, before it listens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meshwright.cli import serve as command

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
TOKEN = "a-token-of-thirty-two-characters"


@pytest.fixture
def verb():
    return "serve"


@pytest.fixture
def served(monkeypatch):
    """What would have been served; nothing is."""
    from meshwright.serve import server

    calls = []

    def note(shelf, listener, door, encryption=None):
        listener.close()
        calls.append((shelf.runs, door, encryption))

    monkeypatch.setattr(server, "serve", note)
    return calls


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESHWRIGHT_TOKEN", raising=False)
    (tmp_path / "runs").mkdir()


def test_on_this_machine_no_token_is_needed(run, served):
    code, out, err = run("--port", "0")
    assert (code, err) == (0, "")
    (runs, door, _), lines = served[0], out.splitlines()
    assert (runs, door.token) == (Path("runs"), None)
    assert lines[0] == "runs   runs"
    assert lines[1].startswith("page   http://127.0.0.1:")
    assert lines[1].endswith("/  (this machine only)")
    assert lines[2] == "Ctrl-C stops it."


def test_a_runs_folder_that_is_not_there_yet_is_waited_for(run, served, tmp_path):
    (tmp_path / "runs").rmdir()
    code, out, _ = run("--port", "0")
    assert code == 0
    assert "does not exist yet" in out


def test_another_address_needs_a_token_and_says_so(run, served):
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        code, out, err = run("--host", host, "--port", "0")
        assert (code, out, served) == (2, "", [])
        assert err == (
            f"meshwright: other machines can reach {host}, so the page needs a token\n"
            "  where: --host\n"
            "  fix:   add --new-token, which makes one, or set MESHWRIGHT_TOKEN\n"
        )


def test_a_new_token_is_made_and_printed_once(run, served):
    code, out, _ = run("--host", "0.0.0.0", "--port", "0", "--new-token")
    door = served[0][1]
    assert code == 0
    assert len(door.token) >= 40
    assert out.count(door.token) == 1
    assert f"/enter/{door.ticket}" in out
    assert "not encrypted" in out
    assert (door.allows_any_address, door.knows("10.1.2.3"), door.knows("evil.example")) == (True, True, False)


def test_a_given_token_is_not_printed(run, served, monkeypatch):
    code, out, err = run("--host", "0.0.0.0", "--port", "0", "--token", TOKEN)
    assert (code, TOKEN in out + err) == (0, False)
    monkeypatch.setenv("MESHWRIGHT_TOKEN", TOKEN)
    code, out, err = run("--host", "0.0.0.0", "--port", "0")
    assert (code, TOKEN in out + err) == (0, False)
    assert [door.token for _, door, _ in served] == [TOKEN, TOKEN]


def test_a_token_counts_on_this_machine_too(run, served):
    assert run("--port", "0", "--token", TOKEN)[0] == 0
    assert served[0][1].token == TOKEN


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "there is no such folder"),
        (["--port", "70000"], "--port is '70000'\n  where: --port\n  fix:   give a whole number: 0 to 65,535"),
        (["--port", "x"], "--port is 'x'"),
        (["--host", "nowhere.invalid", "--new-token"], "is not known"),
        (["--host", "203.0.113.7", "--new-token", "--port", "0"], "cannot listen on 203.0.113.7"),
        (["--token", ""], "the token has 0 letters"),
        (["--token", "short"], "the token has 5 letters"),
        (["--token", "has some spaces in it all along"], "the token holds a space"),
        (["--token", TOKEN, "--new-token"], "both --token and --new-token are given"),
        (["--tls-key", "key.pem"], "both a certificate and its key"),
        (["--tls-key", "key.pem", "--tls-certificate", "cert.pem"], "cannot use the certificate"),
        (["file.txt"], "there is no such folder"),
        (["one"], "this is the folder of one run"),
        (["runs", "runs"], "unexpected extra argument"),
        (["--read-write"], "no option --read-write"),
    ],
)
def test_wrong_input_is_one_message(run, served, tmp_path, arguments, message):
    (tmp_path / "file.txt").write_text("no folder")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "run.json").write_text("{}")
    code, out, err = run(*arguments)
    assert (code, out, served) == (2, "", [])
    assert err.startswith("meshwright: ")
    assert message in err.lower()
    assert "Traceback" not in err


def test_an_empty_token_in_the_environment_is_refused(run, served, monkeypatch):
    monkeypatch.setenv("MESHWRIGHT_TOKEN", "")
    code, _, err = run("--port", "0")
    assert code == 2
    assert "the token has 0 letters" in err


def test_without_the_extra_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    code, _, err = run()
    assert code == 2
    assert (
        err == "meshwright: the live page needs fastapi and uvicorn\n  where: this installation\n  fix:   pip install 'meshwright[serve]'\n"
    )


def test_a_port_in_use_names_the_next(run, served):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run("--port", str(port))
    assert code == 2
    assert f"port {port} of 127.0.0.1 is in use" in err
    assert "fix:   give --port " in err


def test_other_names_can_be_allowed(run, served):
    run("--port", "0", "--allow-host", "trainer.example:8420")
    door = served[0][1]
    assert (door.knows("trainer.example"), door.knows("other.example")) == (True, False)


def test_the_command_line_stays_quick_to_load():
    assert "fastapi" not in {name.partition(".")[0] for name in vars(command)} and "uvicorn" not in vars(command)
    assert "meshwright.cli.serve" in sys.modules
