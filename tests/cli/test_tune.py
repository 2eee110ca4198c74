"""`meshwright tune`: a run from the command line, what it leaves, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from tuned import TUNED, write_data, write_model

from meshwright.cli.main import main
from meshwright.record.run import read_run

QUICK = ("--profile", "none", "--steps", "4", "--batch", "4", "--learning-rate", "0.01")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products of this process in one thread: ranks are forked from it, and would wait for its threads, which are not forked."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder and a data set."""
    folder = tmp_path_factory.mktemp("tune")
    return write_model(folder / "model"), write_data(folder)


@pytest.fixture(scope="module")
def tuned(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with adapters."""
    out = tmp_path_factory.mktemp("out") / "tuned"
    lora = ("--lora", "r=4,alpha=8,targets=q_proj,down_proj,dropout=0.1", "--checkpoint-every", "2", "--pack", "--layout", "dp=2")
    assert main(["tune", *map(str, made), "--out", str(out), *QUICK, *lora]) == 0
    return out


def test_a_run_leaves_its_record_and_its_adapter(tuned: Path) -> None:
    run = read_run(tuned)
    assert run.header.status == "finished" and len(run.records) == 4
    evaluation = [event for event in run.events if event.kind == "evaluation"][-1]
    assert 0 <= evaluation.detail["token_accuracy"] <= 1 and evaluation.detail["loss"] > 0
    config = json.loads((tuned / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["r"] == 4 and config["lora_alpha"] == 8 and config["target_modules"] == ["q_proj", "down_proj"]
    assert (tuned / "adapter" / "adapter_model.safetensors").is_file() and (tuned / "chat_template.jinja").is_file()
    assert {"tune_lora", "tune_pack", "tune_loss", "tune_seq_len"} <= set(run.header.arguments)


def test_checkpoints_hold_adapters_alone(tuned: Path) -> None:
    from meshwright.train.checkpoint import read_manifest

    (newest,) = sorted((tuned / "checkpoints").glob("step-*"))[-1:]
    assert {name.rpartition(".")[2] for name in read_manifest(newest).tensors} == {"lora_a", "lora_b"}


def test_the_result_answers_through_its_template(tuned: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ask = ["--chat", "--prompt", "Say one .", "--tokens", "5", "--temperature", "0", "--json"]
    found = []
    merged = tmp_path / "merged"
    assert main(["weights", str(tuned), "--merge", "--out", str(merged), "--precision", "fp32"]) == 0
    assert main(["weights", str(tuned), "--out", str(tmp_path / "adapter")]) == 0
    for folder in (tuned, tuned / "adapter", merged, tmp_path / "adapter"):
        capsys.readouterr()
        assert main(["generate", str(folder), *ask]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert len({tuple(one["new_tokens"]) for one in found}) == 1
    assert len(found[0]["prompt_tokens"]) > 8
    assert len({tuple(one["prompt_tokens"]) for one in found}) == 1


def test_a_run_goes_on_with_another_layout(tuned: Path, made: tuple[Path, Path], tmp_path: Path) -> None:
    """The same losses as a run that was never interrupted: samples, dropout and moments are those of the run."""
    import shutil

    part = tmp_path / "part"
    shutil.copytree(tuned, part)
    for path in sorted((part / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(path)
    header = json.loads((part / "run.json").read_text(encoding="utf-8"))
    (part / "run.json").write_text(json.dumps({**header, "name": "part"}), encoding="utf-8")
    assert main(["tune", "--out", str(part), "--resume", "--layout", "tp=2", "--profile", "none"]) == 0
    before, after = ([record.loss for record in read_run(folder).records] for folder in (tuned, part))
    assert after == pytest.approx(before, rel=1e-5)


def test_all_weights_are_tuned(made: tuple[Path, Path], tmp_path: Path) -> None:
    from meshwright.train.interop.huggingface import load_huggingface

    out = tmp_path / "full"
    assert main(["tune", *map(str, made), "--out", str(out), *QUICK, "--full", "--valid-share", "0"]) == 0
    model, _ = load_huggingface(out / "model")
    assert model.vocab_size == TUNED.vocab_size
    losses = [record.loss for record in read_run(out).records]
    assert losses[-1] < losses[0]


def test_samples_are_shown_token_by_token(made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *map(str, made), "--show", "2"]) == 0
    out = capsys.readouterr().out
    assert "line 1 of" in out and "\u27e6<|im_end|>\u27e7" in out and "|<|im_start|>|assistant|" in out
    assert main(["tune", *map(str, made), "--show", "1", "--json"]) == 0
    (sample,) = json.loads(capsys.readouterr().out)["shown_samples"]
    text = "".join(token["token_text"] for token in sample["shown_tokens"] if token["is_trained"])
    assert text == "one <|im_end|>" and sample["num_trained_tokens"] == sum(token["is_trained"] for token in sample["shown_tokens"])


Spoil = Callable[[Path, Path], list[str]]


def _without_weights(model: Path, data: Path) -> list[str]:
    (model / "model.safetensors").unlink()
    return []


def _other_shape(model: Path, data: Path) -> list[str]:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}), encoding="utf-8")
    return []


def _without_key(model: Path, data: Path) -> list[str]:
    data.write_text(data.read_text(encoding="utf-8") + '{"instruction": "a"}\n', encoding="utf-8")
    return []


def _failing_template(model: Path, data: Path) -> list[str]:
    (model / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}", encoding="utf-8")
    return []


def _without_config(model: Path, data: Path) -> list[str]:
    (model / "config.json").unlink()
    return []


def _other_adapter(model: Path, data: Path) -> list[str]:
    from dataclasses import replace

    import torch

    from meshwright.describe.workload import Adapters
    from meshwright.train.interop.peft import named_pairs, save_peft

    other, adapters = replace(TUNED, hidden=64), Adapters(rank=2, targets=("q",))
    pairs = {name: torch.zeros(tensor.shape) for name, tensor in named_pairs(other, adapters).items()}
    save_peft(model.parent / "other", other, adapters, pairs, "elsewhere", {})
    return ["--adapter", str(model.parent / "other"), "--lora", "r=2,targets=q_proj"]


REFUSED: dict[str, tuple[Spoil, str]] = {
    "no config": (_without_config, "this is no model: it has no config.json"),
    "no weights": (_without_weights, "neither model.safetensors nor"),
    "weights of another shape": (_other_shape, "according to config.json it is [96, 32]"),
    "an adapter of another base": (_other_adapter, "for another base"),
    "a template that fails": (_failing_template, "the chat template fails: no such role"),
    "a row without its key": (_without_key, "the row has no key 'output'"),
    "longer than the model reads": (lambda model, data: ["--seq-len", "999"], "longer than the 256 that the model can read"),
    "samples that are too long": (lambda model, data: ["--seq-len", "8", "--too-long", "refuse"], "tokens and the limit is 8"),
    "a target that is no layer": (lambda model, data: ["--lora", "targets=q_prj"], "no linear layer of"),
    "nothing to train on": (lambda model, data: ["--seq-len", "8"], "nothing in the data set is trained on"),
    "both kinds": (lambda model, data: ["--full", "--lora", "r=4"], "--full trains all weights"),
    "a base that is not known": (lambda model, data: ["--base", "int3"], "a base is not kept in 'int3'"),
    "a key of adapters that is not known": (lambda model, data: ["--lora", "rank=4"], "no choice of adapters is named 'rank'"),
    "a rank that is no number": (lambda model, data: ["--lora", "r=x"], "r is 'x', not a number"),
    "a rank of zero": (lambda model, data: ["--lora", "r=0"], "a rank of 0"),
    "a batch larger than the data": (lambda model, data: ["--batch", "999"], "one batch needs 999"),
    "a layout that does not divide": (lambda model, data: ["--layout", "tp=3"], "tensor degree 3"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_input_is_one_message_and_writes_nothing(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, message = REFUSED[what]
    model, data = write_model(tmp_path / "model"), write_data(tmp_path)
    more = spoil(model, data)
    before = sorted(tmp_path.iterdir())
    assert main(["tune", str(model), str(data), "--out", str(tmp_path / "out"), "--profile", "none", *more]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("  fix: ") == 1 and "Traceback" not in error
    assert sorted(tmp_path.iterdir()) == before


def test_folders_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_data(tmp_path)
    assert main(["tune", str(tmp_path / "none"), str(data), "--out", str(tmp_path / "out")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["tune", str(write_model(tmp_path / "model")), str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "out")]) == 2
    assert "no such file" in capsys.readouterr().err
