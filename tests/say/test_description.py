"""What a description says: numbers worked by hand, what follows from them, what nobody published, and every entry in JSON."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.describe import economics
from meshwright.describe.cluster import Cluster
from meshwright.describe.economics import Facility
from meshwright.describe.find import finders
from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import accelerator, link, load_cluster, load_model, load_workload
from meshwright.describe.source import Source
from meshwright.say.description import catalogue_document, description, entry_document
from meshwright.say.vocabulary import problems

from .conftest import pairs, sentences, table

SOURCE = Source("a data sheet", "2026-11")


def chip(**changes: object) -> Accelerator:
    """Of round numbers: 2 TFLOP/s over 1 GB/s are 2,000 FLOPs a byte."""
    made = replace(
        accelerator("h100"),
        name="mine",
        dense_flops_per_s={"bf16": 2e12},
        memory_bytes=2.0**30,
        memory_bytes_per_s=1e9,
        power_cap_w=500.0,
        sources={"default": SOURCE},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def machine(**changes: object) -> Cluster:
    return replace(load_cluster("azure-gb200-128").resized(256), **changes)  # type: ignore[arg-type]


def test_an_accelerator_worked_by_hand() -> None:
    document = entry_document(chip())
    said = pairs(document)
    assert document.title == "accelerator mine" and said["memory"] == "1.074 GB (1.0 GiB)"
    assert said["peak bf16, dense"] == "2 TFLOP/s" and said["FLOPs per byte to be compute-bound"] == "bf16 2000"
    assert said["power cap"] == "500 W" and "exponentials" not in said
    values = document.to_json()
    assert values["ridge_flops_per_byte"] == {"bf16": 2000.0} and values["prices"] == [] and problems(values) == []


def test_what_nobody_published_is_said_and_null_for_programs() -> None:
    document = entry_document(chip(power_cap_w=math.nan, softmax_speedup=2.0))
    assert pairs(document)["power cap"] == "not published"
    assert pairs(document)["exponentials"] == "2 x the first accelerator of its generation"
    assert document.to_json()["power_cap_w"] is None
    assert pairs(entry_document(replace(economics.facility("azure"), wue_l_per_kwh=None)))["WUE"] == "not published"


def test_an_accelerator_of_the_catalogue_lists_its_prices_the_cheapest_first() -> None:
    document = entry_document(accelerator("h100"))
    listed = economics.prices("h100")
    rows = table(document, "prices of one accelerator").rows
    assert len(rows) == len(listed) > 1 and rows[0][0] == listed[0].provider
    each = [price["usd_per_accelerator_hour"] for price in document.to_json()["prices"]]
    assert each == sorted(each)


def test_sources_are_named_by_key_and_a_single_one_is_for_all() -> None:
    assert table(entry_document(chip()), "sources").rows == (("all", "a data sheet", "2026-11"),)
    two = entry_document(chip(sources={"default": SOURCE, "power_cap_W": Source("a page", "2025")}))
    assert [row[0] for row in table(two, "sources").rows] == ["all others", "power_cap_W"]
    assert sentences(entry_document(chip(sources={}))) == ["sources: none stated"]


def test_a_note_stands_with_the_numbers_and_none_is_left_out() -> None:
    assert pairs(entry_document(chip(), "a <remark>"))["note"] == "a <remark>"
    assert "note" not in pairs(entry_document(chip())) and entry_document(chip()).to_json()["note"] == ""


def test_a_link_of_planes_worked_by_hand() -> None:
    made = replace(link("spectrum-x-mrc"), bytes_per_s=100e9, latency_s=2.5e-6, num_planes=4)
    said = pairs(entry_document(made))
    assert said["bandwidth, each way"] == "100 GB/s (800 Gbit/s)"
    assert said["latency of a hop"] == "2.5 us" and said["planes"] == "4 of 25 GB/s"
    assert pairs(entry_document(replace(made, num_planes=1)))["planes"] == "1"
    assert entry_document(made).to_json()["plane_bytes_per_s"] == 25e9


def test_a_cluster_is_the_sum_of_its_parts() -> None:
    made = machine(node_overhead_w=1000.0)
    said, values = pairs(entry_document(made)), entry_document(made).to_json()
    assert said["accelerators"] == "256 x gb200" and said["nodes"] == f"{made.num_nodes:,} of {made.accelerators_per_node}"
    assert values["power_w"] == pytest.approx(256 * made.accelerator.power_cap_w + made.num_nodes * 1000)
    assert values["total_memory_bytes"] == 256 * made.accelerator.memory_bytes
    rate = next(price for price in economics.prices("gb200", provider="azure", kind="on-demand"))
    assert values["usd_per_hour"] == pytest.approx(256 * rate.usd_per_accelerator_hour) and problems(values) == []
    assert len(table(entry_document(made), "network, inner to outer").rows) == len(made.tiers)


def test_a_cluster_that_states_little_says_so() -> None:
    bare = machine(node_overhead_w=0.0, storage_bytes_per_s=math.nan, provider="", region="", accelerator=chip())
    document = entry_document(bare)
    said = pairs(document)
    assert said["storage into the job"] == said["a node besides its accelerators"] == "not stated"
    assert "price" not in said and "grid" not in said
    assert document.to_json()["usd_per_hour"] is None and problems(document.to_json()) == []


def test_a_cluster_of_a_provider_without_a_price_has_the_median_of_all() -> None:
    elsewhere = machine(accelerator=accelerator("h100"), provider="nobody-else")
    listed = economics.prices("h100", kind="on-demand")
    middle = listed[(len(listed) - 1) // 2]
    assert entry_document(elsewhere).to_json()["usd_per_hour"] == pytest.approx(256 * middle.usd_per_accelerator_hour)


def test_a_model_of_experts_counts_what_a_token_visits() -> None:
    model = load_model("deepseek-v3")
    said, values = pairs(entry_document(model)), entry_document(model).to_json()
    assert said["layers"] == "61, the first 3 dense, and 1 to predict a second token"
    assert said["experts"] == "256 of width 2,048; a token visits 8 and 1 shared"
    assert said["latent attention"] == "query rank 1,536, key-value rank 512"
    assert values["num_active_parameters"] - values["num_active_parameters_without_embedding"] == model.embedding_parameters
    tied = replace(load_model("llama-3.2-1b"))
    assert tied.tied_embeddings and ", tied" in pairs(entry_document(tied))["vocabulary"]
    shown = entry_document(tied).to_json()
    assert shown["num_active_parameters"] == shown["num_active_parameters_without_embedding"] == shown["num_parameters"]


def test_a_workload_with_a_target_and_one_with_tokens() -> None:
    benchmark = load_workload("mlperf-llama31-405b")
    document = entry_document(benchmark)
    samples = benchmark.convergence.samples(benchmark.global_batch, benchmark.precision)
    assert pairs(document)["samples to target"] == f"{samples:,.0f}"
    assert document.to_json()["total_tokens"] == samples * benchmark.seq_len
    assert table(document, "samples to target, measured").rows
    plain = entry_document(load_workload("pretrain-1t"))
    assert pairs(plain)["tokens"] == "1 T tokens" and "samples to target" not in pairs(plain)
    assert plain.to_json()["samples_to_target"] is None and plain.to_json()["num_evaluations"] is None


def test_a_workload_without_an_end_has_no_steps() -> None:
    endless = replace(load_workload("pretrain-1t"), num_tokens=0.0)
    document = entry_document(endless)
    assert pairs(document)["steps"] == "0" and document.to_json()["num_steps"] == 0 and problems(document.to_json()) == []


def test_a_facility_is_described_with_its_source() -> None:
    hall = Facility(name="a hall", pue=1.2, wue_l_per_kwh=0.3, year=2025, source=SOURCE)
    document = entry_document(hall)
    assert pairs(document) == {"PUE": "1.2", "WUE": "0.3 L/kWh", "year": "2025"}
    assert document.to_json()["sources"] == {"default": {"source": "a data sheet", "date": "2026-11"}}


def test_the_catalogue_names_every_entry_and_what_was_left_out() -> None:
    document = catalogue_document()
    values = document.to_json()
    assert problems(values) == []
    said = pairs(document)
    for kind, (names, _) in finders().items():
        assert values[kind] == list(names()) and said[f"{kind} ({len(values[kind])})"] == ", ".join(names())
    assert values["left_out"] and all(why for why in values["left_out"].values())


def test_what_is_no_entry_is_an_error_of_ours() -> None:
    with pytest.raises(TypeError):
        description(object())
