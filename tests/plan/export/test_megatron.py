"""Megatron-LM arguments: the record run's whole file, choices one by one, and what is refused."""

import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest

from meshwright.describe.load import load_model, load_workload
from meshwright.errors import InputError
from meshwright.plan.export import megatron

RECORD = """
--num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248 --num-attention-heads 128 --kv-channels 128
--group-query-attention --num-query-groups 8
--normalization RMSNorm --swiglu --disable-bias-linear --position-embedding-type rope
--vocab-size 128256 --make-vocab-size-divisible-by 64 --untie-embeddings-and-output-weights
--tensor-model-parallel-size 4 --context-parallel-size 2 --pipeline-model-parallel-size 8 --sequence-parallel
--use-tp-pp-dp-mapping --expert-tensor-parallel-size 8
--num-virtual-stages-per-pipeline-rank 8 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split
--cp-comm-type p2p
--micro-batch-size 1 --global-batch-size 1024 --seq-length 8192 --max-position-embeddings 8192 --train-samples 331776
--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 134217728
--bf16 --fp4-format e2m1 --fp4-recipe nvfp4 --grad-reduce-in-bf16
--cuda-graph-impl transformer_engine --te-rng-tracker
"""


def words(plan):
    """All arguments of a plan's file, as a shell reads them."""
    body = megatron.arguments(plan).split("MEGATRON_ARGS=(\n")[1].removesuffix(")\n")
    return shlex.split(body, comments=True)


def pairs(plan):
    """Flag -> value, or True for a switch."""
    found = {}
    for word in words(plan):
        if word.startswith("--"):
            flag, found[word] = word, True
        else:
            found[flag] = word
    return found


def test_the_record_run(record):
    assert words(record) == RECORD.split()


def test_the_file_says_where_it_comes_from(record):
    lines = megatron.arguments(record).splitlines()
    assert lines[0] == "# Megatron-LM arguments, written by meshwright"
    assert lines[1].startswith("# plan: llama-3.1-405b on azure-gb200-128")
    assert lines[2] == "# layout: tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1, order tp-cp-pp-dp, schedule interleaved, ring context"
    assert max(map(len, lines)) <= 125


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_shell_reads_the_same_words(planned, tmp_path):
    plan = planned("tp=4,ep=8,dp=16,order=tp-cp-dp-pp", model="deepseek-v3", machine="gb200-nvl72-ndr")
    path = tmp_path / "megatron.sh"
    path.write_text(megatron.arguments(plan))
    script = f"source {shlex.quote(str(path))}; printf '%s\\n' \"${{MEGATRON_ARGS[@]}}\""
    read = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert read.stdout.splitlines() == words(plan)


def test_experts_that_are_divided(planned):
    found = pairs(planned("tp=4,ep=8,etp=2,dp=16", model="deepseek-v3", machine="gb200-nvl72-ndr"))
    assert (found["--expert-model-parallel-size"], found["--expert-tensor-parallel-size"]) == ("8", "2")


def test_experts_and_latent_attention(planned):
    found = pairs(planned("tp=4,ep=8,dp=16", model="deepseek-v3", machine="gb200-nvl72-ndr"))
    wanted = {
        "--num-experts": "256",
        "--moe-router-topk": "8",
        "--moe-ffn-hidden-size": "2048",
        "--moe-shared-expert-intermediate-size": "2048",
        "--moe-layer-freq": "([0]*3+[1]*58)",
        "--expert-model-parallel-size": "8",
        "--expert-tensor-parallel-size": "1",
        "--multi-latent-attention": True,
        "--q-lora-rank": "1536",
        "--kv-lora-rank": "512",
        "--qk-head-dim": "128",
        "--qk-pos-emb-head-dim": "64",
        "--v-head-dim": "128",
        "--mtp-num-layers": "1",
        "--cuda-graph-scope": "attn",
    }
    assert wanted.items() <= found.items()
    assert "--kv-channels" not in found and "--num-query-groups" not in found


def test_gpt_3_has_learned_positions_biases_and_a_tied_embedding(planned):
    found = pairs(planned("tp=8,dp=8", model="gpt-3-175b", seq_len=2048))
    assert found["--position-embedding-type"] == "learned_absolute"
    assert found["--normalization"] == "LayerNorm"
    assert not {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"} & found.keys()


def test_windows_and_sinks(planned):
    plan = planned("tp=8,dp=8", model="gpt-oss-120b")
    found = pairs(plan)
    assert (found["--window-size"], found["--window-attn-skip-freq"]) == ("(128,0)", "2")
    assert found["--softmax-type"] == "learnable"
    assert any("clamp" in limit for limit in megatron.limits(plan))


@pytest.mark.parametrize(
    "layout, there, absent",
    [
        ("tp=1,dp=64", set(), {"--sequence-parallel", "--cp-comm-type", "--use-tp-pp-dp-mapping"}),
        ("tp=2,dp=32,zero=0", {"--overlap-grad-reduce"}, {"--use-distributed-optimizer", "--overlap-param-gather"}),
        ("tp=2,dp=32,overlap_dp=no", {"--use-distributed-optimizer"}, {"--overlap-grad-reduce", "--ddp-bucket-size"}),
        ("tp=2,dp=32,overlap_tp=yes", {"--tp-comm-overlap"}, set()),
        ("tp=2,dp=32,overlap_tp=yes,order=cp-pp-dp-tp", {"--sequence-parallel"}, {"--tp-comm-overlap"}),  # over the fabric
        ("tp=16,dp=4,overlap_tp=yes", {"--sequence-parallel"}, {"--tp-comm-overlap"}),
        ("tp=2,dp=32,recompute=selective", {"--recompute-activations", "--cuda-graph-impl"}, set()),
        ("tp=2,dp=32,recompute=full", {"--recompute-granularity"}, {"--cuda-graph-impl", "--te-rng-tracker"}),
        ("tp=2,dp=32,cuda_graphs=no", set(), {"--cuda-graph-impl"}),
        ("pp=4,vp=2,dp=16,overlap_pp=no", {"--no-overlap-p2p-communication"}, {"--account-for-loss-in-pipeline-split"}),
        ("pp=4,dp=16,first_stage_layers=7,last_stage_layers=7", {"--decoder-first-pipeline-num-layers"}, set()),
        ("tp=2,dp=32,zero=3", {"--use-megatron-fsdp", "--ckpt-format"}, set()),
    ],
)
def test_a_choice_is_a_flag(planned, layout, there, absent):
    found = pairs(planned(layout))
    assert there <= found.keys()
    assert not absent & found.keys()


@pytest.mark.parametrize("kind, name", [("ring", "p2p"), ("all-gather", "all_gather"), ("all-to-all", "a2a")])
def test_kinds_of_context_parallelism(planned, kind, name):
    assert pairs(planned(f"cp=4,dp=16,cp_kind={kind}"))["--cp-comm-type"] == name


@pytest.mark.parametrize(
    "precision, wanted",
    [
        ("fp32", {}),
        ("bf16", {"--bf16": True}),
        ("fp8", {"--fp8-format": "hybrid", "--fp8-recipe": "delayed", "--fp8-param-gather": True, "--grad-reduce-in-bf16": True}),
        ("fp8-current", {"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"}),
        ("mxfp8", {"--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"}),
        ("nvfp4", {"--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"}),
    ],
)
def test_precisions(planned, precision, wanted):
    found = pairs(planned("tp=2,dp=32", precision=precision))
    assert wanted.items() <= found.items()
    assert ("--bf16" in found) == (precision != "fp32")
    assert any(flag.startswith("--fp") for flag in found) == (precision not in ("fp32", "bf16"))


def test_the_vocabulary_is_never_padded(planned):
    # 151,936 = 2^7 x 1,187: over 4 ranks a multiple of 32 adds nothing, 64 would.
    found = pairs(planned("tp=4,dp=16", model="qwen3-235b-a22b"))
    assert found["--make-vocab-size-divisible-by"] == "32"
    assert 151_936 % (32 * 4) == 0


def test_the_pipeline_outermost_is_megatrons_own_order(planned):
    plan = planned("tp=2,pp=4,dp=8,order=tp-cp-dp-pp")
    assert "--use-tp-pp-dp-mapping" not in pairs(plan)
    assert not any("rank file" in limit for limit in megatron.limits(plan))


def test_an_order_it_does_not_have_needs_the_rank_file(planned):
    assert any("rankfile-pp-last" in limit for limit in megatron.limits(planned("tp=2,pp=4,dp=8,order=pp-tp-cp-dp")))


@pytest.mark.parametrize("ep, mapped", [(4, True), (8, False)])
def test_experts_of_another_data_parallel_degree_keep_the_pipeline_outermost(planned, ep, mapped):
    plan = planned(f"tp=4,pp=2,dp=8,ep={ep}", model="mixtral-8x7b")
    assert ("--use-tp-pp-dp-mapping" in pairs(plan)) == mapped
    assert any("rankfile-pp-last" in limit for limit in megatron.limits(plan)) != mapped


@pytest.mark.parametrize("layout", ["pp=4,dp=16,schedule=zero-bubble", "pp=2,vp=2,dp=32,overlap_pp=no"])
def test_what_it_cannot_run_is_refused(planned, layout):
    with pytest.raises(InputError, match="Megatron-LM"):
        megatron.arguments(planned(layout))


def test_adapters_belong_to_megatron_bridge(planned):
    adapters = load_workload("mlperf-llama2-70b-lora").adapters
    with pytest.raises(InputError) as error:
        megatron.arguments(planned("tp=2,dp=32", adapters=adapters))
    assert error.value.fix == "export to megatron-bridge"


def test_biases_on_all_projections_are_reported_to_be_missing(planned):
    model = replace(load_model("llama-3.1-8b"), attention_biases=True)
    plan = planned("tp=2,dp=32", model=model)
    assert "--add-qkv-bias" in pairs(plan)
    assert any("four attention projections" in limit for limit in megatron.limits(plan))
