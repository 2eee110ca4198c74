"""Files are written whole, never through a link that somebody left, and read only where they are files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from meshwright import files
from meshwright.cli.main import main
from meshwright.errors import InputError
from meshwright.files import check_ending, check_target, read_bytes, read_text, write_whole


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_whole(path, "old")
    write_whole(path, "new\n")
    assert path.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_that_was_left_in_the_place_of_the_draft_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".{os.getpid()}.plan.json").symlink_to(victim)
    write_whole(tmp_path / "plan.json", "mine")
    assert (victim.read_text(), (tmp_path / "plan.json").read_text()) == ("precious", "mine")
    assert not (tmp_path / "plan.json").is_symlink()


def test_a_link_that_appears_at_the_last_moment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, unlink = tmp_path / "victim", os.unlink
    victim.write_text("precious")

    def plant(path: Path) -> None:
        path.symlink_to(victim)
        monkeypatch.setattr(os, "unlink", unlink)

    monkeypatch.setattr(os, "unlink", plant)
    with pytest.raises(InputError, match=r"cannot write plan\.json: File exists"):
        write_whole(tmp_path / "plan.json", "mine")
    assert victim.read_text() == "precious"


def test_a_pipe_gets_the_content_and_stays_a_pipe(tmp_path: Path) -> None:
    path, got = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    write_whole(path, "through")
    reader.join(10)
    assert (got, path.is_fifo()) == ([b"through"], True)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_an_open_descriptor_gets_the_content_behind_what_was_printed(name: str, tmp_path: Path) -> None:
    code = (
        f"print('before'); from meshwright.files import write_whole; from pathlib import Path; write_whole(Path({name!r}), 'it'); print()"
    )
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nit\n"


def test_nothing_is_an_answer_for_the_null_device_and_other_devices_are_refused() -> None:
    write_whole(Path(os.devnull), "gone")
    assert Path(os.devnull).is_char_device()
    with pytest.raises(InputError, match="it is a device, not a file"):
        write_whole(Path("/dev/full"), "x")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    "code, fix",
    [(errno.ENOSPC, "free space on this disk"), (errno.EACCES, "this user may write to"), (errno.EROFS, "cannot be written to")],
)
def test_the_fix_fits_what_the_system_reports(code: int, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InputError) as error:
        write_whole(tmp_path / "plan.json", "x")
    assert fix in error.value.fix
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing_and_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        write_whole(tmp_path / "none" / "plan.json", "x")
    assert error.value.fix == "choose a folder that exists"
    with pytest.raises(InputError, match="Is a directory"):
        write_whole(tmp_path, "x")


def test_a_plain_file_and_a_pipe_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\rc")
    assert read_text(tmp_path / "file") == "a\nb\nc"
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"x" * 200_000,))
    writer.start()
    assert len(read_bytes(tmp_path / "pipe")) == 200_000
    writer.join()


def test_what_is_no_file_or_too_large_is_refused_and_hangs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as large:
        large.truncate(2 << 30)
    wrong = {"/dev/zero": "a device", tmp_path / "pipe": "nothing came", tmp_path / "large": "2,147,483,648 bytes", tmp_path: "directory"}
    for path, what in wrong.items():
        with pytest.raises(OSError, match=what):
            read_bytes(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "FILE.toml", "dgx-h100", "pretrain", "--layout", "tp=8"),
        ("simulate", "FILE"),
        ("train", "FILE"),
        ("audit", "log", "FILE"),
        ("validate", "FILE"),
        ("describe", "FILE.toml"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_refuse_a_device_as_their_input(arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from meshwright.cli.main import main

    for name in ("zero", "zero.toml"):
        (tmp_path / name).symlink_to("/dev/zero")
    assert main([argument.replace("FILE", str(tmp_path / "zero")) for argument in arguments]) == 2
    assert "it is a device, not a file" in capsys.readouterr().err


def test_an_ending_of_another_format_is_refused() -> None:
    for name in ("page.html", "page.HTM", "page", "page.out", "v1.2"):
        check_ending(Path(name), "the page", ".html", ".htm")
    check_ending(None, "the page", ".html")
    for name in ("page.pdf", "page.JSON", "a/page.svg"):
        with pytest.raises(InputError, match=r"the page is written as \.html or \.htm, not page\.") as caught:
            check_ending(Path(name), "the page", ".html", ".htm")
        assert caught.value.fix == f"name it {Path(name).with_suffix('.html')}"


WRITERS = [
    ("plan llama-3.1-8b dgx-h100-superpod pretrain-1t --gpus 64", "--out", "x.html"),
    ("plan llama-3.1-8b dgx-h100-superpod pretrain-1t --gpus 64", "--html", "x.pdf"),
    ("plan llama-3.1-8b dgx-h100-superpod pretrain-1t --gpus 64", "--trace", "x.csv"),
    ("plan llama-3.1-8b dgx-h100-superpod pretrain-1t --gpus 64", "--plot", "x.png"),
    ("plan llama-3.1-8b dgx-h100-superpod pretrain-1t --gpus 64", "--rank-map", "x.html"),
    ("plan llama-3.1-8b dgx-h100-superpod pretrain-1t --gpus 64", "--export", "megatron=x.pdf"),
    ("report nowhere", "--out", "x.pdf"),
    ("ledger nowhere", "--csv", "x.json"),
    ("calibrate nowhere --layout tp=2 --cluster dgx-h100-superpod", "--out", "x.toml"),
    ("noise", "--out", "x.csv"),
    ("noise", "--html", "x.md"),
    ("accuracy", "--out", "x.html"),
    ("measure", "--out", "x.txt"),
]


@pytest.mark.parametrize("words, option, name", WRITERS, ids=[f"{words.split()[0]} {option}" for words, option, _ in WRITERS])
def test_every_option_that_writes_a_file_checks_its_ending(words, option, name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words.split(), option, name]) == 2
    assert name.rpartition("=")[2] in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_file_whose_folder_is_missing_is_refused_before_long_work(tmp_path):
    check_target(None, "the page", ".html")
    check_target(tmp_path / "page.html", "the page", ".html")
    with pytest.raises(InputError, match=r"cannot write the page: there is no folder .*/none"):
        check_target(tmp_path / "none" / "page.html", "the page", ".html")
    with pytest.raises(InputError, match=r"written as \.html, not page\.json"):
        check_target(tmp_path / "page.json", "the page", ".html")
