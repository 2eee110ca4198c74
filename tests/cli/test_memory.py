"""`meshwright memory`: all it prints for people and for programs, and what bad input gets."""

import json

import pytest

from meshwright.cli.main import main
from meshwright.say.vocabulary import problems

ASKED = ("llama-3.1-70b", "--serve", "--context", "131072", "--concurrency", "8", "--precision", "fp8", "--on", "h200")

WHOLE = """\
llama-3.1-70b in fp8 on h200
accelerators         4
sequences asked for  8 of 131,072 tokens
sequences that fit   11
weights in total     67.7 GiB
KV cache in total    320.0 GiB in bf16, 327,680 bytes per token

on each accelerator
part                   bytes        GiB
weights       18,166,071,296   16.9 GiB
KV cache      85,899,345,920   80.0 GiB
activations      621,783,040    0.6 GiB
reserve        4,000,000,000    3.7 GiB
free          42,067,619,840   39.2 GiB
all          150,754,820,096  140.4 GiB

note: the matrices of layers are in the precision asked for; embedding, output projection, norms and router are in bf16
note: prompts are read in pieces of 8192 tokens; the reserve is for CUDA, NCCL, graphs and fragments (assumed)
"""


@pytest.fixture
def run(capsys):
    def run_command(*arguments):
        code = main(["memory", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


def test_everything_it_prints(run):
    assert run(*ASKED) == (0, WHOLE, "")


def test_the_same_as_json(run):
    code, out, err = run(*ASKED, "--kv-precision", "fp8", "--tp", "8", "--json")
    found = json.loads(out)
    assert (code, err, found["num_accelerators"], found["kv_bytes_per_token"]) == (0, "", 8, 163_840)
    parts = sum(found[f"{part}_bytes"] for part in ("weights", "kv", "activations", "reserve", "spare"))
    assert parts == found["memory_bytes"] == 150_754_820_096  # what the driver says an H200 has
    assert problems(found) == []


def test_what_a_mixture_of_experts_with_latent_attention_is_reported(run):
    code, out, _ = run("deepseek-v3", "--serve", "--context", "32768", "--precision", "nvfp4", "--on", "h200")
    assert code == 0
    for words in ("the whole latent cache", "without the multi-token-prediction layers", "no fp4 tensor cores"):
        assert words in out


@pytest.mark.parametrize(
    "arguments, what, fix",
    [
        (("llama-3.1-70b",), "memory for training depends on a layout", "meshwright predict MODEL CLUSTER WORKLOAD"),
        (("llama-3.1-70b", "--serve", "--context", "8192"), "no accelerator is named", "--on h200"),
        (("llama-3.1-70b", "--serve", "--on", "h200"), "no context length", "--context 8192"),
        (("llama-3.1-70b", "--serve", "--context", "-5", "--on", "h200"), "--context is -5", "give 1 or more"),
        (("llama-3.1-70b", "--serve", "--context", "8192", "--on", "h2000"), "no accelerator", "h200"),
        (("llama-3.1-70b", "--serve", "--context", "8192", "--on", "h200", "--tp", "3"), "tensor degree 3", "choose tp from 1, 2, 4"),
        (("llama-3.1-70b", "--serve", "--context", "8192", "--on", "h200", "--precision", "fp7"), "no --precision named 'fp7'", "fp8"),
        (("llama-3.1-405b", "--serve", "--context", "8192", "--on", "h200", "--tp", "1"), "more on each of 1 h200", "lower precision"),
        (
            ("llama-3.1-70b", "--serve", "--context", "99999999999", "--on", "h200"),
            "--context is '99999999999'",
            "give a whole number: at most 1,000,000,000",
        ),
    ],
)
def test_bad_input_is_one_message_and_exit_2(run, arguments, what, fix):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("meshwright: ") and what in err and fix in err
