"""`meshwright weights`: a Hugging Face folder that reads back as the same weights."""

import json
import os

import pytest
import typer

from meshwright.cli.weights import weights
from meshwright.describe.model import Model
from meshwright.errors import InputError
from meshwright.say.vocabulary import problems

torch = pytest.importorskip("torch")

TEXT = "Who rides so late through night and wind? It is the father with his child."
MODEL = Model(name="small", num_layers=2, hidden=32, ffn_hidden=48, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=304)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from meshwright.train.data.tokenizer import train_tokenizer
    from meshwright.train.interop.huggingface import named_tensors
    from meshwright.train.interop.huggingface_save import save_huggingface

    path = tmp_path_factory.mktemp("models") / "small"
    tensors = {name: torch.randn(tensor.shape) for name, tensor in named_tensors(MODEL).items()}
    save_huggingface(path, MODEL, tensors, context=64, tokenizer=train_tokenizer([TEXT] * 3, 300), dtype=torch.float32)
    return path


def run(*arguments: object) -> None:
    app = typer.Typer(add_completion=False)
    app.command()(weights)
    app([str(argument) for argument in arguments], standalone_mode=False)


def test_weights_come_back_as_they_were(folder, tmp_path, capsys):
    from meshwright.train.interop.trained import load_trained

    run(folder, "--out", tmp_path / "again", "--precision", "fp32")
    assert capsys.readouterr().out.startswith("wrote ")
    before, after = (load_trained(path, torch.device("cpu")).transformer for path in (folder, tmp_path / "again"))
    for (name, one), (_, other) in zip(before.named_parameters(), after.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_json_says_what_was_written(folder, tmp_path, capsys):
    run(folder, "--out", tmp_path / "again", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["precision"], answer["num_parameters"]) == ("small", "bf16", MODEL.num_parameters)
    assert problems(answer) == []
    assert {one["path"]: one["size_bytes"] for one in answer["files"]} == {
        str(path): path.stat().st_size for path in (tmp_path / "again").iterdir()
    }


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_are_as_the_umask_has_them(folder, tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        run(folder, "--out", tmp_path / "again")
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "again").iterdir()} == dict.fromkeys(
        ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"), mode
    )


def test_what_is_there_already_is_not_written_over(folder, tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(InputError, match="there is something already"):
        run(folder, "--out", tmp_path / "x")


def test_an_unknown_precision_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="fp8"):
        run(folder, "--out", tmp_path / "x", "--precision", "fp8")
