"""Attention by another library's kernels: a stand-in on the processor, and the library itself where there is a GPU for it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from filelock import FileLock, Timeout
from torch import Tensor

from meshwright.describe.load import load_model
from meshwright.describe.workload import Workload
from meshwright.layout import Layout
from meshwright.train.kernels import flash_attention
from meshwright.train.model.attention import Context, attend
from meshwright.train.replica import NUMBERS, chosen_attention

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
HAS_GPU = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] in flash_attention.CAPABILITIES
on_gpu = pytest.mark.skipif(not HAS_GPU or not flash_attention.installed(), reason="needs flash-attn-4 and a GPU it is made for")


class StandIn:
    """What the library's module offers, in plain arithmetic: results beyond those asked for, and gradients into given tensors."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.deterministic: list[bool] = []
        self.factors = {"out": 1.0, "dq": 1.0, "dk": 1.0, "dv": 1.0}

    def _flash_attn_fwd(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, return_lse: bool) -> tuple[Tensor | None, ...]:
        assert causal and return_lse
        self.num_calls += 1
        scores = _scores(q, k)
        return (self.factors["out"] * _weighted(scores, v)).contiguous(), scores.logsumexp(-1).float(), None, None, None

    def _flash_attn_bwd(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, d_out: Tensor, lse: Tensor, **named: Any) -> tuple[Tensor, ...]:
        assert named["causal"] and lse.shape == (q.shape[0], q.shape[2], q.shape[1])
        self.deterministic.append(named["deterministic"])
        share = q.shape[2] // k.shape[2]
        wide_q, wide_out, wide_d = (x.float() for x in (q, out, d_out))
        weights = (_scores(q, k) - lse[..., None]).exp()
        d_weights = torch.einsum("btnd,bsnd->bnts", wide_d, v.float().repeat_interleave(share, dim=2))
        d_scores = weights * (d_weights - (wide_d * wide_out).sum(-1).transpose(1, 2)[..., None]) / q.shape[-1] ** 0.5
        named["dq"].copy_(torch.einsum("bnts,bsnd->btnd", d_scores, k.float().repeat_interleave(share, dim=2)))
        for name, shares, over in (("dk", d_scores, wide_q), ("dv", weights, wide_d)):
            named[name].copy_(torch.einsum("bnts,btnd->bsnd", shares, over).unflatten(2, (-1, share)).sum(3))
        for name in ("dq", "dk", "dv"):
            named[name].mul_(self.factors[name])
        return named["dq"], named["dk"], named["dv"]


def _scores(q: Tensor, k: Tensor) -> Tensor:
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("btnd,bsnd->bnts", q.float(), k.float()) / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1), float("-inf"))


def _weighted(scores: Tensor, v: Tensor) -> Tensor:
    v = v.repeat_interleave(scores.shape[1] // v.shape[2], dim=2)
    return torch.einsum("bnts,bsnd->btnd", scores.softmax(-1), v.float()).to(v.dtype)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn()
    monkeypatch.setattr(flash_attention, "load", lambda: made)
    monkeypatch.setattr(flash_attention, "_able", {})
    yield made
    torch._dynamo.reset()


def heads(num_queries: int, num_keys: int, *, dim: int = 16, tokens: int = 24, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.randn(2, tokens, count, dim).to(dtype).requires_grad_() for count in (num_queries, num_keys, num_keys)]


def plain(inputs: list[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """Attention and its gradients in float64."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in wide), is_causal=True, enable_gqa=True).transpose(1, 2)
    return (out, *torch.autograd.grad(out, wide, gradient.double()))


def off(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> float:
    errors = [(x.detach().double() - y.detach()).norm() / y.detach().norm() for x, y in zip(found, wanted, strict=True)]
    return float(torch.stack(errors).max())  # which keeps what is no number


@pytest.mark.parametrize("counts", [(4, 4), (6, 2)], ids=["as many keys", "shared keys"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_attend_goes_through_the_library_once_its_heads_were_tried(stand_in: StandIn, counts: tuple[int, int], is_compiled: bool) -> None:
    inputs = heads(*counts)
    context = Context(positions=torch.arange(24))
    flash_attention._able[("cpu", counts[0] // counts[1], 16, 24)] = flash_attention.trial(counts[0] // counts[1], 16, 24, CPU)
    before = stand_in.num_calls
    function = torch.compile(attend, fullgraph=True, backend="aot_eager") if is_compiled else attend
    out = function(*inputs, context)
    gradient = torch.randn_like(out)
    found = (out, *torch.autograd.grad(out, inputs, gradient))
    assert stand_in.num_calls == before + 1
    assert off(found, plain(inputs, gradient)) < 1e-2


def test_gradients_lie_one_after_another_however_the_heads_lie(stand_in: StandIn) -> None:
    joined = torch.randn(2, 24, 8, 16).bfloat16().requires_grad_()
    query, key, value = joined.split([4, 2, 2], dim=2)
    out = flash_attention.attended(query, key, value)
    (gradient,) = torch.autograd.grad(out.float().square().sum(), joined)
    inputs = [x.detach().contiguous().requires_grad_() for x in (query, key, value)]
    wanted = plain(inputs, 2 * out.detach())
    assert off(tuple(gradient.split([4, 2, 2], dim=2)), wanted[1:]) < 1e-2
    turned = [x.detach().transpose(0, 1).contiguous().transpose(0, 1) for x in (query, key, value)]
    assert not turned[0].is_contiguous()
    found = flash_attention._backward(*turned, *flash_attention._forward(*turned), torch.ones_like(turned[0]))
    assert all(x.is_contiguous() for x in found)


def test_the_operators_are_what_they_say(stand_in: StandIn) -> None:
    inputs = tuple(heads(4, 2))
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    assert torch.library.opcheck(flash_attention._forward, inputs, test_utils=checks) == dict.fromkeys(checks, "SUCCESS")


def test_other_heads_numbers_documents_and_lengths_go_to_torch(stand_in: StandIn) -> None:
    flash_attention._able[("cpu", 2, 16, 24)] = ""
    query, key, value = heads(4, 2)
    here = Context(positions=torch.arange(24))
    attend(query, key, value, here)
    assert stand_in.num_calls == 1
    attend(*heads(4, 4), here)  # no keys are shared
    attend(*heads(4, 2, dim=8), here)
    attend(*heads(4, 2, dtype=torch.float32), here)
    attend(*heads(4, 2, dtype=torch.float16), here)
    attend(*heads(4, 2, tokens=12), Context(positions=torch.arange(12)))  # short ones have kernels of their own
    attend(query, key, value, Context(positions=torch.arange(24), documents=torch.zeros(2, 24, dtype=torch.long)))
    assert not flash_attention.supports(query[:, :12], key)
    assert stand_in.num_calls == 1


def test_repeatable_where_torch_is_asked_to_be(stand_in: StandIn) -> None:
    inputs = heads(4, 2)
    torch.autograd.grad(flash_attention.attended(*inputs).sum(), inputs)
    torch.use_deterministic_algorithms(True)
    try:
        torch.autograd.grad(flash_attention.attended(*inputs).sum(), inputs)
    finally:
        torch.use_deterministic_algorithms(False)
    assert stand_in.deterministic == [False, True]


def test_a_trial_passes_what_is_right(stand_in: StandIn) -> None:
    assert flash_attention.trial(2, 16, 320, CPU) == flash_attention.trial(1, 8, 7, CPU) == ""


@pytest.mark.parametrize("factor", [1.1, 0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("what", ["out", "dq", "dk", "dv"])
def test_a_trial_tells_what_is_wrong_with_any_result(stand_in: StandIn, what: str, factor: float) -> None:
    stand_in.factors[what] = factor
    assert "off by" in flash_attention.trial(2, 16, 320, CPU)


def test_a_trial_draws_from_its_own_numbers(stand_in: StandIn) -> None:
    torch.manual_seed(5)
    wanted = torch.randn(3)
    torch.manual_seed(5)
    flash_attention.trial(2, 16, 320, CPU)
    assert torch.equal(torch.randn(3), wanted)


def test_a_changed_interface_leaves_attention_to_torch(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "load", lambda: SimpleNamespace())
    problem = flash_attention.trial(2, 16, 320, CPU)
    assert "_flash_attn_fwd" in problem
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(flash_attention, "trial", lambda *arguments: problem)
    with pytest.warns(flash_attention.UnusedKernel, match="flash-attn-4 4.5 is installed and is not used: AttributeError"):
        assert flash_attention.prepare(4, 2, 16, 24, GPU) == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flash_attention.prepare(4, 2, 16, 24, GPU) == ""  # printed once
    query, key, _ = heads(4, 2)
    flash_attention._able[("cpu", 2, 16, 24)] = problem
    assert not flash_attention.supports(query, key)
    flash_attention._able[("cpu", 2, 16, 24)] = ""
    assert flash_attention.supports(query, key)


def test_heads_are_tried_once_and_the_version_reported(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    tried: list[tuple[object, ...]] = []
    monkeypatch.setattr(flash_attention, "trial", lambda *arguments: [tried.append(arguments), ""][1])
    for tokens in (8192, 4096, 320, 64, 64):
        assert flash_attention.prepare(24, 8, 128, tokens, GPU) == "flash-attn-4 4.5"
    assert tried == [(3, 128, 320, GPU), (3, 128, 64, GPU)]
    assert any(spec[0] == "ignore" and getattr(spec[3], "pattern", None) == flash_attention.NOISY for spec in warnings.filters)


def test_a_package_is_loaded_before_others_wait_for_the_trial(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    order = []
    monkeypatch.setattr(flash_attention, "load", lambda: order.append("loaded"))
    inner = flash_attention.one_at_a_time
    monkeypatch.setattr(flash_attention, "one_at_a_time", lambda: [order.append("locked"), inner()][1])
    monkeypatch.setattr(flash_attention, "trial", lambda *arguments: [order.append("tried"), ""][1])
    assert flash_attention.prepare(4, 2, 16, 24, GPU)
    assert order == ["loaded", "locked", "tried"]

    def broken() -> None:
        raise RuntimeError("a broken package")

    monkeypatch.setattr(flash_attention, "load", broken)
    monkeypatch.setattr(flash_attention, "trial", lambda *arguments: "RuntimeError: a broken package")
    with pytest.warns(flash_attention.UnusedKernel, match="a broken package"):
        assert flash_attention.prepare(6, 2, 16, 24, GPU) == ""


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0), installed: str = "flash-attn-4 4.5") -> None:
    monkeypatch.setattr(flash_attention, "installed", lambda: installed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)


@pytest.mark.parametrize(("capability", "installed"), [((8, 0), "flash-attn-4 4.5"), ((12, 0), "flash-attn-4 4.5"), ((9, 0), "")])
def test_nothing_is_tried_without_the_package_or_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], installed: str
) -> None:
    def trial(*arguments: object) -> str:
        raise AssertionError("tried")

    monkeypatch.setattr(flash_attention, "trial", trial)
    monkeypatch.setattr(flash_attention, "_able", {})
    pretend_gpu(monkeypatch, capability, installed)
    assert flash_attention.prepare(4, 2, 16, 24, GPU) == flash_attention.prepare(4, 2, 16, 24, CPU) == ""


@pytest.mark.parametrize("name", ["flash_attn", "flash-attn"])
def test_another_flash_attention_is_not_taken_for_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise RuntimeError('a broken package')")
    (tmp_path / f"{name}-2.8.3.dist-info").mkdir()
    (tmp_path / f"{name}-2.8.3.dist-info" / "METADATA").write_text("Name: flash-attn\nVersion: 2.8.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not flash_attention.installed().startswith("flash-attn-4 2.8.3")


@pytest.mark.parametrize(
    ("layout", "precision", "packed", "is_tried"),
    [
        (Layout(), "bf16", False, True),
        (Layout(tp=2), "bf16-pure", False, True),
        (Layout(cp=2, cp_kind="all-to-all"), "bf16", False, True),
        (Layout(cp=2, cp_kind="ring"), "bf16", False, False),  # those that attend block by block, or by documents, try other kernels
        (Layout(cp=2, cp_kind="all-gather"), "bf16", False, False),
        (Layout(), "fp32", False, False),
        (Layout(), "bf16", True, False),
    ],
)
def test_only_layouts_that_attend_so_try_it(
    monkeypatch: pytest.MonkeyPatch, layout: Layout, precision: str, packed: bool, is_tried: bool
) -> None:
    monkeypatch.setattr(flash_attention, "prepare", lambda *arguments: "tried " + " ".join(map(str, arguments)))
    model = load_model("llama-2m")
    workload = Workload(name="w", model="", seq_len=128, global_batch=4, precision=precision, packed=packed)
    mesh = SimpleNamespace(layout=layout, device=CPU)
    found = chosen_attention(model, workload, mesh, NUMBERS[precision])
    assert found == (f"tried {model.num_heads} {model.num_kv_heads} {model.head_dim} 128 cpu" if is_tried else "")


def test_what_is_compiled_is_kept_where_nobody_else_can_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = flash_attention._kept()
    assert folder is not None and folder.parent.parent == tmp_path and folder.parent.stat().st_mode & 0o777 == 0o700
    folder.parent.chmod(0o770)
    assert flash_attention._kept() is None
    folder.parent.rmdir()
    folder.parent.symlink_to(tmp_path)  # as somebody else might, to have their own code run
    assert flash_attention._kept() is None
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert flash_attention._kept() is None


def test_each_kind_of_gpu_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    folders = set()
    for capability in ((9, 0), (10, 0), (10, 3)):
        pretend_gpu(monkeypatch, capability)
        folders.add(flash_attention._kept())
    assert len(folders) == 3


def test_loading_tells_the_package_where_to_keep_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernels_of_the_test.py").write_text(
        "import os, warnings\nFOUND = {k: v for k, v in os.environ.items() if k.startswith('FLASH')}\nwarnings.warn('noise')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(flash_attention, "MODULE", "kernels_of_the_test")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    with warnings.catch_warnings():
        found = flash_attention.load.__wrapped__().FOUND
    assert found == dict(zip(names, ("1", str(flash_attention._kept())), strict=True))


def test_one_process_at_a_time_and_none_waits_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(flash_attention, "LOCK_S", 0.2)
    folder = flash_attention._kept()
    assert folder is not None
    lock = FileLock(f"{folder}.lock", is_singleton=False)
    with flash_attention.one_at_a_time(), pytest.raises(Timeout):
        lock.acquire(timeout=0)
    with lock, flash_attention.one_at_a_time():  # somebody else holds it for longer than is waited
        pass
    lock.acquire(timeout=0)
    lock.release()
    with pytest.raises(ZeroDivisionError), flash_attention.one_at_a_time():
        raise ZeroDivisionError
    lock.acquire(timeout=0)
    lock.release()


@on_gpu
@pytest.mark.filterwarnings("ignore")
def test_one_token_sees_itself_alone() -> None:
    device = torch.device("cuda", 0)
    assert flash_attention.prepare(4, 2, 64, 1, device)
    query, key, value = (torch.randn(2, 1, count, 64, device=device).bfloat16().requires_grad_() for count in (4, 2, 2))
    out = flash_attention.attended(query, key, value)
    assert torch.equal(out, value.repeat_interleave(2, dim=2))
    d_query, d_key, d_value = torch.autograd.grad(out, (query, key, value), torch.ones_like(out))
    assert d_query.abs().max() < 0.1 and d_key.abs().max() < 0.1  # rounding of what would be nothing
    assert torch.equal(d_value, torch.full_like(d_value, 2.0))


@on_gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(32, 8, 64), (24, 8, 128), (16, 16, 96), (8, 1, 64)], ids=str)
@pytest.mark.parametrize("tokens", [127, 640])
def test_the_library_against_float64(shape: tuple[int, int, int], tokens: int) -> None:
    num_queries, num_keys, dim = shape
    device = torch.device("cuda", 0)
    assert flash_attention.prepare(num_queries, num_keys, dim, tokens, device)
    counts = (num_queries, num_keys, num_keys)
    inputs = [torch.randn(2, tokens, count, dim, device=device).bfloat16().requires_grad_() for count in counts]
    assert flash_attention.supports(*inputs[:2])
    out = torch.compile(attend, fullgraph=True, dynamic=False)(*inputs, Context(positions=torch.arange(tokens, device=device)))
    gradient = torch.randn_like(out)
    found = (out, *torch.autograd.grad(out, inputs, gradient))
    wanted = plain(inputs, gradient)
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours.detach().double() - theirs.detach()).norm()) <= 1e-2 * float(theirs.detach().norm())
