"""Measuring on a processor at small shapes: the same code that a GPU runs, and what it must find."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from meshwright.describe.model import Model
from meshwright.describe.profile import WAYS, read_profile
from meshwright.errors import InputError
from meshwright.train.measure import kernels, machine, slices, workers
from meshwright.train.measure.clock import interleaved_s, seconds_of
from meshwright.train.replica import NUMBERS

CPU = torch.device("cpu")
TINY = Model(name="tiny", num_layers=8, hidden=32, ffn_hidden=64, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=96)


@pytest.fixture
def world(monkeypatch):
    """This process as a world of its own, where no other test has left one."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert not dist.is_initialized()
    undo = slices.alone(CPU)
    yield
    undo()


def test_pieces_of_work_take_turns():
    order = []
    interleaved_s([lambda: order.append("a"), lambda: order.append("b")], CPU, 0.0)
    assert order[:4] == ["a", "b", "a", "b"] and order.count("a") == order.count("b") >= 5


def test_longer_work_takes_longer():
    small, large = torch.ones(16, 16), torch.ones(600, 600)
    assert seconds_of(lambda: small @ small, CPU, 0.01) < seconds_of(lambda: large @ large, CPU, 0.01)


@pytest.mark.parametrize("way", WAYS)
def test_a_product_and_its_gradients_have_the_shapes_of_training(way):
    shape = kernels.product(way, 24, 16, 8, "fp32", CPU)().shape
    assert tuple(shape) == {"forward": (24, 16), "input": (24, 8), "weight": (16, 8)}[way]


def test_all_products_of_a_layer_and_of_the_head_are_timed_once():
    timed = kernels.products_s(TINY, 16, "fp32", CPU, 0.001)
    assert len(timed) == 3 * 5 and len({(p.way, p.columns, p.inner) for p in timed}) == 15
    assert {(p.columns, p.inner) for p in timed} == {(64, 32), (32, 32), (128, 32), (32, 64), (96, 32)} and all(
        p.seconds > 0 for p in timed
    )


@pytest.mark.parametrize("packed", [False, True])
def test_attention_is_timed_both_ways(packed):
    timed = kernels.attention_s(TINY, 2, 16, "fp32", CPU, 0.001, packed=packed)
    assert timed.forward_s > 0 and timed.backward_s > 0 and (timed.batch, timed.seq_len) == (2, 16)


@pytest.mark.parametrize(("number_format", "packed", "kernel"), [("bf16", False, "a package 4.5"), ("fp32", False, ""), ("bf16", True, "")])
def test_attention_names_the_kernel_that_it_ran_by(number_format, packed, kernel, monkeypatch):
    monkeypatch.setattr(kernels.flash_attention, "prepare", lambda *heads: "a package 4.5")
    assert kernels.attention_s(TINY, 1, 16, number_format, CPU, 0.001, packed=packed).kernel == kernel


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


def test_kernels_that_move_bytes_have_a_rate_each(monkeypatch):
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 2**16)
    rates = kernels.bytes_per_s(CPU, "fp32", 32, 0.001)
    assert set(rates) == {"copy", "norm", "activation", "loss", "optimizer"} and min(rates.values()) > 0
    assert not kernels.has_fp8(CPU)


def test_a_slice_is_layers_and_ends_of_the_trainers_own_step(world):
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=2, seq_len=16, packed=True)
    found = slices.slice_of(cut, CPU, layers=(1, 3), rounds=2)
    assert found.num_layers == (1, 3) and found.number_format == "fp32" and found.rows == 32
    assert found.num_parameters == (TINY.cut_to(1).num_parameters, TINY.cut_to(3).num_parameters)
    assert found.layer_s > 0 and found.ends_s > 0 and min(found.updates_s) > 0
    assert found.layer_saved_bytes == 0  # nobody counts a processor's


def test_layers_are_cut_only_where_the_trainer_can_cut_them():
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=2, seq_len=16)
    assert not replace(cut, tp=2).refusal and not replace(cut, pp=2, seq_len=15).refusal
    assert "tokens" in replace(cut, tp=2, seq_len=15).refusal
    assert "key-value heads" in replace(cut, tp=2, model=replace(TINY, num_heads=6, num_kv_heads=3)).refusal
    narrow = replace(TINY, ffn_hidden=48)
    assert "keys' width on a rank is 8" in replace(cut, tp=2, precision="fp8-current", model=narrow).refusal


def test_a_slice_in_a_hurry_takes_the_fewest_rounds(monkeypatch, world):
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16)
    blocks = []
    inner = slices._timed_on_cores
    monkeypatch.setattr(slices, "_timed_on_cores", lambda runner, count: [blocks.append(runner.num_layers), inner(runner, count)][1])
    slices.slice_of(cut, CPU, layers=(1, 2), within_s=0.0)
    assert blocks == [1, 2] * slices.FEWEST_ROUNDS
    blocks.clear()
    slices.slice_of(cut, CPU, layers=(1, 2))
    assert blocks == [1, 2] * slices.ROUNDS


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


@pytest.mark.parametrize("precision", [name for name, numbers in NUMBERS.items() if not getattr(numbers, "fp8", False)])
def test_every_precision_of_the_trainer_has_a_slice(precision, world):
    cut = slices.Cut(model=TINY, precision=precision, micro_batch=1, seq_len=16, recompute="full")
    assert slices.slice_of(cut, CPU, layers=(1, 2), rounds=1).precision == precision


def test_each_slice_has_a_process_that_compiles_first_and_is_timed_when_asked(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    good = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16)
    wrong = slices.Cut(model=TINY, precision="no such", micro_batch=1, seq_len=16)
    found, reported = machine.Found(), []
    with workers.workers([good, wrong], CPU) as started:
        machine._slices(started, found, reported.append, time.perf_counter() + 60.0)
    assert [cut.num_layers for cut in found.slices] == [(slices.FEW, slices.MORE)] and found.slices[0].layer_s > 0
    assert len(found.left_out) == 1 and "InputError: the trainer does not run in 'no such'" in found.left_out[0]
    slices_of = "tiny in fp32, 1 x 16 tokens"
    assert reported == ["compiling for 2 slices at once", f"compiled for {slices_of}", f"timing slices of {slices_of}"]
    assert all(worker.process.process.poll() is not None for worker in started)


def test_slices_that_time_is_too_short_for_are_left_out_and_named():
    cut, found = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16), machine.Found()
    with workers.workers([cut], CPU) as started:
        machine._slices(started, found, lambda what: None, until_s=0.0)
    assert found.slices == [] and "tiny in fp32, 1 x 16 tokens: they would have taken longer" in found.left_out[0]


def test_nothing_runs_beside_a_slice_that_is_timed_and_one_that_hangs_costs_no_other(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(machine, "SLICE_S", 20.0)
    cut, found = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16), machine.Found()
    with workers.workers([replace(cut, seq_len=8), cut], CPU) as started:
        started[0].process.process.send_signal(signal.SIGSTOP)
        inner = started[1].slice
        ended = []
        monkeypatch.setattr(
            started[1], "slice", lambda *given: [ended.append(started[0].process.process.poll() is not None), inner(*given)][1]
        )
        machine._slices(started, found, lambda what: None, time.perf_counter() + 48.0)
    assert ended == [True] and [each.seq_len for each in found.slices] == [16] and found.left_out[0].endswith(workers.LATE)


def test_what_a_process_prints_does_not_reach_who_asks(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (tmp_path / "sitecustomize.py").write_text("print('NCCL version 2')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    cut, found = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16), machine.Found()
    with workers.workers([cut], CPU) as started:
        machine._slices(started, found, lambda what: None, time.perf_counter() + 60.0)
    assert len(found.slices) == 1


def test_half_an_answer_is_none():
    read, write = os.pipe()
    os.write(write, b"INFO x\n")
    os.close(write)
    worker = object.__new__(workers.Worker)
    with os.fdopen(read, "rb") as worker.answers, pytest.raises(workers.SliceError, match=workers.LEFT):
        worker.hear()


def test_a_process_that_dies_costs_its_slice_and_no_more():
    cut, found = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16), machine.Found()
    with workers.workers([cut], CPU) as started:
        started[0].process.process.kill()
        machine._slices(started, found, lambda what: None, time.perf_counter() + 60.0)
    assert found.slices == [] and found.left_out[0].endswith(workers.LEFT)


def test_smaller_models_are_measured_with_more_sequences():
    sizes = {parameters: machine.asked_of(_of_size(parameters), CPU, seq_len=8).micro_batch for parameters in (8e9, 3.2e9, 1.2e9, 1e6)}
    assert sizes == {8e9: 1, 3.2e9: 2, 1.2e9: 4, 1e6: 8}


def _of_size(num_parameters: float) -> Model:
    return replace(TINY, vocab_size=int((num_parameters - TINY.cut_to(8).num_parameters) / 64))


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
