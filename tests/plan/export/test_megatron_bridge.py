"""Megatron-Bridge overrides: the record run's sections, adapters, and what is refused."""

import pytest

from meshwright.describe.load import load_workload
from meshwright.errors import InputError
from meshwright.plan.export import megatron_bridge


def sections(plan):
    return {name: section for name, _, section in megatron_bridge.sections(plan)}


def test_the_record_run(record):
    found = sections(record)
    assert found["model"] == {
        "tensor_model_parallel_size": 4,
        "context_parallel_size": 2,
        "pipeline_model_parallel_size": 8,
        "virtual_pipeline_model_parallel_size": 8,
        "pipeline_model_parallel_layout": None,
        "sequence_parallel": True,
        "seq_length": 8192,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
        "cp_comm_type": "p2p",
        "expert_tensor_parallel_size": 8,
        "recompute_granularity": None,
        "cuda_graph_impl": "transformer_engine",
        "use_te_rng_tracker": True,
    }
    assert found["train"] == {"micro_batch_size": 1, "global_batch_size": 1024, "train_iters": 324}
    assert found["dist"] == {"use_tp_pp_dp_mapping": True}
    assert found["ddp"]["bucket_size"] == 134_217_728
    text = megatron_bridge.overrides(record)
    assert "llama31_405b_pretrain_config()" in text
    assert text.endswith("mixed_precision: bf16_with_nvfp4_mixed\n")
    assert "  virtual_pipeline_model_parallel_size: 8\n  pipeline_model_parallel_layout: null\n  sequence_parallel: true\n" in text


def test_adapters(planned):
    adapters = load_workload("mlperf-llama2-70b-lora").adapters
    plan = planned("tp=2,dp=32", model="llama-2-70b", adapters=adapters)
    assert sections(plan)["peft"]["dim"] == adapters.rank
    assert "linear_qkv" in sections(plan)["peft"]["target_modules"]
    assert any("none is known for llama-2-70b" in limit for limit in megatron_bridge.limits(plan))


def test_experts_sharding_and_recompute(planned):
    plan = planned("tp=4,ep=8,dp=16,zero=3,recompute=full", model="deepseek-v3", machine="gb200-nvl72-ndr")
    found = sections(plan)
    assert (found["model"]["expert_model_parallel_size"], found["model"]["expert_tensor_parallel_size"]) == (8, 1)
    assert found["model"]["recompute_granularity"] == "full" and found["model"]["cuda_graph_impl"] == "none"
    assert found["ddp"]["data_parallel_sharding_strategy"] == "optim_grads_params"
    assert any("CUDA graphs" in limit for limit in megatron_bridge.limits(plan))


@pytest.mark.parametrize("layout, precision", [("pp=4,dp=16,schedule=zero-bubble", "bf16"), ("tp=2,dp=32", "fp32")])
def test_what_it_cannot_run_is_refused(planned, layout, precision):
    with pytest.raises(InputError, match="Megatron-Bridge has no"):
        megatron_bridge.overrides(planned(layout, precision=precision))


@pytest.mark.parametrize("layout, overlapped", [("tp=2,dp=32,overlap_tp=yes", True), ("tp=16,dp=4,overlap_tp=yes", False)])
def test_tensor_traffic_is_overlapped_within_a_node_alone(planned, layout, overlapped):
    assert sections(planned(layout))["comm_overlap"]["tp_comm_overlap"] is overlapped
