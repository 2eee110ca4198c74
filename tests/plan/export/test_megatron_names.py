"""Exported arguments against Megatron's packages of PyPI; skipped where they are not installed (the extra `export-test`).

Megatron-LM's parser (megatron/training/arguments.py) is in no package of PyPI. Names are held against the fields of megatron-core and
megatron-bridge that the parser fills, values against megatron-core's own checks, rank order against the groups that it makes.
"""

import ast
from dataclasses import replace

import pytest

from meshwright.plan.export import megatron, megatron_bridge
from meshwright.plan.numbering import DP_LAST, PP_LAST

pytestmark = pytest.mark.filterwarnings("ignore")  # Megatron's and torch's

# Arguments whose value lands in a field of another name (`dest=` in arguments.py, or its validation).
FIELD_OF = {
    "ddp_bucket_size": "bucket_size",
    "disable_bias_linear": "add_bias_linear",
    "fp4_format": "fp4",
    "fp8_format": "fp8",
    "grad_reduce_in_bf16": "grad_reduce_in_fp32",
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "no_overlap_p2p_communication": "overlap_p2p_comm",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "recompute_activations": "recompute_granularity",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_experts": "num_moe_experts",
}

PLANS = (
    ("tp=2,cp=2,pp=4,vp=2,dp=4", "llama-3.1-8b"),
    ("tp=2,dp=32,zero=3,recompute=full,overlap_tp=yes", "llama-3.1-8b"),
    ("pp=4,vp=2,dp=16,overlap_pp=no,recompute=selective", "llama-3.1-8b"),
    ("pp=4,dp=16,first_stage_layers=7,last_stage_layers=7", "llama-3.1-8b"),
    ("tp=8,dp=8", "gpt-oss-120b"),
    ("tp=4,ep=8,dp=16", "deepseek-v3"),
    ("tp=4,ep=8,dp=16", "qwen3-30b-a3b"),
)


def fields_of(*paths):
    """Fields of every dataclass in these files."""
    classes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
    return {item.target.id for node in classes for item in node.body if isinstance(item, ast.AnnAssign)}


@pytest.fixture(scope="module")
def core_fields(package):
    root = package("megatron.core")
    names = ("model_parallel_config", "transformer/transformer_config", "distributed/distributed_data_parallel_config")
    return fields_of(*(root / f"{name}.py" for name in (*names, "optimizer/optimizer_config")))


@pytest.fixture(scope="module")
def bridge_fields(core_fields, package):
    root = package("megatron.bridge")
    return core_fields | fields_of(
        *(root / f"{name}.py" for name in ("training/config", "models/gpt_provider", "training/comm_overlap", "peft/lora"))
    )


@pytest.fixture(scope="module")
def read_arguments(package):
    """Attributes of the parsed arguments that megatron-bridge reads from Megatron-LM checkpoints."""
    files = (package("megatron.bridge") / "training" / "mlm_compat").glob("*.py")
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    return {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "args"}


def arguments_of(plan):
    return {
        argument[0].removeprefix("--").replace("-", "_"): argument[1:] for group in megatron.groups(plan) for argument in group.arguments
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8", "fp8-current", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("layout, model", PLANS)
def test_every_argument_is_one_of_megatrons(planned, bridge_fields, read_arguments, layout, model, precision):
    plan = planned(layout, model=model, precision=precision, machine="gb200-nvl72-ndr" if "ep" in layout else "dgx-h100-superpod")
    names = {FIELD_OF.get(name, name) if name not in read_arguments else name for name in arguments_of(plan)}
    assert names - bridge_fields - read_arguments == set()


@pytest.mark.parametrize("layout, model", PLANS)
def test_every_override_is_a_field_of_megatron_bridge(planned, bridge_fields, layout, model):
    for _, _, section in megatron_bridge.sections(planned(layout, model=model)):
        assert section.keys() - {"_target_"} - {"seq_length"} <= bridge_fields


def test_megatron_bridge_has_the_recipes_and_precisions(package):
    root = package("megatron.bridge")
    recipes = "\n".join(path.read_text() for path in (root / "recipes").rglob("*.py"))
    assert [name for name in megatron_bridge.RECIPES.values() if f"def {name}(" not in recipes] == []
    precisions = (root / "training" / "mixed_precision.py").read_text()
    assert [name for name in megatron_bridge.MIXED_PRECISION.values() if f"def {name}(" not in precisions] == []


NUMBERS = {"(128,0)": (128, 0)}


@pytest.mark.parametrize("layout, model", PLANS)
def test_megatron_core_takes_the_values(planned, imported, layout, model):
    config = imported("megatron.core.transformer.transformer_config")
    plan = planned(f"{layout},cuda_graphs=no", model=model)  # graphs need Transformer Engine
    kind = config.MLATransformerConfig if plan.model.latent else config.TransformerConfig
    values = {}
    for name, words in arguments_of(plan).items():
        field = FIELD_OF.get(name, name)
        if field in kind.__dataclass_fields__:
            values[field] = _value(words, positive=not name.startswith(("no_", "disable_")))
    values["recompute_granularity"] = {"none": None}.get(plan.layout.recompute, plan.layout.recompute)
    made = kind(**values, pipeline_dtype=imported("torch").bfloat16)
    assert made.tensor_model_parallel_size == plan.layout.tp and made.pipeline_model_parallel_size == plan.layout.pp


def _value(words, positive):
    if not words:
        return positive
    word = words[0]
    return NUMBERS.get(word) or (int(word) if word.isdecimal() else eval(word) if word.startswith("(") else word)


@pytest.mark.parametrize("order", [PP_LAST, DP_LAST])
@pytest.mark.parametrize(
    "degrees", ["tp=2,cp=2,pp=4,dp=4", "tp=2,pp=4,dp=8", "tp=4,cp=2,dp=8", "tp=2,cp=2,pp=4,dp=4,ep=4", "tp=2,pp=4,dp=8,ep=8"]
)
def test_megatrons_groups_are_the_plans(planned, imported, degrees, order):
    """Megatron-core's own groups, made on pretended ranks, are the rows of the plan's grid: where no rank file is asked for."""
    distributed = imported("torch.distributed")
    fake, state = imported("torch.testing._internal.distributed.fake_pg"), imported("megatron.core.parallel_state")
    plan = planned(f"{degrees},order={'-'.join(order)}", model="mixtral-8x7b" if "ep" in degrees else "llama-3.1-8b")
    found = arguments_of(plan)
    mapped = "tp-cp-ep-pp-dp" if "use_tp_pp_dp_mapping" in found else "tp-cp-ep-dp-pp"
    numbered = replace(plan.layout, order=megatron.rank_order(plan))
    distributed.init_process_group("fake", rank=5, world_size=64, store=fake.FakeStore())
    try:
        state.initialize_model_parallel(
            tensor_model_parallel_size=plan.layout.tp,
            context_parallel_size=plan.layout.cp,
            pipeline_model_parallel_size=plan.layout.pp,
            expert_model_parallel_size=int(found.get("expert_model_parallel_size", ("1",))[0]),
            expert_tensor_parallel_size=int(found["expert_tensor_parallel_size"][0]) if "expert_tensor_parallel_size" in found else None,
            order=mapped,
            create_gloo_process_groups=False,
        )
        groups = {
            "tp": state.get_tensor_model_parallel_group(),
            "cp": state.get_context_parallel_group(),
            "pp": state.get_pipeline_model_parallel_group(),
            "dp": state.get_data_parallel_group(),
        }
        for axis, group in groups.items():
            here = numbered.coordinate(5)
            row = [numbered.rank({**here, axis: i}) for i in range(getattr(numbered, axis))]
            assert distributed.get_process_group_ranks(group) == row
    finally:
        state.destroy_model_parallel()
        distributed.destroy_process_group()
