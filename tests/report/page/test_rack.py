"""The rack picture: every rank once, in the colours and brackets of its axes, and what is left out in words."""

from __future__ import annotations

import re
from dataclasses import replace

from pages import Elements

from meshwright.layout import Layout
from meshwright.plan.plan import Plan
from meshwright.report.page.rack import MAX_CELLS, Rack, brackets, rack_picture


def test_a_rack_of_the_record_machine_is_one_replica_with_eight_spares(record: Plan) -> None:
    drawn = rack_picture(record)
    assert sorted(map(int, re.findall(r"<title>rank (\d+):", drawn))) == list(range(64))
    assert drawn.count(">spare</text>") == 8
    assert drawn.count(">t0 c0</text>") == 8  # one a stage
    assert "One rack is one replica" in drawn


def test_axes_are_bracketed_where_they_run_straight(record: Plan) -> None:
    found = {bracket.axis: (bracket.num_columns, bracket.num_rows) for bracket in brackets(Rack.of(record))}
    assert found == {"tp": (4, 0), "cp": (0, 2), "pp": (0, 16)}  # a tray, two trays, sixteen trays


def test_a_rank_order_is_drawn_as_it_is(record: Plan) -> None:
    turned = replace(record, layout=replace(record.layout, order=("pp", "tp", "cp", "dp")))
    assert "<title>rank 1: tp 0, cp 0, pp 1, dp 0</title>" in rack_picture(turned)


def test_without_a_pipeline_replicas_give_the_colours(workstation: Plan) -> None:
    assert Rack.of(workstation).coloured == "dp"
    assert rack_picture(workstation).count("<title>rank ") == 8


def test_a_replica_over_many_nodes_shows_them_all(many_operations: Plan) -> None:
    rack = Rack.of(many_operations)
    assert rack.domains == tuple(range(16))
    assert rack.seen == tuple(range(16))
    assert "Drawn: 16 of 128 nodes" in rack_picture(many_operations)


def test_stages_far_apart_are_found(record: Plan) -> None:
    layout = replace(record.layout, order=("tp", "cp", "dp", "pp"))
    rack = Rack.of(replace(record, layout=layout))
    assert rack.domains[0] == 0 and {layout.coordinate(d * 64)["pp"] for d in rack.domains} == set(range(len(rack.domains)))


def test_one_accelerator_is_a_picture_too(workstation: Plan) -> None:
    alone = replace(workstation, cluster=workstation.cluster.resized(1), layout=Layout())
    assert rack_picture(alone).count("<title>rank ") == 1


def test_every_accelerator_says_its_place_on_all_axes(workstation: Plan) -> None:
    drawn = rack_picture(workstation)
    for rank in range(8):
        at = workstation.layout.coordinate(rank)
        assert f"<title>rank {rank}: {', '.join(f'{axis} {value}' for axis, value in at.items())}</title>" in drawn
    Elements(drawn)


def test_names_of_the_machine_are_escaped_and_long_ones_are_cut(workstation: Plan) -> None:
    inner = replace(workstation.cluster.tiers[0], name="<b>very-long-name", link="<i>")
    cluster = replace(workstation.cluster, tiers=(inner, *workstation.cluster.tiers[1:]))
    drawn = rack_picture(replace(workstation, cluster=cluster))
    assert "<b>very" not in drawn and "<i>" not in drawn.replace('<i style="', "") and "&lt;b&gt;v\u2026 0" in drawn


def test_a_domain_of_thousands_is_drawn_in_part_and_that_is_said(record: Plan) -> None:
    inner = replace(record.cluster.tiers[0], num_accelerators=8192, num_installed=8192)
    plan = replace(record, cluster=replace(record.cluster, tiers=(inner,)))
    drawn = rack_picture(plan)
    assert drawn.count("<title>rank ") == MAX_CELLS
    assert "Drawn: the first 256 of the 8,192 accelerators of a rack." in drawn


def test_experts_say_that_they_take_no_accelerators_of_their_own(experts: Plan, record: Plan) -> None:
    assert "Experts (ep 64) are laid over the ranks of dp, cp and tp; they take no accelerators of their own" in rack_picture(experts)
    assert "Experts" not in rack_picture(record)


def test_of_many_colours_the_first_some_and_the_last_are_named(record: Plan) -> None:
    many = replace(record, layout=replace(record.layout, pp=64, cp=1, tp=1, vp=1, dp=128))
    named = re.findall(r'class="key"><i style="background:[^"]+"></i>(?:stage )?(\d+)<', rack_picture(many))
    assert named[0] == "0" and named[-1] == "63" and len(named) <= 16 and named == sorted(named, key=int)
