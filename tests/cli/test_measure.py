"""`meshwright measure` and `--profile`: what is written, what is printed, what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.describe.profile import Profile, load_profile
from meshwright.say.vocabulary import problems

FIXTURES = Path(__file__).parents[1] / "fixtures"
CARD, CORES = str(FIXTURES / "profile_of_a_card.json"), str(FIXTURES / "profile_of_cores.json")
H200 = (
    "predict",
    "llama-3.1-8b",
    "hgx-h200-ndr",
    "pretrain-1t",
    "--gpus",
    "8",
    "--layout",
    "dp=8",
    "--set",
    "workload.precision=bf16-pure",
)


@pytest.fixture
def measured(monkeypatch, tmp_path) -> list[tuple]:
    """What the command asks to be measured; nothing is, and the answer is a profile of two cores. The user's cache is empty."""
    import meshwright.train.measure.machine as package

    calls: list[tuple] = []

    def measure(asked, device, num_processes, report, **options) -> Profile:
        calls.append((asked, num_processes, options))
        report("something")
        return load_profile(Path(CORES))

    monkeypatch.setattr(package, "measure", measure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


def test_without_a_word_the_embedded_default_is_timed_and_kept_in_the_users_cache(measured, capsys, tmp_path):
    assert main(["measure"]) == 0
    out, err = capsys.readouterr()
    asked, num_processes, _ = measured[0]
    assert [(one.model.name, one.micro_batch, one.seq_len, one.packed) for one in asked] == [("llama-2m", 4, 128, True)]
    assert num_processes == 8 and re.fullmatch(r"meshwright: +\d+ s  something\n", err)
    path = tmp_path / "cache" / "meshwright" / "profile.json"
    assert load_profile(path) == load_profile(Path(CORES))
    assert "slices of the training step" in out and "collectives" in out and " ".join(out.split()).endswith("on this machine by default")


def test_models_and_shapes_are_taken_as_given(measured, capsys, tmp_path):
    out = tmp_path / "mine.json"
    arguments = [
        "--model",
        "llama-2m",
        "--seq",
        "64",
        "--batch",
        "2",
        "--processes",
        "4",
        "--precision",
        "bf16",
        "--out",
        str(out),
        "--json",
    ]
    assert main(["measure", *arguments]) == 0
    asked, num_processes, _ = measured[0]
    assert [(one.micro_batch, one.seq_len, one.precisions) for one in asked] == [(2, 64, ("bf16",))] and num_processes == 4
    printed = json.loads(capsys.readouterr().out)
    assert problems(printed) == []
    assert printed["profile"] == json.loads(out.read_text())
    assert printed["files"] == [{"what": "hardware profile", "path": str(out)}]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--model", "llama-9"), "llama-9"),
        (("--precision", "fp5"), "does not run in 'fp5'"),
        (("--out", "."), "this is a folder"),
        (("--out", "profile.txt"), "a profile is a .json file"),
        (("--processes", "0"), "--processes"),
        (("--seq", "1"), "--seq"),
        (("--batch", "0"), "--batch"),
        (("--model", "llama-3.1-405b", "--processes", "64"), "need"),
        (("--model", "mixtral-8x7b"), "slices of mixtral-8x7b in 8 processes need"),
        (("--model", "qwen3-30b-a3b", "--recompute", "mlp"), "computes dense MLPs again, and qwen3-30b-a3b has experts"),
        (("--recompute", "offload"), "choose from none, selective, full"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_timed(arguments, message, measured, capsys):
    assert main(["measure", *arguments]) == 2
    assert message in capsys.readouterr().err and measured == []


LORA = """
name = "lora"
model = ""
seq_len = 96
global_batch = 2
precision = "bf16"

[adapters]
rank = 4
targets = ["q", "v"]
base = "nf4"
"""


def test_a_workload_says_what_slices_train(measured, capsys, tmp_path):
    (tmp_path / "lora.toml").write_text(LORA)
    words = ["measure", "--workload", str(tmp_path / "lora.toml"), "--recompute", "mlp", "--out", str(tmp_path / "mine.json")]
    assert main(words) == 0
    ((one,), _, _) = measured[0]
    assert (one.seq_len, one.precisions, one.recompute, one.packed) == (96, ("bf16",), "mlp", False)
    assert (one.adapters.rank, one.adapters.base) == (4, "nf4")
    assert main([*words, "--precision", "fp32", "--seq", "64"]) == 0
    ((one,), _, _) = measured[1]
    assert (one.seq_len, one.precisions) == (64, ("fp32",))


def test_a_prediction_by_a_profile_says_so(capsys):
    assert main([*H200, "--profile", CARD, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parts_s"]["compute"] > 0 and "NVIDIA H200" in document["evidence"]["compared_with"]
    assert main([*H200, "--profile", CARD]) == 0
    assert "compute as timed here: profile of NVIDIA H200" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((*H200, "--profile", CORES), "the profile is of AMD EPYC"),
        ((*H200, "--profile", "nowhere.json"), "cannot read the hardware profile"),
        ((*H200[:-1], "workload.precision=fp8", "--profile", CARD), "no products in fp8"),
        (("predict", "llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", "--gpus", "8", "--layout", "dp=8", "--profile", CARD), "has h100"),
        (("predict", "mixtral-8x7b", *H200[2:], "--profile", CARD), "no products of experts in bf16"),
        (("plan", "llama-2m", "this-machine-2x4", "python-stdlib", "--profile", CARD), "the profile is of NVIDIA H200"),
        (("train", "--profile", "nowhere.json"), "cannot read the hardware profile"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(arguments, message, capsys):
    assert main(list(arguments)) == 2
    assert message in capsys.readouterr().err


def test_this_machines_own_profile_is_taken_and_can_be_left_out(monkeypatch, capsys, tmp_path):
    from meshwright.predict import profile_choice

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profile_choice, "processor_name", lambda: "AMD EPYC")
    (tmp_path / "meshwright").mkdir()
    (tmp_path / "meshwright" / "profile.json").write_text(Path(CORES).read_text())
    asked = ["predict", "llama-2m", "this-machine-2x4", "python-stdlib", "--layout", "tp=2,pp=2,mbs=4", "--json"]
    evidence = []
    for more in ([], ["--profile", "none"]):
        assert main([*asked, *more]) == 0
        evidence.append(json.loads(capsys.readouterr().out)["evidence"]["compared_with"])
    assert "8 processes on 2 cores" in evidence[0] and "profile" not in evidence[1]
    (tmp_path / "meshwright" / "profile.json").write_text("{")  # what cannot be read is not guessed at
    assert main(asked) == 0
    assert "profile" not in json.loads(capsys.readouterr().out)["evidence"]["compared_with"]


@pytest.mark.parametrize(
    ("arguments", "count"), [(["--model", "llama-2m"], 2), (["--model", "llama-2m", "--precision", "bf16"], 1), ([], 6)]
)
def test_where_there_seems_to_be_a_gpu_processes_start_before_torch_and_none_stays(arguments, count, measured, monkeypatch):
    from meshwright.cli import train_run
    from meshwright.train.measure import waiting

    made, order = [], []

    class Started(waiting.Waiting):
        def __init__(self, *given) -> None:
            super().__init__(*given)
            made.append(self)
            order.append("process")

    monkeypatch.setattr(train_run, "torch_or_error", lambda: order.append("torch"))

    monkeypatch.setattr(waiting, "sees_gpu", lambda: True)
    monkeypatch.setattr(waiting, "Waiting", Started)
    assert main(["measure", *arguments]) == 0
    assert measured[0][2]["ready"] == made and order == ["process"] * count + ["torch"]
    assert all(one.process.poll() is not None for one in made)


def test_what_attention_ran_by_is_reported_a_gpu(measured, monkeypatch, capsys, tmp_path):
    import meshwright.train.measure.machine as package

    profile = load_profile(Path(CARD))
    first, *others = profile.attentions
    made = replace(profile, attentions=(replace(first, kernel="flash-attn-4 4.5"), *others))
    monkeypatch.setattr(package, "measure", lambda *given, **options: made)
    path = tmp_path / "made.json"
    assert main(["measure", "--out", str(path)]) == 0
    assert re.search(r"attention by +flash-attn-4 4.5, torch's own kernels\n", capsys.readouterr().out)
    assert load_profile(path) == made and load_profile(path).attentions[0].kernel == "flash-attn-4 4.5"
