"""Hardware profiles as files: what is written is read, and what is no profile is refused with words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.load import load_model
from meshwright.describe.profile import load_profile, profile_text, usual_path
from meshwright.errors import InputError

CARD = Path(__file__).parents[1] / "fixtures" / "profile_of_a_card.json"


def changed(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**json.loads(CARD.read_text()), **changes}))
    return path


def test_a_profile_is_read_as_it_was_written(tmp_path):
    profile = load_profile(CARD)
    (tmp_path / "again.json").write_text(profile_text(profile))
    assert load_profile(tmp_path / "again.json") == profile and len(profile.slices) == 1


def test_slices_are_found_by_shape_whatever_the_name_and_the_tie():
    profile, model = load_profile(CARD), load_model("llama-3.1-8b")
    other = replace(model, name="mine", tied_embeddings=True)
    assert profile.slices_of(other, "bf16", "bf16") == list(profile.slices)
    assert profile.slices_of(other, "fp8") == [] and profile.slices_of(load_model("llama-3.2-1b"), "bf16") == []


def test_of_two_recipes_the_one_that_was_run_is_taken():
    profile, model = load_profile(CARD), load_model("llama-3.1-8b")
    both = replace(profile, slices=(*profile.slices, replace(profile.slices[0], precision="bf16", layer_s=1.0)))
    assert [cut.layer_s for cut in both.slices_of(model, "bf16", "bf16")] == [1.0]
    assert len(both.slices_of(model, "bf16", "bf16-other")) == 2


def test_an_update_lies_on_the_line_through_both_slices():
    cut = load_profile(CARD).slices[0]
    assert float(cut.update_s(8e9)) == pytest.approx(8e9 * 1e-11 + 1e-3)
    flat = replace(cut, updates_s=(0.02, 0.01))  # a disturbed machine
    assert flat.update_s(2 * cut.num_parameters[1]) == pytest.approx(0.02)


@pytest.mark.parametrize("name, degrees", [("slices", {"tp": 2}), ("shared_slices", {}), ("shared_slices", {"tp": 2, "pp": 2})])
def test_slices_of_one_rank_and_of_several_are_kept_apart(name, degrees, tmp_path):
    cut = {**json.loads(CARD.read_text())["slices"][0], **degrees}
    with pytest.raises(InputError, match=rf"{name}\[0\] has tp=") as caught:
        load_profile(changed(tmp_path, **{name: [cut]}))
    assert "shared_slices" in caught.value.fix


@pytest.mark.parametrize("key, value", [("steps_s", [0.3, float("nan")]), ("num_layers", [2, 0]), ("micro_batch", 0), ("hidden", -1)])
def test_a_slice_holds_positive_numbers(key, value, tmp_path):
    cut = {**json.loads(CARD.read_text())["slices"][0], "tp": 2, key: value}
    with pytest.raises(InputError, match=rf"shared_slices\[0\]\.{key}(\[1\])? is"):
        load_profile(changed(tmp_path, shared_slices=[cut]))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kind": "a plan"}, "this is not a hardware profile"),
        ({"kind": "a plan", "log_factor": 0.1}, "goes with software"),
        ({"version": 2}, "version 2"),
        ({"device_type": "tpu"}, "device_type is 'tpu'"),
        ({"copy_bytes_per_s": 0.0}, "copy_bytes_per_s is 0.0"),
        ({"launch_s": -1.0}, "launch_s is -1.0"),
        ({"norm_bytes_per_s": "fast"}, "norm_bytes_per_s"),
        ({"products": [{"way": "forward"}]}, "products.0"),
        ({"colour": "red"}, "no 'colour'"),
    ],
)
def test_what_is_wrong_is_named(changes, message, tmp_path):
    path = changed(tmp_path, **changes)
    with pytest.raises(InputError) as refused:
        load_profile(path)
    assert message in str(refused.value) and str(path) in str(refused.value)


def test_a_time_that_is_not_positive_is_refused_wherever_it_stands(tmp_path):
    data = json.loads(CARD.read_text())
    data["slices"][0]["layer_s"] = float("nan")
    with pytest.raises(InputError, match=r"slices\[0\].layer_s"):
        load_profile(changed(tmp_path, slices=data["slices"]))


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_other_files_are_refused(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="this is not a hardware profile"):
        load_profile(tmp_path / "x.json")


def test_a_file_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(InputError, match="cannot read the hardware profile"):
        load_profile(tmp_path / "nowhere.json")


def test_the_usual_place_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert usual_path() == tmp_path / "meshwright" / "profile.json"


@pytest.mark.parametrize("name, key", [("products", "inner"), ("attentions", "seq_len"), ("collectives", "payload_bytes")])
def test_a_shape_without_a_side_is_refused(name, key, tmp_path):
    data = json.loads(CARD.read_text())
    if not data[name]:
        data[name] = [{"kind": "all-gather", "num_ranks": 2, "payload_bytes": 8, "seconds": 1e-3}]
    data[name][0][key] = 0
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=rf"{name}\[0\]\.{key} is 0"):
        load_profile(path)
