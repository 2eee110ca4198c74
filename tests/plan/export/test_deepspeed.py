"""DeepSpeed configurations: what is in them, and what is refused."""

import json

import pytest

from meshwright.errors import InputError
from meshwright.plan.export import deepspeed


def read(plan):
    return json.loads(deepspeed.configuration(plan))


def test_a_whole_file(planned):
    found = read(planned("dp=64,mbs=2,zero=2", precision="bf16"))
    notes = found.pop("meshwright")
    assert found == {
        "train_batch_size": 256,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": True,
            "reduce_bucket_size": 134_217_728,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "allgather_bucket_size": 134_217_728,
        },
    }
    assert notes["origin"][1].startswith("layout: tp=1,cp=1,pp=1,vp=1,dp=64,mbs=2,zero=2")
    assert any("training script" in limit for limit in notes["not_in_this_file"])


@pytest.mark.parametrize("layout", ["dp=64", "tp=2,dp=32,mbs=4", "pp=4,dp=16,schedule=1f1b", "cp=4,cp_kind=all-to-all,dp=16,zero=3"])
def test_the_batch_is_the_product_of_its_parts(planned, layout):
    plan = planned(layout)
    found = read(plan)
    product = found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * plan.layout.dp
    assert found["train_batch_size"] == product == plan.workload.global_batch


def test_axes(planned):
    assert read(planned("tp=2,dp=32"))["tensor_parallel"] == {"autotp_size": 2, "tp_overlap_comm": False}
    assert read(planned("cp=4,cp_kind=all-to-all,dp=16"))["sequence_parallel_size"] == 4
    piped = read(planned("pp=4,dp=16,recompute=full"))["pipeline"]
    assert piped == {"stages": 4, "partition": "uniform", "activation_checkpoint_interval": 1}
    assert read(planned("ep=8,dp=64", model="mixtral-8x7b"))["expert_parallel"] == {"enabled": True, "autoep_size": 8}


def test_what_the_script_must_bring_is_reported(planned):
    limits = " ".join(deepspeed.limits(planned("tp=2,pp=4,dp=8,recompute=selective", precision="fp8")))
    for word in ("rankfile-pp-last", "Transformer Engine", "selective", "PipelineModule", "sequence parallelism", "CUDA graphs"):
        assert word in limits


@pytest.mark.parametrize(
    "layout",
    [
        "cp=2,dp=32",
        "pp=4,vp=2,dp=16",
        "pp=4,dp=16,schedule=zero-bubble",
        "pp=4,dp=16,zero=2",
        "pp=2,cp=2,cp_kind=all-to-all,dp=16",
        "tp=2,dp=32,zero=3",
        "pp=4,dp=16,first_stage_layers=7,last_stage_layers=7",
    ],
)
def test_what_it_cannot_run_is_refused(planned, layout):
    with pytest.raises(InputError, match="DeepSpeed"):
        deepspeed.configuration(planned(layout))
