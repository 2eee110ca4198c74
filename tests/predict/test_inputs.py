"""A job as plain numbers: its products and parameters are the model's, and stacked jobs are the same jobs."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import load_cluster, load_model, load_workload, names
from meshwright.describe.workload import Adapters
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layouts, parse_layout
from meshwright.predict.inputs import EXPERT, MAX_TIERS, NUM_MATRICES, Inputs, inputs_of, stacked
from meshwright.predict.software import software
from meshwright.predict.step import PARTS, price

H100, GB200, A100 = load_cluster("dgx-h100-superpod"), load_cluster("azure-gb200-128"), load_cluster("a100-200g")
PRETRAIN = load_workload("pretrain-1t")
LORA = load_workload("mlperf-llama2-70b-lora")


@pytest.mark.parametrize("name", names("models"))
def test_the_products_of_a_layer_are_those_the_model_counts(name):
    model = load_model(name)
    asked = inputs_of(Job(model, H100, PRETRAIN))
    visits = np.where(asked.matrix_cut == EXPERT, asked.experts_per_token, 1)
    products = float(np.sum(asked.matrix_count * visits * asked.matrix_columns * asked.matrix_inner))
    # The router's product is too small to price.
    routing = model.router_parameters * model.num_expert_layers / model.num_layers
    assert len(asked.matrix_count) == NUM_MATRICES
    assert products + routing == pytest.approx(model.layer_matrix_parameters_per_token, rel=1e-9)


@pytest.mark.parametrize("name", names("models"))
def test_the_parameters_are_the_models(name):
    model = load_model(name)
    asked = inputs_of(Job(model, H100, PRETRAIN))
    layers = model.num_layers * (asked.layer_parameters + asked.expert_parameters)
    counted = layers + asked.embedding_parameters * (2 - asked.tied) + model.num_positions * model.hidden
    assert counted == pytest.approx(model.num_parameters, rel=1e-3)  # norms, biases and layers that predict further tokens are left out


def test_adapters_of_the_lora_benchmark():
    # rank 16 beside queries, keys and values (8192 -> 10240) and the projection (8192 -> 8192), in 80 layers
    asked = inputs_of(Job(load_model("llama-2-70b"), H100, LORA))
    assert asked.adapter_parameters == 16 * (8192 + 10240 + 8192 + 8192)
    assert 80 * asked.adapter_parameters == 44_564_480
    assert asked.frozen == 1.0


def test_adapters_beside_the_mlp():
    workload = replace(LORA, adapters=Adapters(rank=2, targets=("mlp",)))
    asked = inputs_of(Job(load_model("llama-2-70b"), H100, workload))
    assert asked.adapter_parameters == 2 * 3 * (8192 + 28672)


def test_without_adapters_everything_is_trained():
    asked = inputs_of(Job(load_model("llama-2-70b"), H100, PRETRAIN))
    assert (asked.adapter_parameters, asked.frozen) == (0.0, 0.0)


def test_the_chip_in_the_precision_asked_for():
    fp8 = inputs_of(Job(load_model("llama-3.1-8b"), H100, replace(PRETRAIN, precision="fp8")))
    bf16 = inputs_of(Job(load_model("llama-3.1-8b"), H100, replace(PRETRAIN, precision="bf16")))
    fp4 = inputs_of(Job(load_model("llama-3.1-8b"), GB200, replace(PRETRAIN, precision="nvfp4")))
    assert (fp8.peak_flops_per_s, bf16.peak_flops_per_s) == (1979e12, 989e12)
    assert [(q.is_blackwell, q.is_fp4, q.is_bf16) for q in (fp8, bf16, fp4)] == [(0, 0, 0), (0, 0, 1), (1, 1, 0)]


def test_a_chip_of_no_fitted_generation_is_as_efficient_as_the_h100():
    asked = inputs_of(Job(load_model("llama-3.1-8b"), A100, replace(PRETRAIN, precision="bf16")))
    assert asked.power_cap_w == pytest.approx(700 * A100.accelerator.peak_flops_per_s("bf16") / 989e12)


def test_fp8_attention_needs_a_chip_that_has_fp8():
    workload = replace(PRETRAIN, precision="bf16", attention_precision="fp8")
    assert inputs_of(Job(load_model("llama-3.1-8b"), H100, workload)).fp8_attention == 1.0
    assert inputs_of(Job(load_model("llama-3.1-8b"), A100, workload)).fp8_attention == 0.0


def test_the_outermost_tier_is_repeated():
    asked = inputs_of(Job(load_model("llama-3.1-8b"), H100, PRETRAIN))
    assert asked.tier_size[:, 0].tolist() == [8, 1024, 1024, 1024]
    assert asked.tier_is_scale_up[:, 0].tolist() == [1, 0, 0, 0]


def test_too_many_tiers_are_refused():
    tiers = tuple(
        Tier(name=f"t{i}", link="by-hand", num_accelerators=2**i, num_installed=2**i, bytes_per_s=1.0, latency_s=0.0)
        for i in range(MAX_TIERS + 1)
    )
    deep = Cluster(name="deep", accelerator=H100.accelerator, tiers=tiers, accelerators_per_node=1)
    with pytest.raises(InputError, match="cluster 'deep' has 5 tiers; at most 4 are priced"):
        inputs_of(Job(load_model("llama-3.1-8b"), deep, PRETRAIN))


def test_unknown_and_impossible_precisions_are_refused():
    with pytest.raises(InputError, match="fp7"):
        inputs_of(Job(load_model("llama-3.1-8b"), H100, replace(PRETRAIN, precision="fp7")))
    with pytest.raises(InputError, match="h100 has no fp4 tensor cores"):
        inputs_of(Job(load_model("llama-3.1-8b"), H100, replace(PRETRAIN, precision="nvfp4")))


JOBS = [
    ("llama-3.1-405b", GB200.resized(512), replace(PRETRAIN, precision="nvfp4", global_batch=512), "tp=4,cp=2,pp=8,vp=8,dp=8"),
    ("llama-3.1-8b", H100.resized(8), replace(PRETRAIN, precision="fp8", global_batch=64), "dp=8,zero=3"),
    ("gpt-3-175b", A100.resized(256), replace(PRETRAIN, precision="bf16", global_batch=256), "tp=8,pp=8,dp=4,recompute=full"),
    ("deepseek-v3", H100.resized(256), replace(PRETRAIN, precision="fp8", global_batch=512), "tp=2,pp=4,dp=32,ep=32"),
    ("llama-2-70b", H100.resized(16), LORA, "tp=4,cp=2,dp=2"),
]


def test_stacked_jobs_are_priced_as_one_by_one():
    constants = software("v5.1").constants
    every = [
        replace(inputs_of(Job(load_model(name), cluster, workload)), log_factor=0.1 * i)
        for i, (name, cluster, workload, _) in enumerate(JOBS)
    ]
    layouts = [parse_layout(layout) for *_, layout in JOBS]
    together = price(stacked(every), Layouts.of(layouts), constants)
    for i, (asked, layout) in enumerate(zip(every, layouts, strict=True)):
        alone = price(asked, Layouts.of([layout]), constants)
        for part in PARTS:
            assert together.seconds[part][i] == pytest.approx(alone.seconds[part][0], rel=1e-12, abs=1e-15)
        assert together.step_s[i] == pytest.approx(alone.step_s[0], rel=1e-12)
        assert together.num_micro_batches[i] == alone.num_micro_batches[0]


def test_one_job_stacked_is_itself():
    asked = inputs_of(Job(load_model("llama-3.1-8b"), H100, PRETRAIN))
    again = stacked([asked, asked])
    for f in fields(Inputs):
        np.testing.assert_array_equal(np.asarray(getattr(again, f.name))[..., 0], np.ravel(getattr(asked, f.name)).squeeze())


@pytest.mark.parametrize(
    ("precision", "moved"),
    [
        ("bf16", 2 * 4 + 2 * 12 + 2),  # the gradient twice, weights and moments in fp32 there and back, the weight that is multiplied
        ("bf16-pure", 2 * 2 + 2 * 4 + 2 * 2),  # no weights beside those that are multiplied
        ("fp32", 2 * 4 + 2 * 8 + 2 * 4),
        ("fp8-current", 2 * 4 + 2 * 12 + 2),
    ],
)
def test_an_update_of_our_trainer_moves_what_its_numbers_take(precision, moved):
    workload = replace(PRETRAIN, precision=precision)
    assert inputs_of(Job("llama-3.1-8b", H100, workload, software="meshwright")).update_bytes == moved
    assert np.isnan(inputs_of(Job("llama-3.1-8b", H100, workload, software="megatron")).update_bytes)


def test_states_in_bf16_make_an_update_shorter_for_our_trainer_alone():
    def optimizer_s(precision: str, software: str) -> float:
        job = Job("llama-3.1-8b", H100, replace(PRETRAIN, precision=precision), gpus=8, software=software)
        found = price(inputs_of(job), Layouts.of([parse_layout("dp=8,mbs=1,zero=1")]), job.software.constants)
        return float(found.seconds["optimizer"][0])

    assert optimizer_s("bf16-pure", "meshwright") == pytest.approx(optimizer_s("bf16", "meshwright") * 16 / 34)
    assert optimizer_s("bf16-pure", "megatron") == optimizer_s("bf16", "megatron")


def test_the_projection_of_prediction_layers_is_priced_for_our_own_trainer():
    ahead = replace(load_model("llama-3.1-8b"), num_prediction_layers=1)
    job, layouts = Job(ahead, H100, PRETRAIN, software="meshwright"), Layouts.of([parse_layout("tp=8,pp=2,dp=8")])
    inputs = inputs_of(job)
    assert inputs.prediction_inner == 2 * ahead.hidden
    without = price(replace(inputs, prediction_inner=0.0), layouts, job.software.constants)
    assert price(inputs, layouts, job.software.constants).step_s[0] > without.step_s[0]
    assert inputs_of(Job(ahead, H100, PRETRAIN, software="megatron")).prediction_inner == 0
