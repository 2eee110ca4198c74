"""What a name or a path describes: every spelling leads to its entry, a file to what its keys say, and the rest to a fix."""

from __future__ import annotations

import pytest

from meshwright.describe import economics, load
from meshwright.describe.cluster import Cluster
from meshwright.describe.find import find, finders
from meshwright.describe.hardware import Accelerator
from meshwright.describe.model import Model
from meshwright.describe.recipe import recipes
from meshwright.describe.workload import Workload
from meshwright.errors import InputError


def test_every_name_of_every_kind_is_found():
    seen: set[str] = set()
    for kind, (names, loader) in finders().items():
        for name in names():
            if name in seen or name in (load.THIS_MACHINE, load.EMULATED):  # of two entries of one name the first kind's is found
                continue
            seen.add(name)
            assert find(name)[0] == loader(name), (kind, name)


@pytest.mark.parametrize(
    ("spelling", "kind", "name"),
    [
        ("H100", Accelerator, "h100"),
        ("  gpt OSS_20b ", Model, "gpt-oss-20b"),
        ("gpt3", Model, "gpt-3-175b"),
        ("eastus", economics.Region, "virginia"),
        ("google", economics.Facility, "gcp"),
        ("coreweave", economics.Provider, "coreweave"),
    ],
)
def test_other_spellings_lead_to_the_same_entry(spelling, kind, name):
    found, _ = find(spelling)
    assert isinstance(found, kind) and found.name == name


def test_every_spelling_of_a_recipe_is_found_but_those_that_read_as_a_path():
    for one in recipes().values():
        for spelling in one.names:
            if not load.looks_like_path(spelling):
                assert find(spelling) == (one, ""), spelling


def test_an_entry_comes_with_its_note_whichever_way_it_is_spelled():
    name = "nvlink-5"
    aliases = [alias for alias, of in load.aliases("links").items() if of == name]
    notes = {find(spelling)[1] for spelling in (name, *aliases)}
    assert notes == {"in GB200 and GB300 NVL72 one switched domain of 72 GPUs"}
    assert find("h100")[1] == ""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("num_layers = 1\nhidden = 8\nffn_hidden = 8\nnum_heads = 2\nvocab_size = 10\n", Model),
        (
            "accelerator = 'h100'\naccelerators_per_node = 8\ntiers = [{ name = 'node', link = 'nvlink-4', num_accelerators = 8 }]\n",
            Cluster,
        ),
        ("seq_len = 10\nglobal_batch = 2\nnum_tokens = 100\n", Workload),
    ],
)
def test_a_file_is_read_as_what_its_keys_describe(tmp_path, text, kind):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    found, note = find(str(path))
    assert isinstance(found, kind) and (found.name, note) == ("mine", "")


@pytest.mark.parametrize("text", ["", "a = 1\n", "name = 'x'\nmemory_GB = 80\n"])
def test_a_file_of_no_known_kind_is_refused(tmp_path, text):
    path = tmp_path / "what.toml"
    path.write_text(text)
    with pytest.raises(InputError, match="cannot tell what this file describes") as caught:
        find(str(path))
    assert caught.value.where == str(path) and "tiers" in caught.value.fix


@pytest.mark.parametrize("name", ["models", "some.toml"])
def test_a_folder_describes_nothing_without_a_config(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    for spelled in (name, f"./{name}", str(tmp_path / name)):
        with pytest.raises(InputError, match=r"a folder without a config\.json describes nothing"):
            find(spelled)


@pytest.mark.parametrize("name", ["h100", "H100", "gpt3", "eastus", "fp8-cs"])
def test_a_folder_that_is_called_like_an_entry_does_not_hide_it(tmp_path, monkeypatch, name):
    expected = find(name)
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert find(name) == expected


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("lama-3.2-1b", "nothing named 'lama-3.2-1b' is in the catalogue", "did you mean llama-3.2-1b"),
        ("zzzzqqqq", "nothing named 'zzzzqqqq' is in the catalogue", "meshwright describe lists all names"),
        ("gaudi", "'gaudi' is left out of the catalogue: no source", "TOML file of your own"),
        ("", "nothing named ''", "lists all"),
        ("x" * 5000, "nothing named", "lists all"),
        ("a\0b", "nothing named", "meshwright describe"),
    ],
)
def test_what_is_not_there_is_reported_with_a_fix(name, what, fix):
    with pytest.raises(InputError) as caught:
        find(name)
    assert what in caught.value.what and fix in caught.value.fix
