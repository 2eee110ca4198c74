"""A machine measured, on a processor at small shapes: what is asked for, what is found, and what is left out and named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from tiny import CPU, TINY

from meshwright.describe.load import EMULATED, load_cluster, load_model
from meshwright.describe.model import Experts, LatentAttention, Model
from meshwright.describe.profile import AttentionTime, ProductTime, profile_text, read_profile
from meshwright.describe.workload import Adapters, Workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.prediction import on_one_device, parts
from meshwright.predict.software import on_profile, software
from meshwright.train.measure import kernels, machine, slices, workers


def test_processes_that_wait_for_a_gpu_are_ended_before_cores_are_timed(monkeypatch):
    class Process:
        is_there = True

        def end(self) -> None:
            self.is_there = False

    made = [Process(), Process()]
    found = machine.Found(launch_s=1.0, rates=dict.fromkeys(("copy", "norm", "activation", "loss", "optimizer"), 1.0))
    seen = []
    monkeypatch.setattr(machine, "_on_cores", lambda *given: [seen.extend(one.is_there for one in made), found][1])
    machine.measure([], CPU, 1, print, ready=list(made))
    assert seen == [False, False]


def test_slices_share_the_time_that_is_left(monkeypatch):
    shares = []

    class Asked:
        cut = SimpleNamespace(words="a slice")

        def slice(self, until_s, within_s):
            shares.append(within_s)
            raise workers.SliceError("none")

        def end(self) -> None:
            pass

    some = [Asked() for _ in range(3)]
    monkeypatch.setattr(machine, "compiled", lambda started, until_s, report: {started[1]: workers.SliceError("late")})
    monkeypatch.setattr(machine.time, "perf_counter", lambda: 40.0)
    machine._slices(some, machine.Found(), lambda what: None, until_s=60.0)
    assert shares == [10.0, 20.0]


def test_slices_that_time_is_too_short_for_are_left_out_and_named():
    cut, found = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16), machine.Found()
    with workers.workers([cut], CPU) as started:
        machine._slices(started, found, lambda what: None, until_s=0.0)
    assert found.slices == [] and "tiny in fp32, 1 x 16 tokens: they would have taken longer" in found.left_out[0]


def test_smaller_models_are_measured_with_more_sequences():
    sizes = {parameters: machine.asked_of(_of_size(parameters), CPU, seq_len=8).micro_batch for parameters in (8e9, 3.2e9, 1.2e9, 1e6)}
    assert sizes == {8e9: 1, 3.2e9: 2, 1.2e9: 4, 1e6: 8}


def _of_size(num_parameters: float) -> Model:
    return replace(TINY, vocab_size=int((num_parameters - TINY.cut_to(8).num_parameters) / 64) // 16 * 16)


def test_a_precision_that_the_trainer_does_not_run_is_refused():
    with pytest.raises(InputError, match="does not run in 'fp5'"):
        machine.asked_of(TINY, CPU, seq_len=8, precisions=("fp5",))


def test_a_model_too_large_for_memory_is_refused_before_anything_is_timed():
    with pytest.raises(InputError, match="in 64 processes need"):
        machine.check_room(machine.asked_of(_of_size(8e9), CPU, seq_len=8), CPU, 64)


SHORT = machine.Effort(kernel_s=0.001, rounds=1)


def test_a_quick_measurement_leaves_the_small_batch_out(monkeypatch):
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 2**16)
    asked = machine.asked_of(TINY, CPU, seq_len=16, micro_batch=4, packed=True)
    profile = machine.measure([asked], CPU, 2, lambda what: None, effort=replace(SHORT, small_batch=False))
    assert [cut.micro_batch for cut in profile.slices] == [4]
    assert [(cut.tp, cut.pp) for cut in profile.shared_slices] == [(2, 1), (1, 2)]


def test_two_processes_share_the_cores_and_exchange(monkeypatch, tmp_path):
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 2**16)
    asked = machine.asked_of(TINY, CPU, seq_len=16, micro_batch=4, packed=True)
    profile = machine.measure([asked], CPU, 2, lambda what: None, effort=SHORT)
    assert profile.num_processes == 2 and profile.shares_cores and profile.measured_s > 0
    assert [cut.micro_batch for cut in profile.slices] == [1, 4]
    assert [(cut.tp, cut.pp, cut.micro_batch) for cut in profile.shared_slices] == [(2, 1, 4), (1, 2, 4)]
    assert {c.kind for c in profile.collectives} == {"all-gather", "reduce-scatter", "all-reduce", "message"}
    assert {p.rows for p in profile.products} == {16, 64}
    assert not profile.left_out
    data = {"kind": "meshwright hardware profile", "version": 1, **asdict(profile)}
    assert read_profile(json.loads(json.dumps(data)), "here") == profile


def test_slices_that_two_ranks_cannot_make_are_left_out_and_named(monkeypatch):
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 2**16)
    asked = machine.asked_of(replace(TINY, num_heads=6, num_kv_heads=3, tied_embeddings=True), CPU, seq_len=16, micro_batch=1)
    profile = machine.measure([asked], CPU, 2, lambda what: None, effort=SHORT)
    assert [(cut.tp, cut.pp, cut.tied) for cut in profile.shared_slices] == [(1, 2, False)]
    assert len(profile.left_out) == 1 and "tp=2" in profile.left_out[0] and "key-value heads" in profile.left_out[0]


def test_an_odd_process_is_no_pair(monkeypatch):
    place = SimpleNamespace(rank=0, num_ranks=3)
    found = machine.Found()
    machine._shared_slices(place, [], CPU, found, lambda what: None, SHORT)
    assert found.left_out == ["slices of 2 ranks: 3 processes do not make groups of 2"] and not found.shared_slices


def test_what_is_asked_of_a_model_by_default(monkeypatch):
    asked = machine.asked_of(TINY, CPU, seq_len=8, packed=True)
    assert (asked.precisions, asked.seq_len, asked.packed, asked.micro_batch) == (("fp32",), 8, True, machine.MOST_SEQUENCES)
    assert machine.asked_of(TINY, CPU, seq_len=8, micro_batch=3, precisions=("bf16",)).micro_batch == 3
    assert machine.asked_of(load_model("mixtral-8x7b"), CPU, seq_len=8).micro_batch == 1
    with pytest.raises(InputError, match="cannot run tiny with norms of the heads of latent attention"):
        latent = LatentAttention(query_rank=0, key_value_rank=16, nope_dim=8, rope_dim=4, value_dim=8)
        machine.asked_of(replace(TINY, latent=latent, qk_norm=True), CPU, seq_len=8)


MIXTURE = replace(TINY, name="mixture", experts=Experts(num_experts=4, num_active=2, hidden=16, num_shared=1, num_dense_layers=1))


def test_experts_are_measured_with_their_grouped_products_and_predict_what_was_measured(monkeypatch):
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 2**16)
    asked = machine.asked_of(MIXTURE, CPU, seq_len=16, micro_batch=4)
    profile = machine.measure([asked], CPU, 2, lambda what: None, effort=replace(SHORT, small_batch=False))
    assert {(p.num_groups, p.rows, p.columns, p.inner) for p in profile.grouped} == {
        (4, rows, *sides) for rows in (32, 128) for sides in ((32, 32), (32, 16))
    }
    (cut,) = profile.slices
    assert cut.experts is not None and cut.experts.num_dense_layers == 0
    assert read_profile(json.loads(profile_text(profile)), "here") == profile
    alike = replace(MIXTURE, experts=cut.experts)
    found = on_one_device(alike, profile, precision="fp32", seq_len=16, batch=4)
    assert found["from_slices"] and found["parts_s"]["compute"] == pytest.approx(8 * cut.layer_s + cut.ends_s)


def test_two_processes_divide_experts_too(monkeypatch):
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 2**16)
    asked = machine.asked_of(MIXTURE, CPU, seq_len=16, micro_batch=4, recompute="full")
    profile = machine.measure([asked], CPU, 2, lambda what: None, effort=replace(SHORT, small_batch=False))
    assert [cut.recompute for cut in profile.slices] == ["full"] and len(profile.grouped) == 12
    assert [(cut.tp, cut.pp, cut.recompute) for cut in profile.shared_slices] == [(2, 1, "none"), (1, 2, "none")]


def test_a_frozen_base_in_few_bits_is_made_and_its_layers_are_timed(monkeypatch):
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 2**16)
    pairs = Adapters(rank=4, targets=("q", "v"), base="nf4")
    asked = machine.asked_of(TINY, CPU, seq_len=16, micro_batch=4, adapters=pairs)
    profile = machine.measure([asked], CPU, 2, lambda what: None, effort=replace(SHORT, small_batch=False))
    assert {(one.base, one.rows, one.columns) for one in profile.made} == {
        ("nf4", *sides) for sides in ((64, 32), (32, 32), (128, 32), (32, 64))
    }
    assert [cut.adapters for cut in profile.slices] == [pairs]
    workload = Workload(name="w", model="", seq_len=16, global_batch=4, precision="fp32", adapters=pairs)
    job = Job(TINY, load_cluster(EMULATED).resized(1), workload, on_profile(software(), profile))
    found = parts(job, Layouts.of([Layout(micro_batch=4, zero_stage=0)]))
    (cut,) = profile.slices
    assert found.seconds["compute"][0] * found.stretch[0] ** -1 == pytest.approx(8 * cut.layer_s + cut.ends_s, rel=1e-6)


@pytest.mark.parametrize(
    ("num_parameters", "has_fp8", "wanted"),
    [(1e9, True, ("bf16", "fp8-current")), (8e9, True, ("bf16-pure", "fp8-current-pure")), (1e9, False, ("bf16",))],
)
def test_on_a_gpu_states_are_bf16_where_fp32_would_not_fit(num_parameters, has_fp8, wanted, monkeypatch):
    # 70 % of 141 GB are 99 GB: 16 bytes a parameter are 16 GB of 1 B, and 128 GB of 8 B
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=141e9))
    monkeypatch.setattr(kernels, "has_fp8", lambda device: has_fp8)
    assert machine.asked_of(_of_size(num_parameters), torch.device("cuda"), seq_len=16).precisions == wanted


def test_experts_and_adapters_are_not_timed_in_fp8_unless_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=141e9))
    monkeypatch.setattr(kernels, "has_fp8", lambda device: True)
    device = torch.device("cuda")
    assert machine.asked_of(MIXTURE, device, seq_len=8).precisions == ("bf16",)
    assert machine.asked_of(load_model("qwen3-30b-a3b"), device, seq_len=8).precisions == ("bf16-pure",)
    pairs = Adapters(rank=4, targets=("q",))
    assert machine.asked_of(_of_size(8e9), device, seq_len=8, adapters=pairs).precisions == ("bf16",)
    with pytest.raises(InputError, match="multiplies in bf16 or fp32 beside adapters"):
        machine.asked_of(TINY, device, seq_len=8, adapters=pairs, precisions=("fp8-current",))


def test_a_usual_precision_that_the_trainer_refuses_for_a_model_is_left_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=141e9))
    monkeypatch.setattr(kernels, "has_fp8", lambda device: True)
    odd = replace(TINY, vocab_size=97)  # fp8 needs multiples of 16
    assert machine.asked_of(odd, torch.device("cuda"), seq_len=8).precisions == ("bf16",)
    with pytest.raises(InputError, match="the size of the vocabulary on a rank is 97"):
        machine.asked_of(odd, torch.device("cuda"), seq_len=8, precisions=("bf16", "fp8-current"))


def test_slices_of_all_models_in_their_first_precision_come_first():
    asked = [
        machine.asked_of(replace(TINY, name=name), CPU, seq_len=8, precisions=precisions)
        for name, precisions in (("a", ("bf16", "fp8-current")), ("b", ("bf16",)))
    ]
    assert [(cut.model.name, cut.precision) for cut in machine._cuts(asked)] == [("a", "bf16"), ("b", "bf16"), ("a", "fp8-current")]


def test_shapes_that_are_timed_surround_the_batch():
    asked = machine.asked_of(TINY, CPU, seq_len=16, micro_batch=8)
    assert machine._rows(asked, CPU) == (2 * 16, 8 * 16) and machine._sequences(asked, CPU) == ((2, 16), (8, 16))
    gpu = torch.device("cuda")
    assert machine._rows(asked, gpu) == (64, 128, 256)
    assert machine._sequences(asked, gpu) == ((8, 16), (16, 16), (8, 8), (16, 8), (32, 4))
    assert machine._sequences(replace(asked, seq_len=2), gpu) == ((8, 2), (16, 2), (8, 1), (16, 1))  # no sequence of nothing
    assert machine._rows(replace(asked, micro_batch=1, seq_len=1), gpu) == (1, 2)
    assert machine._rows(replace(asked, micro_batch=1), CPU) == (16,)


def found_by(seconds, **changes):
    """What one process found where everything took so many seconds."""
    product = ProductTime(number_format="fp32", way="forward", rows=1, columns=2, inner=3, seconds=seconds)
    attention = AttentionTime(
        number_format="fp32", batch=1, num_heads=1, num_kv_heads=1, head_dim=8, seq_len=16, forward_s=seconds, backward_s=2 * seconds
    )
    rates = dict.fromkeys(("copy", "norm"), 1 / seconds)
    return machine.Found(launch_s=seconds, rates=rates, products=[product], attentions=[attention], **changes)


def test_what_processes_found_is_averaged_and_written_down_once():
    mean = machine._mean([found_by(1.0, left_out=["a"]), found_by(3.0, left_out=["a"])])
    assert mean.launch_s == 2.0 and mean.products[0].seconds == 2.0 and mean.left_out == ["a"]
    assert (mean.attentions[0].forward_s, mean.attentions[0].backward_s, mean.attentions[0].seq_len) == (2.0, 4.0, 16)


def test_what_a_process_wrote_is_read_as_it_was(tmp_path):
    found = found_by(0.5, left_out=["slices of 2 ranks: none"])
    (tmp_path / "0.json").write_text(json.dumps(asdict(found)))
    assert machine._read(tmp_path / "0.json") == found
