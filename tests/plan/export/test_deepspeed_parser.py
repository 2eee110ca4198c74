"""DeepSpeed's own parser on exported files; skipped where DeepSpeed is not installed (the extra `export-test`)."""

import json
import types

import pytest

from meshwright.plan.export import exported

pytestmark = pytest.mark.filterwarnings("ignore")  # DeepSpeed's and torch's


@pytest.fixture(scope="module")
def speed(tmp_path_factory, imported):
    """DeepSpeed's parser on a plan's file, given the data-parallel degree as its engine would be."""
    distributed, engine = imported("torch.distributed"), imported("deepspeed")
    config = imported("deepspeed.runtime.config")
    folder = tmp_path_factory.mktemp("deepspeed")
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
            patch.setenv(key, value)
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        engine.init_distributed("gloo", verbose=False)

        def parse(plan, **changes):
            path = folder / "deepspeed.json"
            path.write_text(json.dumps(json.loads(exported(plan, "deepspeed")) | changes))
            mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: plan.layout.dp)
            return config.DeepSpeedConfig(str(path), mpu=mpu)

        yield parse
        distributed.destroy_process_group()
        imported("deepspeed.comm").comm.cdb = None


@pytest.mark.parametrize(
    "layout", ["dp=64", "dp=64,zero=0", "dp=64,mbs=2,zero=2", "dp=64,zero=3", "tp=2,dp=32", "pp=4,dp=16,recompute=full"]
)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_deepspeed_reads_the_batch_and_the_sharding(planned, speed, layout, precision):
    plan = planned(layout, precision=precision)
    read = speed(plan)
    assert (read.world_size, read.train_batch_size) == (plan.layout.dp, plan.workload.global_batch)
    assert read.gradient_accumulation_steps == plan.layout.num_micro_batches(plan.workload.global_batch)
    assert read.zero_optimization_stage == plan.layout.zero_stage
    assert read.bfloat16_config.enabled == (precision != "fp32")
    assert read.tensor_parallel_config.autotp_size == (plan.layout.tp if plan.layout.tp > 1 else 0)
    assert plan.layout.pp == 1 or read.pipeline["stages"] == plan.layout.pp


def test_deepspeed_reads_experts_and_sequences(planned, speed):
    assert speed(planned("ep=8,dp=64", model="mixtral-8x7b")).expert_parallel_config.autoep_size == 8
    assert speed(planned("cp=4,cp_kind=all-to-all,dp=16,zero=3")).train_micro_batch_size_per_gpu == 1


def test_deepspeed_refuses_a_batch_that_does_not_multiply(planned, speed):
    with pytest.raises(AssertionError, match="train_batch_size is not equal"):
        speed(planned("dp=64"), gradient_accumulation_steps=5)


def test_deepspeed_refuses_a_key_it_does_not_know(planned, speed):
    with pytest.raises(ValueError, match="nonsense"):
        speed(planned("dp=64"), zero_optimization={"stage": 1, "nonsense": 1})
