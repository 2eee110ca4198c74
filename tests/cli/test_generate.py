"""`meshwright generate`: the text, the JSON, and what a terminal is kept from."""

import io
import json
import sys

import pytest
import typer

from meshwright.cli.generate import PICTURES, generate
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
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(tensor.shape, generator=generator) * 0.3 for name, tensor in named_tensors(MODEL).items()}
    save_huggingface(path, MODEL, weights, context=64, tokenizer=train_tokenizer([TEXT] * 3, 300), dtype=torch.float32)
    return path


@pytest.fixture
def run(capsys):
    app = typer.Typer(add_completion=False)
    app.command()(generate)

    def run_command(*arguments):
        app([str(argument) for argument in arguments], standalone_mode=False)
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run_command


def test_the_text_goes_on_behind_the_prompt(run, folder):
    out, err = run(folder, "--prompt", "Who rides", "--tokens", 20)
    assert out.startswith("Who rides")
    assert len(out) > len("Who rides") + 10
    assert out.endswith("\n")
    assert err == f"{folder}\n"


def test_json_holds_the_same_text_and_its_tokens(run, folder):
    text, _ = run(folder, "--prompt", "Who rides", "--tokens", 20, "--seed", 3)
    out, err = run(folder, "--prompt", "Who rides", "--tokens", 20, "--seed", 3, "--json")
    answer = json.loads(out)
    assert err == ""
    assert problems(answer) == []
    assert answer["prompt"] + answer["continuation"] + "\n" == text
    assert (len(answer["new_tokens"]), answer["is_ended"], answer["seed"], answer["model"]) == (20, False, 3, "small")
    assert (answer["temperature"], answer["weights_from"]) == (0.8, str(folder))


def test_the_seed_decides(run, folder):
    once = run(folder, "--prompt", "It is", "--tokens", 20)
    assert run(folder, "--prompt", "It is", "--tokens", 20) == once
    assert run(folder, "--prompt", "It is", "--tokens", 20, "--seed", 1) != once
    greedy = run(folder, "--prompt", "It is", "--tokens", 20, "--temperature", 0)
    assert run(folder, "--prompt", "It is", "--tokens", 20, "--temperature", 0, "--seed", 1) == greedy
    assert run(folder, "--prompt", "It is", "--tokens", 20, "--top-k", 1) == greedy
    assert run(folder, "--prompt", "It is", "--tokens", 20, "--top-p", 1e-9) == greedy


def test_only_tokens_with_a_meaning_are_drawn(run, folder):
    out, _ = run(folder, "--prompt", "", "--tokens", 60, "--temperature", 20, "--json")
    answer = json.loads(out)
    assert answer["prompt_tokens"] == [0]
    assert max(answer["new_tokens"]) < 300


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--tokens", 100), "tokens of prompt and 100 new ones are more than the 64"),
        (("--tokens", 5, "--temperature", -1), "temperature is -1"),
        (("--tokens", 5, "--top-p", 0), "top_p is 0"),
    ],
)
def test_what_cannot_be_is_reported(run, folder, arguments, what):
    with pytest.raises(InputError, match=what):
        run(folder, "--prompt", "Who", *arguments)


def test_a_folder_that_is_not_there(run, tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        run(tmp_path / "absent", "--prompt", "Who")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_pictures_of_control_characters(run, folder, monkeypatch):
    text, _ = run(folder, "--prompt", "", "--tokens", 60, "--temperature", 20, "--seed", 2)
    assert any(ord(letter) < 32 and letter not in "\n\t" for letter in text)  # this seed draws some
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    run(folder, "--prompt", "", "--tokens", 60, "--temperature", 20, "--seed", 2)
    assert terminal.getvalue() == text.translate(PICTURES)
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in terminal.getvalue())
