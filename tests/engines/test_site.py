"""A site file is described once: checks, table and examples agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from meshwright.describe.form import checked
from meshwright.engines.site import ENGINES, Site, example, read_site, rows, table
from meshwright.errors import InputError

DOCS = Path(__file__).parents[2] / "docs" / "launch.md"


def test_without_a_file_every_key_has_its_default():
    assert read_site(None) == Site()
    assert read_site(None).slurm.topology == "tree" and read_site(None).kubernetes.kind == "jobset"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_example_of_an_engine_is_a_site_file(engine, tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(example(engine))
    read = read_site(path)
    assert read != Site() and read.python == "/shared/venv/bin/python"
    own = set(tomllib.loads(path.read_text())) & set(ENGINES)
    assert own == ({engine} if engine != "local" else set())


def test_every_key_of_an_engine_is_in_its_example():
    for engine in ("slurm", "kubernetes", "ssh"):
        keys = {key.partition(".")[2] for key, *_ in rows() if key.startswith(f"{engine}.")}
        assert keys == set(tomllib.loads(example(engine))[engine])


def test_the_documentation_has_the_table():
    assert table() in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text, what, fix",
    [
        ("[slurm]\npartiton = 'x'", "unknown key 'partiton'", "did you mean partition?"),
        ("pyhton = 'x'", "unknown key 'pyhton'", "did you mean python?"),
        ("[slurm]\npartition = 'a b'", "slurm.partition is 'a b'", "write one word, without spaces"),
        ('setup = ["a\\nb"]', "setup.0 is 'a\\nb'", "write one line, without control characters"),
        ('workdir = "/a\\nrm -r /"', "workdir is '/a\\nrm -r /'", "write one line, without control characters"),
        ("environment = { A-B = 'c' }", "environment is {'A-B': 'c'}", "name variables with letters, digits and _"),
        ("mounts = ['/a']", "mounts.0 is '/a'", "write SOURCE:TARGET, with a target that begins with /"),
        ("port = 'x'", "port is 'x'", "write a whole number: port = 8"),
        ("port = 70000", "port is 70000", "give a number of at most 65535"),
        ("[kubernetes]\nkind = 'pod'", "kubernetes.kind is 'pod'", "use 'job', 'jobset' or 'trainjob'"),
        ("a = = 1", "this is not TOML", "see `meshwright launch --example slurm`"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path, text, what, fix):
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_site(path)
    assert caught.value.what.startswith(what) and caught.value.fix == fix and str(path) in caught.value.where


def test_a_site_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_site(tmp_path / "none.toml")
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="this is not TOML"):
        read_site(tmp_path / "odd.toml")


def test_a_site_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        checked(Site, {}, "here").port = 1
