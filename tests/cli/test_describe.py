"""`meshwright describe`: whole outputs of each kind of entry, JSON, files of one's own, and wrong names."""

import json

import pytest

from meshwright.cli.main import main
from meshwright.describe import economics, load
from meshwright.describe.recipe import recipes
from meshwright.say.vocabulary import problems


@pytest.fixture
def run(capsys):
    def run_command(*arguments):
        code = main(["describe", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


LINK = """\
link spectrum-x-mrc
bandwidth, each way  100 GB/s (800 Gbit/s)
latency of a hop     3 us
planes               8 of 12.5 GB/s

sources
key         source                                                                                                     date
Gbit_per_s  800 Gb/s ConnectX-8: MLCommons training_results_v6.0, Azure systems json                                   2026-06
num_planes  arXiv 2605.04333 and OpenAI blog 2026-05-05 via zubnet.ai and robotsatlas.com: 8 planes of 100 Gb/s a NIC  2026-05-05
latency_us  assumed: as InfiniBand NDR between nodes (3 us)                                                            2026-11

"""

MODEL = """\
model gpt-oss-20b
layers                               24
hidden, MLP                          2,880, 2,880
heads                                64 of 64, 8 for keys and values
vocabulary                           201,088
experts                              32 of width 2,880; a token visits 4
window                               128 tokens in 12 layers
parameters                           20.91 B (20,914,757,184)
active parameters                    4.19 B (4,187,440,704)
active, without the token embedding  3.61 B (3,608,307,264)
weights in bf16                      41.83 GB
FLOPs per token, sequence 2,048      22.32 GFLOP
FLOPs per token, sequence 8,192      24.13 GFLOP

sources
key  source                                                                                                        date
all  Hugging Face config.json of openai/gpt-oss-20b (recalled; the count of parameters matches the published one)  2025-08

"""

REGION = """\
region virginia
grid    323.05 gCO2e/kWh
method  operational
year    2024

sources
key  source                                                                    date
all  GoogleCloudPlatform/region-carbon-info data/yearly/2024.csv (github.com)  2024

"""

FACILITY = """\
facility gcp
PUE   1.1
WUE   not published
year  2024

sources
key  source                                                                               date
all  thecloud.quest on Google's 2025 Environmental Report (Google's own page gives 1.09)  2025-09-02

"""


def words(text):
    """Lines with runs of spaces made one, where the width of columns is not what is tested."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("spectrum-x-mrc", LINK), ("gpt-oss-20b", MODEL), ("GPT OSS 20B", MODEL), ("eastus", REGION), ("google", FACILITY)],
)
def test_whole_entries(run, name, expected):
    code, out, err = run(name)
    assert (code, err) == (0, "")
    assert out == expected


def test_the_record_machine(run):
    code, out, _ = run("azure-gb200-128")
    assert code == 0
    lines = words(out)
    for line in (
        "accelerators 8,192 x gb200",
        "nodes 2,048 of 4",
        "peak fp4, dense 81.92 EFLOP/s",
        "memory 1.524 PB",
        "storage into the job not stated",
        "power at most 13.65 MW",
        "price $221,512 per hour (azure, on-demand, 2025)",
        "PUE 1.17 (azure)",
        "rack nvlink-5 64 72 900 GB/s 1.5 us 1",
        "fabric spectrum-x-mrc 8,192 9,216 100 GB/s 3 us 8 of 12.5 GB/s",
    ):
        assert line in lines


def test_an_accelerator_shows_prices_with_dates(run):
    _, out, _ = run("B300")
    lines = words(out)
    assert "peak fp4, dense 12.6 PFLOP/s" in lines
    assert "exponentials 2 x the first accelerator of its generation" in lines
    assert "aws on-demand $17.80 p6-b300.48xlarge B300 2026-08-22 skypilot-org/skypilot-catalog v7/aws/vms.csv us-east-1" in lines


def test_a_workload(run):
    _, out, _ = run("mlperf-llama31-405b")
    lines = words(out)
    assert "steps 324" in lines
    assert "evaluations 4 of 5,760 sequences, every 18,432 samples" in lines
    assert "nvfp4 1,024 331,776" in lines


def test_what_is_unknown_is_reported(run):
    _, out, _ = run("tpu-v5p")
    assert "power cap not published" in words(out)


def test_the_list_names_everything_and_what_was_left_out(run):
    code, out, _ = run()
    flat = " ".join(out.split())
    for kind in load.LOADERS:
        assert f"{kind} ({len(load.names(kind))})" in flat
        assert all(name in flat for name in load.names(kind))
    assert all(name in flat for name in economics.regions())
    assert "left out, and why" in flat
    assert "gaudi: no source" in flat
    assert code == 0


def test_the_list_as_json(run):
    _, out, _ = run("--json")
    listed = json.loads(out)
    assert listed["models"] == list(load.names("models"))
    assert listed["providers"] == list(economics.providers())
    assert "gaudi" in listed["left_out"]
    assert problems(listed) == []


@pytest.mark.parametrize("name, kind", [("norway", "region"), ("google", "facility"), ("coreweave", "provider")])
def test_places_and_providers_as_json(run, name, kind):
    entry = json.loads(run(name, "--json")[1])
    assert entry["schema"] == f"meshwright/{kind}/1"
    assert problems(entry) == []


@pytest.mark.parametrize("kind", load.LOADERS)
def test_every_entry_as_text_and_as_json(run, kind):
    for name in load.names(kind):
        code, out, err = run(name, "--json")
        assert (code, err) == (0, "")
        entry = json.loads(out)
        assert (entry["schema"], entry["name"]) == (f"meshwright/{kind.removesuffix('s')}/1", name)
        assert problems(entry) == []
        assert entry["sources"]
        assert run(name)[0] == 0


RECIPE = """\
recipe nvfp4
meaning               fp4 products with one scale for each block of 16 elements
products in           fp4
a weight              3.125 bytes
a gradient            2 bytes, accumulated over micro-batches
the optimizer         12 bytes a parameter
sent for a parameter  2 bytes to gather weights, 2 bytes to reduce gradients
an activation         2 bytes between operations, 0.5625 bytes kept as the input of a product
a cast                9 bytes of memory traffic an element
other names           fp4
"""


def test_every_precision_recipe_is_listed_and_described(run):
    assert run("nvfp4")[1].startswith(RECIPE) and run("fp4")[1].startswith(RECIPE)
    assert json.loads(run("--json")[1])["recipes"] == list(recipes())
    for name in recipes():
        entry = json.loads(run(name, "--json")[1])
        assert (entry["schema"], entry["name"]) == ("meshwright/recipe/1", name) and entry["sources"]
        assert problems(entry) == []
    assert "on accelerators that have fp4 too" in run("mxfp8")[1] and "1 on accelerators that have fp4" in run("fp8")[1]


def test_derived_numbers_in_json(run):
    model = json.loads(run("llama-3.1-405b", "--json")[1])
    assert model["num_parameters"] == 405_853_388_800
    assert model["flops_per_token"]["8192"] == pytest.approx(2.53e12, rel=0.01)
    cluster = json.loads(run("azure-gb200-128", "--json")[1])
    assert cluster["peak_flops_per_s"]["fp4"] == 8192 * 10e15
    assert cluster["storage_bytes_per_s"] is None  # nobody stated it
    assert cluster["network"][1]["num_planes"] == 8
    accelerator = json.loads(run("h100", "--json")[1])
    assert accelerator["prices"][0]["date"]


def test_files_of_ones_own(run, tmp_path):
    model = tmp_path / "mine.toml"
    model.write_text("num_layers = 1\nhidden = 8\nffn_hidden = 8\nnum_heads = 2\nvocab_size = 10\n")
    code, out, _ = run(str(model))
    assert code == 0
    assert "parameters 632" in words(out)
    assert "sources: none stated" in out
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(
        "accelerator = 'h100'\naccelerators_per_node = 8\ntiers = [{ name = 'node', link = 'nvlink-4', num_accelerators = 8 }]\n"
    )
    assert "accelerators 8 x h100" in words(run(str(cluster))[1])
    workload = tmp_path / "workload.toml"
    workload.write_text("seq_len = 10\nglobal_batch = 2\nnum_tokens = 100\n")
    assert "steps 5" in words(run(str(workload))[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lama-3.2-1b", "meshwright: nothing named 'lama-3.2-1b' is in the catalogue\n  fix:   did you mean llama-3.2-1b"),
        ("gaudi", "meshwright: 'gaudi' is left out of the catalogue: no source for the first generation's peaks"),
        ("zzzzqqqq", "meshwright: nothing named 'zzzzqqqq' is in the catalogue\n  fix:   meshwright describe lists all names\n"),
        (".", "meshwright: a folder without a config.json describes nothing\n  where: .\n"),
        ("./", "meshwright: a folder without a config.json describes nothing\n  where: .\n"),
        ("./no.toml", "meshwright: cannot read no.toml: No such file or directory"),
        ("./no.json", "meshwright: cannot read no.json: No such file or directory"),
    ],
)
def test_wrong_names(run, name, message):
    code, out, err = run(name)
    assert (code, out) == (2, "")
    assert err.startswith(message)


def test_a_file_that_describes_nothing(run, tmp_path):
    path = tmp_path / "what.toml"
    path.write_text("a = 1\n")
    code, _, err = run(str(path))
    assert code == 2
    assert err.startswith("meshwright: cannot tell what this file describes\n")
