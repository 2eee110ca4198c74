"""One rank's part of the model: its step is the plain definition of one, and it takes on whatever the planner proposes, no more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import GPT, LLAMA, MODELS, SEED, SHARED, WORKLOAD, batch_of, replica_of, samples
from small_run import TRAINING
from torch import Tensor

from meshwright.cost.schedule import schedule_named
from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import accelerator
from meshwright.describe.model import Experts, Model
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.layout import CP_KINDS, SCHEDULES, Layout, parse_layout
from meshwright.plan.candidates import Fixed, Space, degrees
from meshwright.plan.features import Features
from meshwright.plan.stack.own import MESHWRIGHT, check_trainable
from meshwright.predict.legality import check_layout, legal_rows
from meshwright.train.checkpoint import Piece
from meshwright.train.model.attention import Context
from meshwright.train.model.initial import initial_weights
from meshwright.train.model.transformer import Transformer, views_of
from meshwright.train.parallel.mesh import make_mesh
from meshwright.train.parallel.pipeline import chunk_layers, operations
from meshwright.train.replica import NUMBERS, Replica, set_recompute
from meshwright.train.sums import StepResult

MOST = 60  # layouts of a job that are looked at one by one


def flat(num_accelerators: int) -> Cluster:
    """So many accelerators on one network: any number of them is a cluster."""
    tier = Tier(
        name="node", link="ndr", num_accelerators=num_accelerators, num_installed=num_accelerators, bytes_per_s=5e10, latency_s=5e-6
    )
    return Cluster(name="flat", accelerator=accelerator("h100"), tiers=(tier,), accelerators_per_node=num_accelerators)


@st.composite
def models(draw: st.DrawFn) -> Model:
    base = draw(st.sampled_from([LLAMA, GPT]))
    num_kv_heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    return replace(
        base,
        num_layers=draw(st.integers(1, 9)),
        num_heads=num_kv_heads * draw(st.sampled_from([1, 2, 3, 4])),
        num_kv_heads=num_kv_heads,
        ffn_hidden=draw(st.sampled_from([48, 64, 96])),
        vocab_size=draw(st.sampled_from([96, 100, 144])),
        num_positions=base.num_positions and 96,
    )


@st.composite
def mixtures(draw: st.DrawFn) -> Model:
    """Models with experts, of numbers and widths that few degrees divide."""
    model = draw(models())
    experts = Experts(
        num_experts=draw(st.sampled_from([2, 3, 4, 6, 8, 16])),
        num_active=draw(st.sampled_from([1, 2])),
        hidden=draw(st.sampled_from([6, 8, 12, 16])),
        num_shared=draw(st.sampled_from([0, 1, 3])),
        num_dense_layers=draw(st.integers(0, model.num_layers - 1)),
    )
    return replace(model, gated=True, biases=draw(st.booleans()), layer_norm=False, num_positions=0, experts=experts)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    return replace(
        WORKLOAD,
        seq_len=draw(st.sampled_from([16, 24, 48, 50, 96])),
        global_batch=draw(st.sampled_from([1, 4, 6, 12, 16])),
        precision=draw(st.sampled_from(["fp32", "bf16"])),
        training=TRAINING,
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    degree = st.sampled_from([1, 1, 2, 3, 4, 6])
    tp, cp, pp, dp = (draw(degree) for _ in range(4))
    few = st.sampled_from([0, 0, 0, 1, 2, 3])
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vp=draw(st.sampled_from([1, 1, 2, 3])) if pp > 1 else 1,
        dp=dp,
        ep=draw(st.sampled_from([1, 1, 1, tp])),
        etp=draw(st.sampled_from([1, 1, 1, dp * cp])),
        micro_batch=draw(st.sampled_from([1, 2, 3])),
        zero_stage=draw(st.integers(0, 3)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        cp_kind=draw(st.sampled_from(CP_KINDS)),
        first_stage_layers=draw(few),
        last_stage_layers=draw(few),
    )


def proposals(model: Model, cluster: Cluster, workload: Workload, fixed: Fixed) -> list[Layout]:
    """Every layout that a search may propose, some of them where there are many."""
    features = MESHWRIGHT.narrowed(Features())
    space = Space.of(model, cluster, degrees(model, cluster, workload, features, fixed), features, fixed)
    found: list[Layout] = []
    for batch, _ in space.batches(features.zero_stages, features.recompute):
        assert legal_rows(model, cluster, workload, batch).all()
        picked = np.unique(np.linspace(0, len(batch) - 1, MOST).astype(int)) if len(batch) else []
        found += [batch.row(int(index)) for index in picked]
    return found


@settings(max_examples=60, deadline=None)
@given(models() | mixtures(), workloads(), st.sampled_from([1, 2, 4, 6, 8, 12, 16]), st.sampled_from([(0, 0), (0, 0), (1, 1), (2, 0)]))
def test_the_trainer_runs_whatever_the_search_may_propose(model: Model, workload: Workload, num_ranks: int, ends: tuple[int, int]) -> None:
    fixed = Fixed({"first_stage_layers": ends[0], "last_stage_layers": ends[1]} if any(ends) else {})
    for layout in proposals(model, flat(num_ranks), workload, fixed):
        check_trainable(model, workload, layout)
        chunk_layers(model, layout)
        operations(schedule_named(layout.schedule, layout.pp, layout.vp, layout.num_micro_batches(workload.global_batch)), layout.pp - 1)


def test_a_search_divides_experts_where_ep_takes_no_more_ranks() -> None:
    model = replace(LLAMA, experts=Experts(num_experts=2, num_active=1, hidden=16))
    found = proposals(model, flat(8), WORKLOAD, Fixed())
    assert {layout.etp for layout in found} == {1, 2, 4}
    assert {layout.ep for layout in found if layout.etp > 1} == {2}
    assert {layout.etp for layout in proposals(model, flat(8), WORKLOAD, Fixed({"ep": 2}))} == {1}
    assert {(layout.ep, layout.etp) for layout in proposals(model, flat(8), WORKLOAD, Fixed({"etp": 4}))} == {(1, 4), (2, 4)}


@settings(max_examples=400, deadline=None)
@given(models() | mixtures(), workloads(), layouts())
def test_what_the_trainer_runs_is_legal_for_the_planner(model: Model, workload: Workload, layout: Layout) -> None:
    refusals = []
    for check in (lambda: check_trainable(model, workload, layout), lambda: check_layout(model, flat(layout.num_ranks), workload, layout)):
        try:
            check()
            refusals.append(("", "", ""))
        except InputError as error:
            refusals.append((error.what, error.where, error.fix))
    assert refusals[0] == refusals[1], "the same words for the same reason"


@pytest.mark.parametrize(
    "text, model, why",
    [
        ("tp=8", LLAMA, ""),
        ("tp=4", SHARED["few"], ""),
        ("tp=8", SHARED["one"], ""),
        ("pp=2,schedule=zero-bubble,zero=3", LLAMA, ""),  # nothing is shared out: a rank has no replicas
        ("tp=3", LLAMA, "tensor degree 3 does not divide 16 attention heads"),
        ("tp=4", replace(LLAMA, num_heads=24, num_kv_heads=6), "neither divides 6 key-value heads nor is a multiple of them"),
        ("cp=16,tp=2", LLAMA, "a sequence of 32 tokens does not divide into 64 pieces"),
        ("cp=4,tp=4,cp_kind=ring", LLAMA, ""),
        ("cp=4,tp=4,cp_kind=all-to-all", LLAMA, "context x tensor degree 16 does not divide 8 key-value heads"),
        ("cp=2,tp=4,cp_kind=all-to-all", SHARED["few"], "context x tensor degree 8 does not divide 2 key-value heads"),
        ("pp=2,dp=2,schedule=zero-bubble,zero=3", LLAMA, "a zero-bubble schedule delays weight gradients"),
        ("pp=2,vp=2,schedule=1f1b", LLAMA, "1F1B runs one chunk per stage"),
        ("pp=3", LLAMA, ""),  # the embedding and the loss count as layers
        ("pp=5", LLAMA, "4 layers do not divide over 5 pipeline stages"),
        ("dp=3", LLAMA, "does not divide the global batch 8"),
        ("tp=2,ep=2", LLAMA, "small-llama has no experts"),
    ],
)
def test_the_trainer_says_what_it_refuses(text: str, model: Model, why: str) -> None:
    if not why:
        return check_trainable(model, WORKLOAD, parse_layout(text))
    with pytest.raises(InputError, match=why):
        check_trainable(model, WORKLOAD, parse_layout(text))


def plain_model(model: Model) -> Transformer:
    """The whole model with the weights that a replica begins with."""
    chunk, fill = Transformer(model), initial_weights(model, SEED)
    with torch.no_grad():
        for name, tensor in chunk.named_tensors():
            fill(Piece(name=f"weights/{name}", shape=tuple(tensor.shape), start=(0,) * tensor.dim(), tensor=tensor))
    return chunk


def plain_loss(chunk: Transformer, step: int = 0) -> Tensor:
    """Mean loss over the tokens of a batch that carry loss, all sequences at once, by torch's own cross-entropy."""
    tokens, labels, documents = map(torch.tensor, samples(WORKLOAD, chunk.model.vocab_size, step * 8, 8))
    context = Context(positions=torch.arange(WORKLOAD.seq_len), documents=documents, everyones_documents=documents)
    return F.cross_entropy(chunk.head.logits(chunk.hidden(tokens, context)).flatten(0, 1), labels.flatten(), ignore_index=-100)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("text", ["mbs=8", "mbs=2", "mbs=1,recompute=full", "mbs=4,recompute=selective"])
def test_a_step_is_the_plain_definition(model: Model, text: str, world: None) -> None:
    chunk = plain_model(model)
    loss = plain_loss(chunk)
    loss.backward()
    wanted = {name: tensor for name, parameter in chunk.named_parameters() for name, tensor in views_of(name, parameter.grad, model)}
    norm = math.sqrt(sum(float((parameter.grad.double() ** 2).sum()) for parameter in chunk.parameters()))
    with replica_of(model, WORKLOAD, parse_layout(text)) as (replica, mesh):
        result = replica.gradients(batch_of(0, model, WORKLOAD, mesh))
        assert (result.loss, result.grad_norm) == pytest.approx((loss.item(), norm), rel=1e-5)
        scale = WORKLOAD.tokens_per_step / result.num_tokens
        found = {piece.name: piece.tensor for shard in replica.shards for piece in shard.pieces(shard.gradient * scale, "")}
        assert found.keys() == {f"/{name}" for name in wanted}
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[f"/{name}"], gradient, rtol=1e-4, atol=1e-7 * norm)
    assert result.num_tokens == int((samples(WORKLOAD, 96, 0, 8)[1] != -100).sum())
    assert result.own_norms == pytest.approx((norm,), rel=1e-5)
    assert result.own_losses == pytest.approx((result.loss * result.num_tokens,))


@pytest.mark.parametrize("clip_norm", [0.0, 1e-3, 1e3])
def test_updates_are_torchs_adamw_with_clipped_gradients(clip_norm: float, world: None) -> None:
    chunk = plain_model(LLAMA)
    matrices, vectors = ([p for p in chunk.parameters() if (p.dim() > 1) == is_matrix] for is_matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    wanted = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    with replica_of(LLAMA, WORKLOAD, Layout(micro_batch=4)) as (replica, mesh):
        replica.training = replace(replica.training, clip_norm=clip_norm)
        for step in range(3):
            wanted.zero_grad()
            plain_loss(chunk, step).backward()
            if clip_norm:
                torch.nn.utils.clip_grad_norm_(chunk.parameters(), clip_norm)
            wanted.step()
            replica.update(replica.gradients(batch_of(step, LLAMA, WORKLOAD, mesh)), 1e-3)
        ours = {piece.name: piece.tensor for piece in replica.weights()}
        for name, tensor in chunk.named_tensors():
            torch.testing.assert_close(ours[f"weights/{name}"], tensor, rtol=1e-4, atol=2e-5)


def test_an_evaluation_learns_nothing_and_sums_the_loss(world: None) -> None:
    with replica_of(LLAMA, WORKLOAD, Layout(micro_batch=4)) as (replica, mesh):
        before = {piece.name: piece.tensor.clone() for piece in replica.state()}
        loss, num_tokens = replica.evaluate(batch_of(0, LLAMA, WORKLOAD, mesh))
        assert loss / num_tokens == pytest.approx(plain_loss(plain_model(LLAMA)).item(), rel=1e-6)
        assert all(torch.equal(before[piece.name], piece.tensor) for piece in replica.state())
        assert all(shard.gradient is None for shard in replica.shards)


def test_wishes_of_a_rank_reach_all_with_the_steps_sum(world: None) -> None:
    with replica_of(LLAMA, WORKLOAD, Layout(micro_batch=8)) as (replica, mesh):
        batch = batch_of(0, LLAMA, WORKLOAD, mesh)
        assert [(r.stops, r.saves) for r in [replica.gradients(batch)]] == [(False, False)]
        replica.wants_stop = lambda: True
        assert (replica.gradients(batch).stops, replica.gradients(batch).saves) == (True, False)
        replica.wants_stop, replica.wants_save = bool, lambda: True
        assert (replica.gradients(batch).stops, replica.gradients(batch).saves) == (False, True)


def test_numbers_ride_with_one_sum(world: None) -> None:
    class Guest:
        values = (3.5, -1.0)
        arrived: list[list[float]]

        def arrive(self, everyones: Tensor) -> None:
            self.arrived = everyones.tolist()

    with replica_of(LLAMA, WORKLOAD, Layout(micro_batch=8)) as (replica, mesh):
        replica.rider = guest = Guest()
        batch = batch_of(0, LLAMA, WORKLOAD, mesh)
        with_guest = replica.gradients(batch)
        assert guest.arrived == [[3.5, -1.0]] and replica.rider is None
        assert replica.gradients(batch) == with_guest  # the sum is the same without one


def test_a_batch_without_a_label_is_refused(world: None) -> None:
    with replica_of(LLAMA, WORKLOAD, Layout(micro_batch=8)) as (replica, mesh):
        batch = [replace(one, labels=torch.full_like(one.labels, -100)) for one in batch_of(0, LLAMA, WORKLOAD, mesh)]
        with pytest.raises(InputError, match="no token of the batch carries loss"):
            replica.gradients(batch)


def test_a_checkpoint_of_one_rank_holds_weights_and_moments_of_every_tensor_once(world: None) -> None:
    with replica_of(MODELS["tied"], WORKLOAD, Layout(micro_batch=8)) as (replica, _):
        names = [piece.name for piece in replica.owned_state()]
        tensors = {name for name, _ in Transformer(MODELS["tied"]).named_tensors()}
        assert sorted(names) == sorted(f"{kind}/{name}" for kind in ("weights", "adam_mean", "adam_square") for name in tensors)
        replica.set_num_updates(7)
        assert replica.optimizer.num_updates == 7


def test_weights_are_filled_piece_by_piece(world: None) -> None:
    with replica_of(LLAMA, replace(WORKLOAD, precision="bf16"), Layout(micro_batch=8)) as (replica, _):
        replica.fill_weights(lambda piece: piece.tensor.fill_(0.25))
        assert all(bool((piece.tensor == 0.25).all()) for piece in replica.weights())
        (chunk,) = replica.stage.chunks
        assert all(bool((parameter == 0.25).all()) and parameter.dtype == torch.bfloat16 for parameter in chunk.parameters())


@pytest.mark.parametrize("kind, whole, attention", [("none", False, False), ("full", True, False), ("selective", False, True)])
def test_recompute_is_of_layers_or_of_attention(kind: str, whole: bool, attention: bool) -> None:
    with torch.device("meta"):
        chunk = Transformer(LLAMA)
    set_recompute(chunk, "full" if kind == "none" else "none")  # another choice before
    set_recompute(chunk, kind)
    assert {(block.recomputes, block.attention.recomputes) for block in chunk.blocks()} == {(whole, attention)}


@pytest.mark.parametrize("loss, norm, is_finite", [(1.0, 2.0, True), (math.nan, 1.0, False), (1.0, math.inf, False)])
def test_a_step_is_finite_if_loss_and_norm_are(loss: float, norm: float, is_finite: bool) -> None:
    assert StepResult(loss=loss, grad_norm=norm, num_tokens=1).is_finite is is_finite


def test_every_precision_of_the_trainer_is_a_recipe_that_multiplies_so() -> None:
    for name, numbers in NUMBERS.items():
        assert numbers.fp8 == (recipe(name).number_format == "fp8") and recipe(name).tensor_bytes == numbers.compute.itemsize, name


def test_a_precision_that_the_trainer_does_not_run_is_refused(world: None) -> None:
    mesh = make_mesh(Layout(micro_batch=8), torch.device("cpu"))
    with pytest.raises(InputError, match="the trainer does not run in 'nvfp4'"):
        Replica(LLAMA, replace(WORKLOAD, precision="nvfp4"), mesh, TRAINING)
    mesh.close()
