"""Files of one's own: they load like the catalogue's, and a bad one is reported with file and key."""

import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.describe import load
from meshwright.describe.model import RotaryScaling
from meshwright.errors import InputError, MeshwrightError

MODEL = """
num_layers = 4
hidden = 64
ffn_hidden = 128
num_heads = 8
vocab_size = 100
"""

CLUSTER = """
accelerators_per_node = 2
storage_GB_per_s = 3
node_overhead_W = 100

[accelerator]
name = "toy"
vendor = "me"
architecture = "ada"
memory_GB = 10
memory_GB_per_s = 100
dense_TFLOP_per_s = { bf16 = 1 }
power_cap_W = 50

[[tiers]]
name = "node"
link = "pcie-4"
num_accelerators = 2

[[tiers]]
name = "office"
link = { Gbit_per_s = 10, latency_us = 20 }
num_accelerators = 4

[sources]
default = { text = "measured", date = "2026-01" }
"""

WORKLOAD = """
model = "llama-3.2-1b"
seq_len = 2048
global_batch = 64
precision = "bf16"

[convergence.samples_by_batch]
64 = 1000
128 = 1500

[evaluation]
num_samples = 10
every_samples = 100
"""


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write_file


def test_a_model_of_ones_own(write):
    model = load.load_model(write(MODEL))
    assert (model.name, model.num_kv_heads, model.head_dim) == ("mine", 8, 8)


def test_rotary_positions_and_norms_of_ones_own(write):
    plain = load.load_model(write(MODEL))
    assert (plain.rotary_theta, plain.rotary_scaling, plain.norm_epsilon) == (10000.0, None, 1e-5)
    scaled = MODEL + "rotary_theta = 500000\nnorm_epsilon = 1e-6\nrotary_scaling = { factor = 8, original_positions = 64, high_turns = 5 }"
    model = load.load_model(write(scaled))
    assert (model.rotary_theta, model.norm_epsilon) == (500000.0, 1e-6)
    assert model.rotary_scaling == RotaryScaling(factor=8, original_positions=64, low_turns=1, high_turns=5)


@pytest.mark.parametrize(
    ("line", "what", "key"),
    [
        ("rotary_theta = -1", "rotary_theta is -1", "rotary_theta"),
        ("norm_epsilon = 2", "norm_epsilon is 2", "norm_epsilon"),
        ("rotary_scaling = { factor = 8 }", "original_positions is missing", "rotary_scaling.original_positions"),
        ("rotary_scaling = { factor = 0.5, original_positions = 8 }", "factor is 0.5", "rotary_scaling.factor"),
        ("rotary_scaling = { factor = 8, original_positions = 8, low_turns = 4 }", "not below high_turns", "rotary_scaling.low_turns"),
        ("rotary_scaling = { factor = 8, original_positions = 8, turns = 4 }", "unknown key 'turns'", "rotary_scaling.turns"),
    ],
)
def test_bad_rotary_positions_are_reported_with_their_key(write, line, what, key):
    path = write(MODEL + line)
    with pytest.raises(InputError) as caught:
        load.load_model(path)
    assert what in caught.value.what
    assert caught.value.where == f"{key} in {path}"


def test_a_cluster_of_ones_own(write):
    cluster = load.load_cluster(write(CLUSTER))
    assert (cluster.accelerator.name, cluster.accelerator.memory_bytes, cluster.storage_bytes_per_s) == ("toy", 10e9, 3e9)
    node, office = cluster.tiers
    assert (node.bytes_per_s, office.bytes_per_s) == (31.5e9, 1.25e9)
    assert office.latency_s == pytest.approx(20e-6)
    assert str(cluster.sources["default"]) == "measured (2026-01)"


def test_a_workload_of_ones_own(write):
    workload = load.load_workload(write(WORKLOAD))
    assert workload.num_steps() == 16
    assert workload.convergence.samples(128) == 1500


def test_a_tier_may_differ_from_its_link(write):
    text = CLUSTER.replace('link = "pcie-4"', 'link = "pcie-4"\nGB_per_s = 20\nlatency_us = 5\nnum_planes = 2')
    tier = load.load_cluster(write(text)).tiers[0]
    assert (tier.bytes_per_s, tier.num_planes) == (20e9, 2)


def test_what_is_not_stated_is_not_guessed(write):
    cluster = load.load_cluster(write(CLUSTER.replace("storage_GB_per_s = 3\n", "").replace("power_cap_W = 50\n", "")))
    assert math.isinf(cluster.storage_bytes_per_s)
    assert math.isnan(cluster.accelerator.power_cap_w)


def test_a_file_is_read_anew_each_time(write):
    path = write(MODEL)
    assert load.load_model(path).num_layers == 4
    write(MODEL.replace("num_layers = 4", "num_layers = 5"))
    assert load.load_model(path).num_layers == 5


BAD = [
    (load.load_model, MODEL.replace("hidden = 64\n", "", 1), "hidden is missing", "hidden", "add hidden = ..."),
    (load.load_model, MODEL + "num_layer = 3\n", "unknown key 'num_layer'", "num_layer", "did you mean num_layers"),
    (load.load_model, MODEL.replace("= 4", "= -4"), "num_layers is -4", "num_layers", "give a number of at least 1"),
    (load.load_model, MODEL.replace("= 4", "= 4.5"), "num_layers is 4.5", "num_layers", "write a whole number: num_layers = 8"),
    (load.load_model, MODEL.replace("= 4", '= "four"'), "num_layers is 'four'", "num_layers", "write a whole number: num_layers = 8"),
    (load.load_model, MODEL.replace("= 4", "= true"), "num_layers is True", "num_layers", "write a whole number: num_layers = 8"),
    (
        load.load_model,
        MODEL.replace("num_heads = 8", "num_heads = 7"),
        "hidden size 64 does not divide into 7 heads",
        "head_dim",
        "state head_dim",
    ),
    (load.load_model, MODEL + "num_kv_heads = 3\n", "8 attention heads cannot share 3 key-value heads evenly", "num_kv_heads", "divisor"),
    (
        load.load_model,
        MODEL + "[experts]\nnum_experts = 4\nnum_activ = 2\nhidden = 8\n",
        "experts.num_active is missing",
        "experts.num_active",
        "",
    ),
    (
        load.load_cluster,
        CLUSTER.replace("memory_GB = 10\n", "memory_GB = -10\n"),
        "accelerator.memory_GB is -10",
        "accelerator.memory_GB",
        "",
    ),
    (
        load.load_cluster,
        CLUSTER.replace("memory_GB = 10\n", "memory_GB = nan\n"),
        "accelerator.memory_GB is nan",
        "accelerator.memory_GB",
        "",
    ),
    (
        load.load_cluster,
        CLUSTER.replace("power_cap_W = 50", "power_cap_w = 50"),
        "unknown key 'power_cap_w'",
        "accelerator.power_cap_w",
        "power_cap_W",
    ),
    (load.load_cluster, CLUSTER.replace('"pcie-4"', '"pcie-44"'), "no link named 'pcie-44'", "links", "did you mean pcie-4"),
    (load.load_cluster, CLUSTER.replace("Gbit_per_s = 10, ", ""), "neither of GB_per_s and Gbit_per_s is given", "GB_per_s", "give one"),
    (
        load.load_cluster,
        CLUSTER.replace("Gbit_per_s = 10,", "Gbit_per_s = 10, GB_per_s = 1,"),
        "both of GB_per_s and Gbit_per_s",
        "GB_per_s",
        "",
    ),
    (
        load.load_cluster,
        CLUSTER.replace("num_accelerators = 4", "num_accelerators = 3"),
        "spans 3 accelerators, not a multiple of the 2",
        "cluster",
        "",
    ),
    (
        load.load_cluster,
        CLUSTER.replace('text = "measured", date = "2026-01"', 'text = "measured"'),
        "sources.default.date is missing",
        "sources",
        "",
    ),
    (
        load.load_cluster,
        CLUSTER.replace('{ text = "measured", date = "2026-01" }', '"sheet"'),
        "no citation named 'sheet'",
        "sources.default",
        "",
    ),
    (load.load_cluster, "accelerators_per_node = 1\naccelerator = 'h100'\ntiers = []\n", "tiers is []", "tiers", "at least 1 item"),
    (load.load_workload, WORKLOAD.replace('"bf16"', '"bf61"'), "no precision named 'bf61'", "precision", "did you mean bf16"),
    (
        load.load_workload,
        WORKLOAD.replace("64 = 1000", "lots = 1000"),
        "is 'lots'",
        "convergence.samples_by_batch",
        "the text should match pattern",
    ),
    (
        load.load_workload,
        WORKLOAD.replace("64 = 1000", "64 = 0"),
        "convergence.samples_by_batch.64 is 0",
        "samples_by_batch.64",
        "give a number above 0",
    ),
    (load.load_workload, WORKLOAD + "[adapters]\nrank = 4\ntargets = ['qk']\n", "adapters.targets.0 is 'qk'", "adapters.targets.0", "use "),
]


@pytest.mark.parametrize(("loader", "text", "what", "where", "fix"), BAD)
def test_a_bad_file_is_reported_with_file_and_key(write, loader, text, what, where, fix):
    path = write(text)
    with pytest.raises(InputError) as caught:
        loader(path)
    error = caught.value
    assert what in error.what
    assert where in error.where
    assert path in error.where
    assert fix in error.fix


def test_the_whole_complaint(write):
    path = write(MODEL + "vocab = 3\n")
    with pytest.raises(InputError) as caught:
        load.load_model(path)
    assert str(caught.value) == f"unknown key 'vocab'\n  where: vocab in {path}\n  fix:   did you mean vocab_size?"


@pytest.mark.parametrize("text", ["num_layers = ", "= 3", "[a\n", "a = 1\na = 2\n", "\x00"])
def test_bad_toml_names_the_file(write, text):
    path = write(text)
    for loader in (load.load_model, load.load_cluster, load.load_workload):
        with pytest.raises(InputError, match="not valid TOML") as caught:
            loader(path)
        assert caught.value.where == path


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load.load_cluster(str(tmp_path / "no.toml"))
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file in UTF-8"):
        load.load_cluster(str(tmp_path / "bad.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match="cannot read"):
        load.load_cluster(str(tmp_path / "folder.toml"))


@pytest.mark.parametrize(
    ("loader", "name", "message"),
    [
        (load.load_model, "lama-3.1-8b", "no model named 'lama-3.1-8b'.*did you mean llama-3.1-8b"),
        (load.load_cluster, "azure-gb20-128", "no cluster named.*did you mean azure-gb200-128"),
        (load.load_workload, "mlperf-gpt", "no workload named.*did you mean mlperf-gpt3"),
        (load.accelerator, "h10", "no accelerator named 'h10'.*did you mean h100"),
        (load.link, "nvlink-6", "no link named 'nvlink-6'.*did you mean nvlink-"),
        (load.load_model, "", "no model named ''"),
    ],
)
def test_unknown_names_get_the_nearest(loader, name, message):
    with pytest.raises(InputError) as caught:
        loader(name)
    assert re.search(message, str(caught.value), re.DOTALL)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 10**30, 2**63, 1]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["h100", "ndr", "bf16", "qkv"]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8
)

VALID = {
    load.model_from: load.read_toml(load.CATALOGUE / "models" / "deepseek-v3.toml"),
    load.cluster_from: load.read_toml(load.CATALOGUE / "clusters" / "azure-gb200-128.toml"),
    load.workload_from: load.read_toml(load.CATALOGUE / "workloads" / "mlperf-llama2-70b-lora.toml"),
}


def use(value):
    """Ask for what is derived: a value that loads must also count."""
    for name in ("num_parameters", "num_active_parameters", "num_accelerators", "tokens_per_step"):
        getattr(value, name, None)
    for name in ("num_steps",):
        getattr(value, name, lambda: None)()
    if hasattr(value, "flops_per_token"):
        value.flops_per_token(8192)


@pytest.mark.parametrize("build", VALID)
@given(table=st.dictionaries(st.text(max_size=8), VALUES, max_size=4) | VALUES)
@settings(max_examples=80, deadline=None)
def test_arbitrary_tables(build, table):
    with pytest.raises(MeshwrightError):
        build(load.Found(table, "fuzz", "fuzz.toml"))


@pytest.mark.parametrize("build", VALID)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_valid_tables_with_something_else_in_one_place(build, data):
    table = dict(VALID[build])
    key = data.draw(st.sampled_from(sorted(table)))
    inner = table[key]
    if isinstance(inner, dict) and data.draw(st.booleans()):
        table[key] = {**inner, data.draw(st.sampled_from(sorted(inner))): data.draw(VALUES)}
    elif isinstance(inner, list) and inner and isinstance(inner[0], dict) and data.draw(st.booleans()):
        table[key] = [{**inner[0], data.draw(st.sampled_from(sorted(inner[0]))): data.draw(VALUES)}, *inner[1:]]
    else:
        table[key] = data.draw(VALUES)
    try:
        use(build(load.Found(table, "fuzz", "fuzz.toml")))
    except MeshwrightError as error:
        assert error.where  # the complaint says where


@given(text=st.text(max_size=60))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_text(tmp_path, text):
    path = tmp_path / "fuzz.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for loader in (load.load_model, load.load_cluster, load.load_workload):
        with pytest.raises(MeshwrightError):
            loader(path)


@given(name=st.text(max_size=30))
@settings(max_examples=150, deadline=None)
def test_arbitrary_names(name):
    for loader in load.LOADERS.values():
        try:
            found = loader(name)
        except MeshwrightError as error:
            assert error.what
        else:
            assert found.name
