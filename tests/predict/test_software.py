"""Software stacks: the release asked for or its nearest relative, and profiles from files."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.describe.profile import load_profile
from meshwright.errors import InputError, MeshwrightError
from meshwright.predict.practice import CLASSES, UNTUNED
from meshwright.predict.software import (
    FITTED,
    REFERENCE_RELEASE,
    RELEASES,
    Constants,
    as_json,
    fitted_values,
    is_release,
    nearest_release,
    on_profile,
    read_profile,
    software,
)


def test_no_more_constants_than_were_promised():
    assert len(FITTED) <= 24
    assert {f.name for f in fields(Constants)} | {f"release {name}" for name in RELEASES if name != REFERENCE_RELEASE} == set(FITTED)


def test_every_constant_lies_within_its_bounds():
    values = fitted_values()
    for f in fields(Constants):
        assert FITTED[f.name].low <= getattr(values.constants, f.name) <= FITTED[f.name].high
    for name in RELEASES:
        if name != REFERENCE_RELEASE:
            assert FITTED[f"release {name}"].low <= values.releases[name] <= FITTED[f"release {name}"].high
    assert values.releases[REFERENCE_RELEASE] == 0.0


@pytest.mark.parametrize("name", RELEASES)
def test_a_fitted_release_is_itself(name):
    stack = software(name)
    assert (stack.release, stack.known, stack.note) == (name, True, "")
    assert stack.log_factor == fitted_values().releases[name]


def test_the_newest_release_is_the_default():
    assert software() == software(RELEASES[-1])


@pytest.mark.parametrize(
    "name, relative",
    [
        ("v6.1", "v6.0"),
        ("v9.0", "v6.0"),
        ("v2.1", "v3.0"),
        ("v3.5", "v3.1"),  # rounds are .0 and .1: a further one of the year follows right behind
        ("v4.2", "v4.1"),
        ("v5.0.1", "v5.0"),
        ("v5", "v5.0"),
    ],
)
def test_a_round_that_nobody_fitted_is_its_nearest_relative(name, relative):
    stack = software(name)
    assert (stack.name, stack.release, stack.known) == (name, relative, False)
    assert stack.log_factor == fitted_values().releases[relative]
    assert stack.note == f"no run of {name} was fitted: taken as {relative}, its nearest relative"


KNOWN = dict.fromkeys(("v5.0", "v5.1", "nemo-25.02", "nemo-26.04", "nemo-26.04.01", "nemo-26.06"), 0.0)


@pytest.mark.parametrize(
    "name, relative",
    [
        ("nemo-26.05", "nemo-26.04.01"),  # a patch is a little nearer in time
        ("nemo-26.07", "nemo-26.06"),
        ("nemo-25.03", "nemo-25.02"),
        ("nemo-25.12", "nemo-26.04"),
        ("v5.2", "v5.1"),
    ],
)
def test_containers_and_rounds_have_relatives_of_their_own_kind(name, relative):
    assert nearest_release(name, KNOWN) == relative


def test_of_two_as_near_the_newer_is_taken():
    assert nearest_release("nemo-25.03", {"nemo-25.02": 0.0, "nemo-25.04": 0.0}) == "nemo-25.04"


def test_a_container_is_found_among_containers():
    assert software("nemo-26.05").release.startswith("nemo-26.0")
    assert not software("nemo-26.05").known


@pytest.mark.parametrize(
    "name, what",
    [
        ("nonsense", "cannot read a version in software release 'nonsense'"),
        ("nemo-", "cannot read a version in software release 'nemo-'"),
        ("v5.x", "cannot read a version in software release 'v5.x'"),
        ("v", "cannot read a version in software release 'v'"),
        ("torch-2.0", "no software release named 'torch-2.0'"),
    ],
)
def test_what_is_no_release(name, what):
    with pytest.raises(InputError) as caught:
        software(name)
    assert caught.value.what == what and "unknown for software of no known class" in str(caught.value.fix)


def test_unknown_is_the_mean_of_the_classes_that_nobody_tuned():
    values, stack = fitted_values(), software("unknown")
    assert stack == values.unknown_software("unknown") and not stack.known and stack.kind == ""
    assert stack.log_factor == pytest.approx(sum(values.classes[kind].log_factor for kind in UNTUNED) / len(UNTUNED))
    assert stack.note == f"the software is of no class that was fitted: taken as the mean of {', '.join(UNTUNED)}"
    assert is_release("unknown")  # a plan made with it can be read again


@given(st.one_of(st.text(), st.integers(0, 10**400).map(lambda n: f"v{n}"), st.from_regex(r"(v|nemo-)[0-9.]{1,8}", fullmatch=True)))
def test_no_name_raises_anything_but_our_own_error(name):
    with contextlib.suppress(MeshwrightError):
        found = software(name)
        assert found.release in fitted_values().releases or found.kind in CLASSES or found.release == "unknown"


def test_adapters_have_factors_of_their_own():
    stack = replace(software("v5.1"), log_factor=0.1, finetuning={"hopper": 0.3})
    assert stack.log_factor_of(False, "hopper") == 0.1
    assert stack.log_factor_of(True, "hopper") == 0.3
    assert stack.log_factor_of(True, "blackwell") == 0.0


def test_a_profile_read_again_is_the_same(tmp_path):
    stack = replace(software("v5.0"), name="ours", log_factor=0.05, note="by hand", known=True)
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(as_json(stack)))
    assert read_profile(path) == stack
    assert software(str(path)) == stack


@pytest.mark.parametrize(
    "change",
    [
        {"log_factor": float("nan")},
        {"log_factor": "fast"},
        {"log_factor": None},
        {"release": "nonsense"},
        {"constants": {}},
        {"constants": None},
        {"finetuning": [1]},
        {"evaluation_s": 10**400},
    ],
)
def test_a_file_that_is_no_profile(tmp_path, change):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**as_json(software("v5.0")), **change}))
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert (caught.value.what, caught.value.where) == ("this is not a software profile", str(path))


@given(st.one_of(st.binary(), st.text().map(str.encode), st.just(b"[" * 100_000)))
def test_no_file_raises_anything_but_our_own_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("profiles", numbered=True) / "any.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="this is not a software profile"):
        read_profile(path)


def test_a_profile_that_is_not_there():
    with pytest.raises(InputError, match="cannot read the software profile: No such file or directory"):
        software("nowhere.json")


def test_on_a_machine_that_was_measured_no_release_is_slower_than_another():
    profile = load_profile(Path(__file__).parents[1] / "fixtures" / "profile_of_a_card.json")
    for name in ("v3.1", "v6.0"):
        stack = on_profile(software(name), profile)
        assert stack.log_factor_of(False, "hopper") == stack.log_factor_of(True, "hopper") == 0.0
        assert (stack.name, stack.profile) == (name, profile) and "NVIDIA H200" in stack.note


@pytest.mark.parametrize("name", ["v5.0", "V5.0", "5.0"])
def test_a_round_is_known_however_it_is_spelt(name):
    assert (software(name).release, software(name).known) == ("v5.0", True)
