"""The catalogue as data: everything loads, every number has a source and a date, every spelling leads somewhere."""

import re
import tomllib

import pytest

from meshwright.describe import economics, load
from meshwright.describe.model import RotaryScaling
from meshwright.describe.source import unsourced

AT_HAND = (load.THIS_MACHINE, load.EMULATED)  # looked at on the spot, not read from a file
ENTRIES = [(kind, name) for kind in load.LOADERS for name in load.names(kind) if name not in AT_HAND]


def raw(kind, name):
    folder = load.CATALOGUE / kind
    return load.read_toml(folder / f"{name}.toml") if folder.is_dir() else load.tables(kind)[name]


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_every_entry_loads_and_every_number_has_a_source_and_a_date(kind, name):
    entry = load.LOADERS[kind](name)
    assert entry.name == name
    table = raw(kind, name)
    assert unsourced({k: v for k, v in table.items() if k != "sources"}, table["sources"]) == []
    for source in entry.sources.values():
        assert source.text
        assert re.fullmatch(r"\d{4}(-\d{2}){0,2}", source.date), source


def test_every_source_names_a_key_of_its_entry():
    for kind, name in ENTRIES:
        table = raw(kind, name)
        for key in table["sources"]:
            head, _, rest = key.partition(".")
            assert key == "default" or head in table, f"{kind} {name}: {key}"
            assert not rest or rest in table[head], f"{kind} {name}: {key}"


def test_every_citation_is_used():
    for kind in ("accelerators", "links", "regions"):
        text = (load.CATALOGUE / f"{kind}.toml").read_text()
        for name in load.citations(kind):
            assert text.count(f'"{name}"') >= 1, f"{kind}: {name} is cited by nobody"


def test_every_price_region_and_facility_has_a_source_and_a_date():
    for price in economics.all_prices():
        assert price.source.text and price.date
        assert price.accelerator in load.names("accelerators")
    for name in economics.regions():
        assert economics.region(name).source.date
    for name in economics.facilities():
        assert economics.facility(name).source.date


def test_no_alias_hides_a_name_or_another_alias():
    for kind in load.LOADERS:
        spelled = [load.plain(alias) for name in load.names(kind) if name not in AT_HAND for alias in raw(kind, name).get("aliases", [])]
        assert len(spelled) == len(set(spelled))
        assert not set(spelled) & set(load.names(kind))


def test_clusters_stand_where_prices_and_grids_are_known():
    for name in load.names("clusters"):
        cluster = load.load_cluster(name)
        assert cluster.region == "" or economics.region(cluster.region)
        assert cluster.provider == "" or cluster.provider in economics.providers()


def test_workloads_name_models_that_exist():
    for name in load.names("workloads"):
        model = load.load_workload(name).model
        assert model == "" or load.load_model(model).name == model


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100", "h100"),
        ("GB200", "gb200"),
        ("B200-SXM", "b200"),
        ("A100", "a100-80gb"),
        ("A100-80GB", "a100-80gb"),
        ("A100 (Ampere, 200G NIC)", "a100-80gb"),
        ("H100-96GB HBM2e 500W", "h100-96gb-500w"),
        ("TPU-v5p", "tpu-v5p"),
        ("TPU-Trillium", "tpu-v6e"),
        ("H200-NVL", "h200-nvl"),
        ("L40S", "l40s"),
        ("MI325X", "mi325x"),
        ("Gaudi2", "gaudi2"),
        ("rtx_4090", "rtx-4090"),
    ],
)
def test_accelerators_answer_to_the_spellings_people_use(spelling, name):
    assert load.accelerator(spelling).name == name


def test_the_record_machine():
    cluster = load.load_cluster("azure-gb200-128")
    rack, fabric = cluster.tiers
    assert (cluster.num_accelerators, cluster.num_nodes, cluster.accelerator.name) == (8192, 2048, "gb200")
    assert (rack.num_accelerators, rack.num_installed, rack.bytes_per_s) == (64, 72, 900e9)
    assert (fabric.bytes_per_s, fabric.num_planes) == (100e9, 8)
    workload = load.load_workload("mlperf-llama31-405b")
    assert workload.num_steps() == 324
    assert workload.num_evaluations(324) == 4


@pytest.mark.parametrize(
    ("name", "theta", "factor"),
    [("llama-2-7b", 1e4, None), ("llama-3.1-8b", 5e5, 8), ("llama-3.1-405b", 5e5, 8), ("llama-3.2-1b", 5e5, 32), ("llama-3.2-3b", 5e5, 32)],
)
def test_the_llamas_rotary_positions(name, theta, factor):
    model = load.load_model(name)
    assert (model.rotary_theta, model.norm_epsilon) == (theta, 1e-5)
    expected = None if factor is None else RotaryScaling(factor=factor, original_positions=8192, low_turns=1, high_turns=4)
    assert model.rotary_scaling == expected


def test_units_are_converted_once():
    h100 = load.accelerator("h100")
    assert (h100.memory_bytes, h100.memory_bytes_per_s, h100.power_cap_w) == (80e9, 3.35e12, 700)
    assert h100.dense_flops_per_s == {"tf32": 494.5e12, "bf16": 989e12, "fp8": 1979e12}
    assert load.link("ndr").bytes_per_s == 50e9
    assert load.link("nvlink-5").bytes_per_s == 900e9
    assert load.link("ndr").latency_s == pytest.approx(3e-6)


def test_only_blackwell_ultra_doubles_its_exponentials():
    fast = {name for name in load.names("accelerators") if load.accelerator(name).softmax_speedup != 1}
    assert fast == {"b300", "gb300"}


def test_what_was_left_out_is_reported():
    assert "gaudi" in load.left_out()
    assert all(load.left_out().values())


def test_the_files_are_plain_toml():
    for path in load.CATALOGUE.rglob("*.toml"):
        assert tomllib.loads(path.read_text(encoding="utf-8")), path.name
