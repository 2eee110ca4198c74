"""torchtitan job files: what is in them, read as TOML, and what is refused."""

import tomllib
from dataclasses import replace

import pytest

from meshwright.describe.load import load_model, load_workload
from meshwright.errors import InputError
from meshwright.plan.export import torchtitan


def read(plan):
    return tomllib.loads(torchtitan.job_file(plan))


def test_a_whole_file(planned):
    plan = planned("tp=2,cp=2,pp=4,vp=2,dp=4,mbs=1,order=tp-cp-dp-pp", precision="fp8-current")
    found = read(plan)
    parts = found["parallelism"].pop("module_fqns_per_model_part")
    assert found == {
        "job": {"description": "by hand: tp=2,cp=2,pp=4,vp=2,dp=4,mbs=1"},
        "model": {"name": "llama3", "flavor": "8B", "converters": ["quantize.linear.float8"]},
        "training": {
            "local_batch_size": 64,
            "global_batch_size": 256,
            "seq_len": 8192,
            "steps": 476838,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "pipeline_parallel_degree": 4,
            "data_parallel_replicate_degree": 1,
            "data_parallel_shard_degree": 4,
            "context_parallel_degree": 2,
            "tensor_parallel_degree": 2,
            "fsdp_reshard_after_forward": "never",
            "enable_async_tensor_parallel": False,
            "context_parallel_rotate_method": "alltoall",
            "pipeline_parallel_schedule": "Interleaved1F1B",
            "pipeline_parallel_microbatch_size": 1,
        },
        "activation_checkpoint": {"mode": "none"},
        "compile": {"enable": True},
        "quantize": {
            "linear": {
                "float8": {
                    "recipe_name": "tensorwise",
                    "filter_fqns": ["output"],
                    "enable_fsdp_float8_all_gather": True,
                    "precompute_float8_dynamic_scale_for_fsdp": True,
                }
            }
        },
    }
    assert [len(part) for part in parts] == [5, 4, 4, 4, 4, 4, 4, 6]
    assert parts[0][:2] == ["tok_embeddings", "layers.0"] and parts[-1][-3:] == ["layers.31", "norm", "output"]


def test_the_ends_count_as_layers_where_the_plan_says_so(record):
    plan = replace(record, workload=replace(record.workload, precision="bf16"))
    parts = torchtitan.model_parts(plan)
    layers = [sum(name.startswith("layers.") for name in part) for part in parts]
    assert layers == [1, *[2] * 62, 1]


def test_stated_layers_of_the_end_stages(planned):
    parts = torchtitan.model_parts(planned("pp=4,vp=2,dp=16,first_stage_layers=6,last_stage_layers=6"))
    assert [sum(name.startswith("layers.") for name in part) for part in parts] == [3, 5, 5, 3, 3, 5, 5, 3]


def test_without_a_pipeline_micro_batches_are_accumulated(planned):
    found = read(planned("tp=2,dp=32,mbs=2"))["training"]
    assert (found["local_batch_size"], found["global_batch_size"]) == (2, 256)


@pytest.mark.parametrize("zero, replicated, sharded, policy", [(0, 64, 1, "never"), (1, 1, 64, "never"), (3, 1, 64, "always")])
def test_sharding(planned, zero, replicated, sharded, policy):
    found = read(planned(f"dp=64,zero={zero}"))["parallelism"]
    assert (found["data_parallel_replicate_degree"], found["data_parallel_shard_degree"]) == (replicated, sharded)
    assert found["fsdp_reshard_after_forward"] == policy


def test_what_it_says_otherwise_is_reported(planned):
    limits = " ".join(torchtitan.limits(planned("tp=2,cp=2,pp=2,dp=8,zero=2,overlap_tp=yes")))
    assert "rankfile-pp-last" in limits and "ZeRO 1" in limits and "asynchronous" in limits
    assert "which is ZeRO 2" in " ".join(torchtitan.limits(planned("tp=2,dp=32")))


def test_a_flavor_that_is_not_there_is_spelled_out(planned):
    text = torchtitan.job_file(planned("tp=2,dp=32", model=replace(load_model("llama-3.1-8b"), name="mine", num_layers=20)))
    assert tomllib.loads(text)["model"] == {"name": "llama3", "flavor": "mine"}
    assert "n_layers=20" in text


def test_mxfp8_of_experts(planned):
    found = read(planned("tp=4,ep=8,dp=16", model="deepseek-v3", machine="gb200-nvl72-ndr", precision="mxfp8"))
    assert found["model"]["converters"] == ["quantize.linear.mx", "quantize.grouped_mm.mx"]
    assert found["quantize"]["grouped_mm"]["mx"] == {"fqns": ["experts"]}
    assert found["parallelism"]["expert_parallel_degree"] == 8


@pytest.mark.parametrize(
    "layout, changes",
    [
        ("cp=2,dp=32,cp_kind=all-to-all", {}),
        ("pp=4,dp=16,schedule=zero-bubble", {}),
        ("dp=64", {"precision": "nvfp4"}),
        ("dp=64", {"precision": "fp8"}),
        ("dp=64", {"attention_precision": "fp8"}),
        ("pp=2,dp=32", {"model": "gpt-oss-20b"}),
        ("dp=64", {"model": "gpt-3-175b", "seq_len": 2048}),
        ("dp=64", {"adapters": load_workload("mlperf-llama2-70b-lora").adapters}),
        ("pp=4,vp=2,dp=16,first_stage_layers=7,last_stage_layers=7", {}),
    ],
)
def test_what_it_cannot_run_is_refused(planned, layout, changes):
    with pytest.raises(InputError, match=r"torchtitan 0\.2\.2"):
        torchtitan.job_file(planned(layout, **changes))


@pytest.mark.parametrize("layout, overlapped", [("tp=2,dp=32,overlap_tp=yes", True), ("tp=16,dp=4,overlap_tp=yes", False)])
def test_tensor_traffic_is_overlapped_within_a_node_alone(planned, layout, overlapped):
    assert read(planned(layout))["parallelism"]["enable_async_tensor_parallel"] is overlapped
