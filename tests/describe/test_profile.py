"""Hardware profiles as files: what is written is read, and what is no profile is refused with words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.load import load_model
from meshwright.describe.model import Experts, LatentAttention
from meshwright.describe.profile import GroupedTime, MadeTime, load_profile, profile_text, usual_path
from meshwright.describe.router import Router
from meshwright.describe.workload import Adapters
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


def with_experts(profile, **changes):
    """The profile with a slice of layers with experts and latent attention, and with products of theirs."""
    latent = LatentAttention(query_rank=0, key_value_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    experts = Experts(num_experts=64, num_active=6, hidden=1408, num_shared=2, router=Router(renormalizes=False))
    cut = replace(profile.slices[0], latent=latent, experts=experts, **changes)
    grouped = GroupedTime(number_format="bf16", way="forward", num_groups=64, rows=49152, columns=2816, inner=4096, seconds=1e-3)
    made = MadeTime(base="nf4", number_format="bf16", rows=4096, columns=4096, seconds=1e-5)
    return replace(profile, slices=(*profile.slices, cut), grouped=(grouped,), made=(made,))


def test_layers_with_experts_and_adapters_are_read_as_they_were_written(tmp_path):
    pairs = Adapters(rank=16, targets=("q", "v"), alpha=32, base="nf4")
    profile = with_experts(load_profile(CARD), adapters=pairs, work_bytes=1e9, layer_state_bytes=2e9, ends_state_bytes=3e9)
    (tmp_path / "again.json").write_text(profile_text(profile))
    assert load_profile(tmp_path / "again.json") == profile


def test_a_profile_without_what_was_added_later_is_read():
    data = json.loads(CARD.read_text())
    assert not {"grouped", "made"} & set(data) and not {"experts", "adapters"} & set(data["slices"][0])
    (cut,) = load_profile(CARD).slices
    assert cut.experts is cut.latent is cut.adapters is None and cut.work_bytes == 0


def test_slices_of_experts_are_those_with_as_many_of_the_same_width():
    profile, model = with_experts(load_profile(CARD)), load_model("llama-3.1-8b")
    routed = profile.slices[-1]
    leading = replace(routed.like, name="deep", num_layers=27, experts=replace(routed.experts, num_dense_layers=1))
    assert profile.slices_of(leading, "bf16") == [routed] and profile.slices_of(model, "bf16") == [profile.slices[0]]
    wider = replace(leading, experts=replace(leading.experts, hidden=1536))
    assert profile.slices_of(wider, "bf16") == profile.slices_of(replace(leading, latent=None), "bf16") == []


def test_slices_with_adapters_are_for_jobs_with_adapters_of_the_same_cost():
    profile, model = load_profile(CARD), load_model("llama-3.1-8b")
    pairs = Adapters(rank=16, targets=("qkv", "proj", "mlp"))
    tuned = replace(profile.slices[0], adapters=pairs)
    both = replace(profile, slices=(*profile.slices, tuned))
    assert both.slices_of(model, "bf16") == list(profile.slices)
    single = Adapters(rank=16, alpha=3.0, targets=("q", "k", "v", "o", "gate", "up", "down"))
    assert both.slices_of(model, "bf16", "", pairs) == both.slices_of(model, "bf16", "", single) == [tuned]
    for other in (replace(pairs, rank=8), replace(pairs, base="nf4"), replace(pairs, dropout=0.1), replace(pairs, targets=("mlp",))):
        assert both.slices_of(model, "bf16", "", other) == list(profile.slices)
    assert replace(profile, slices=(tuned,)).slices_of(model, "bf16") == []


def test_a_slice_of_no_model_is_refused(tmp_path):
    cut = {**json.loads(CARD.read_text())["slices"][0], "num_heads": 31}
    with pytest.raises(InputError, match=r"slices\[0\]: 31 attention heads"):
        load_profile(changed(tmp_path, slices=[cut]))


@pytest.mark.parametrize(
    "place, changes, message",
    [
        ("slices", {"num_layers": [6, 6]}, r"slices\[0\].num_layers is \[6, 6\]"),
        ("slices", {"num_layers": [12, 2]}, r"slices\[0\].num_layers is \[12, 2\]"),
        ("slices", {"micro_batch": 2**52}, r"more than can be counted"),
        ("made", {"base": "x", "number_format": "bf16", "rows": 8, "columns": 8, "seconds": 1.0}, r"made\[0\].base is 'x'"),
        ("collectives", {"kind": "message", "num_ranks": 1, "payload_bytes": 8, "seconds": 1.0}, r"collectives\[0\] is of 1 rank"),
    ],
)
def test_what_no_measurement_gives_is_refused(place, changes, message, tmp_path):
    entry = {**json.loads(CARD.read_text())[place][0], **changes} if place == "slices" else changes
    with pytest.raises(InputError, match=message):
        load_profile(changed(tmp_path, **{place: [entry]}))


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
