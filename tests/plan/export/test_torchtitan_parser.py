"""torchtitan's own parser on exported files; skipped where torchtitan is not installed (the extra `export-test`)."""

import pytest

from meshwright.plan.export import exported, torchtitan

pytestmark = pytest.mark.filterwarnings("ignore")  # torchtitan's and torch's

DENSE = (
    "dp=64",
    "tp=2,dp=32,mbs=2",
    "tp=2,cp=2,pp=4,vp=2,dp=4",
    "pp=4,dp=16",
    "cp=4,dp=16,cp_kind=all-gather",
    "tp=2,dp=32,recompute=full",
)


@pytest.fixture
def titan(tmp_path, imported):
    """torchtitan's parser on a plan's file."""
    config = imported("torchtitan.config")

    def parse(plan):
        path = tmp_path / "job.toml"
        path.write_text(exported(plan, "torchtitan"))
        return config.ConfigManager().parse_args([f"--job.config_file={path}"])

    return parse


@pytest.mark.parametrize("precision", ["bf16", "fp8-current", "mxfp8"])
@pytest.mark.parametrize("layout", [*DENSE, "pp=4,vp=2,dp=16,schedule=zero-bubble", "dp=64,zero=0", "dp=64,zero=3"])
def test_torchtitan_reads_the_degrees(planned, titan, layout, precision):
    plan = planned(layout, precision=precision)
    read, wanted = titan(plan), plan.layout
    degrees = read.parallelism
    assert (degrees.tensor_parallel_degree, degrees.context_parallel_degree, degrees.pipeline_parallel_degree) == (
        wanted.tp,
        wanted.cp,
        wanted.pp,
    )
    assert degrees.data_parallel_replicate_degree * degrees.data_parallel_shard_degree == wanted.dp
    assert (read.training.seq_len, read.training.global_batch_size) == (plan.workload.seq_len, plan.workload.global_batch)
    assert read.training.global_batch_size % (read.training.local_batch_size * wanted.dp) == 0
    assert read.model.converters == ({"fp8-current": ["quantize.linear.float8"], "mxfp8": ["quantize.linear.mx"]}.get(precision, []))


def test_torchtitan_takes_the_degrees_for_the_world(planned, titan, imported):
    dims = imported("torchtitan.distributed.parallel_dims")
    read = titan(planned("tp=2,cp=2,pp=4,vp=2,dp=4")).parallelism
    accepted = dims.ParallelDims(
        dp_replicate=read.data_parallel_replicate_degree,
        dp_shard=read.data_parallel_shard_degree,
        cp=read.context_parallel_degree,
        tp=read.tensor_parallel_degree,
        pp=read.pipeline_parallel_degree,
        ep=read.expert_parallel_degree,
        etp=read.expert_tensor_parallel_degree,
        world_size=64,
    )
    assert (accepted.tp, accepted.cp, accepted.pp, accepted.world_size) == (2, 2, 4, 64)


@pytest.mark.parametrize("layout, schedule", [("pp=4,dp=16", "1f1b"), ("pp=4,vp=2,dp=16", ""), ("pp=4,vp=2,dp=16", "zero-bubble")])
def test_torch_knows_the_schedules(planned, titan, imported, layout, schedule):
    schedules = imported("torch.distributed.pipelining.schedules")
    made = f"{layout},schedule={schedule}" if schedule else layout
    assert schedules.get_schedule_class(titan(planned(made)).parallelism.pipeline_parallel_schedule)


def test_torchtitan_splits_its_layers_as_we_do_where_it_counts_the_ends(record, imported):
    split = imported("torchtitan.distributed.pipeline_parallel")
    assert torchtitan.model_parts(record) == split.generate_llm_fqn_per_model_part(64, 126, 1, 1)


def test_torchtitan_has_the_flavors(package):
    root = package("torchtitan") / "models"
    for name, flavor in torchtitan.FLAVORS.values():
        assert f'"{flavor}":' in (root / name / "__init__.py").read_text()


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-30b-a3b"])
def test_torchtitan_reads_experts(planned, titan, name):
    read = titan(planned("tp=4,ep=8,dp=16", model=name, machine="gb200-nvl72-ndr", precision="mxfp8"))
    assert (read.parallelism.expert_parallel_degree, read.quantize.grouped_mm.mx.fqns) == (8, ["experts"])
