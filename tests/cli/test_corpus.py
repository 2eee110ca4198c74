"""`meshwright corpus`: what it builds, prints and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from meshwright.cli.corpus import _with_rate
from meshwright.say.vocabulary import problems


@pytest.fixture
def verb():
    return "corpus"


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch):
    """Twenty small text files in the folder `texts`, from where the command is given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(f"text number {number}\n" * 20)


BUILD = ("build", "texts", "--tokenizer", "train:280", "--out", "out")


def test_the_whole_output(run):
    code, out, err = run(*BUILD)
    assert (code, err) == (0, "")
    digest = re.search(r"digest +([0-9a-f]{64})", out)[1]
    tokens = re.search(r"tokens +([\d,]+) of 2 bytes", out)[1]
    split = dict(re.findall(r"(train|valid) +\d+ +([\d,]+)", out))
    assert out == (
        "corpus out\n"
        "vocabulary    280 entries (train:280)\n"
        "document end  <|endoftext|> (0)\n"
        f"tokens        {tokens} of 2 bytes\n"
        "sources       20 files, 0.0 MB\n"
        "seed          0\n"
        f"digest        {digest}\n"
        "\n"
        "splits\n"
        "split  documents  tokens\n"
        f"train         19 {split['train']:>7}\n"
        f"valid          1 {split['valid']:>7}\n"
        "\n"
    )
    assert run("show", "out") == (0, out, "")
    assert run("show", "out", "--verify") == (0, out, "")
    assert run(*BUILD) == (0, out, "")


def test_json(answer, tmp_path):
    built = answer(*BUILD, "--valid-documents", "3", "--seed", "5")
    assert built["splits"]["valid"]["num_documents"] == built["manifest"]["build"]["num_valid_documents"] == 3
    assert built["manifest"]["build"]["sources"][0]["name"] == "texts/00.txt"
    assert answer("show", "out") == built
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert (built["folder"], built["manifest"]) == ("out", manifest)
    assert (built["num_tokens"], built["splits"]) == (manifest["num_tokens"], manifest["splits"])
    assert problems(built) == []


def test_jsonl_with_a_key_of_its_own(answer, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "one text"}\n{"body": "another text"}\n')
    built = answer("build", "a.jsonl", "--tokenizer", "train:257", "--out", "out", "--text-key", "body")
    assert built["num_documents"] == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((*BUILD, "--valid-fraction", "0.1", "--valid-documents", "2"), "both a share and a number of validation documents"),
        ((*BUILD, "--valid-fraction", "2"), "2.0 is not a share of the documents"),
        ((*BUILD, "--valid-documents", "20"), "holding 20 of 20 documents for validation leaves none to train on"),
        (("build", "nothing.txt", "--tokenizer", "train:280", "--out", "out"), "no such file: nothing.txt"),
        (("build", "texts", "--tokenizer", "train:5", "--out", "out"), "cannot train a vocabulary of '5' entries"),
        (("build", "texts", "--tokenizer", "none.json", "--out", "out"), "cannot read the tokenizer: No such file or directory"),
        (("build", "texts", "--tokenizer", "train:280", "--out", "texts"), "the folder is not empty and holds no corpus: 00.txt"),
        (("show", "texts"), "no finished corpus: cannot read its manifest"),
        (("build", "texts"), "--tokenizer is missing"),
        ((), "no command is given"),
    ],
)
def test_what_it_refuses(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"meshwright: {message}")
    assert "  fix:   " in err


def test_other_arguments_for_the_same_folder(run):
    run(*BUILD)
    code, _, err = run(*BUILD, "--seed", "1")
    assert code == 2
    assert err == (
        "meshwright: the folder holds the build of another corpus: seed 0 there, 1 here\n"
        "  where: out/manifest.json\n"
        "  fix:   give the same arguments again, choose another --out, or delete the folder\n"
    )


def test_a_damaged_corpus(run, tmp_path):
    run(*BUILD)
    path = tmp_path / "out" / "train.tokens"
    path.write_bytes(path.read_bytes()[:-2] + b"\1\0")
    code, out, err = run("show", "out", "--verify")
    assert (code, out) == (2, "")
    assert err.startswith("meshwright: train.tokens was changed after the corpus was built")


def test_the_rate_counts_from_where_this_build_began():
    seen = []
    times = iter([100.0, 102.0, 104.0, 104.0, 105.0])
    report = _with_rate(lambda *arguments: seen.append(arguments), clock_s=lambda: next(times))
    report("hashing sources", 0, 10_000_000)
    report("hashing sources", 4_000_000, 10_000_000)
    report("hashing sources", 10_000_000, 10_000_000)
    report("tokenising", 6_000_000, 10_000_000)  # taken up: 6 MB were there
    report("tokenising", 6_001_000, 10_000_000)
    assert seen == [
        ("hashing sources", 0, 10_000_000),
        ("hashing sources, 2.0 MB/s, 0:00:03 left", 4_000_000, 10_000_000),
        ("hashing sources, 2.5 MB/s, 0:00:00 left", 10_000_000, 10_000_000),
        ("tokenising", 6_000_000, 10_000_000),
        ("tokenising, 0.0 MB/s, 1:06:39 left", 6_001_000, 10_000_000),
    ]


def test_workers_and_no_torch(tmp_path):
    code = (
        "import os, sys; from meshwright.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and os.environ['RAYON_NUM_THREADS'] == '1'\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, "corpus", *BUILD, "--workers", "1"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("corpus out\n")
