"""The rank map: a bijection between ranks, places and coordinates."""

import csv
import json

import pytest

from meshwright.describe.load import load_cluster
from meshwright.errors import InputError
from meshwright.layout import AXES, ORDERS, Layout
from meshwright.plan.rankmap import rank_map

RECORD = load_cluster("azure-gb200-128")
LAYOUT = Layout(tp=4, cp=2, pp=8, vp=8, dp=128)


@pytest.mark.parametrize("order", ORDERS)
def test_places_and_coordinates_each_name_every_rank_once(order):
    small = RECORD.resized(128)
    layout = Layout(tp=4, cp=2, pp=8, dp=2, order=order)
    ranks = rank_map(layout, small)
    assert len({row[1:4] for row in ranks.rows()}) == len({row[4:] for row in ranks.rows()}) == len(ranks) == 128
    for row in ranks.rows():
        coordinate = dict(zip(AXES, row[4:], strict=True))
        assert layout.rank(coordinate) == row[0] and layout.coordinate(row[0]) == coordinate


def test_on_the_record_machine_a_replica_is_a_rack():
    ranks = rank_map(LAYOUT, RECORD)
    assert list(ranks.columns) == ["rank", "rack", "tray", "gpu", *AXES]
    assert (ranks.columns["rack"] == ranks.columns["dp"]).all()
    assert ranks.columns["tray"].max() == 15 and ranks.columns["gpu"].max() == 3
    assert (ranks.columns["gpu"] == ranks.columns["tp"]).all()  # a tensor group is a tray


def test_nodes_without_racks_are_numbered_through():
    ranks = rank_map(Layout(tp=8, dp=4), load_cluster("dgx-h100-superpod").resized(32))
    assert list(ranks.columns) == ["rank", "node", "gpu", *AXES]
    assert ranks.rows()[-1][:3] == (31, 3, 7)


def test_files_hold_every_rank(tmp_path):
    ranks = rank_map(LAYOUT, RECORD)
    ranks.write(tmp_path / "ranks.csv")
    ranks.write(tmp_path / "ranks.json")
    with (tmp_path / "ranks.csv").open() as file:
        rows = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert rows == json.loads((tmp_path / "ranks.json").read_text())
    assert len(rows) == 8192 and rows[64] == {"rank": 64, "rack": 1, "tray": 0, "gpu": 0, "tp": 0, "cp": 0, "pp": 0, "dp": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ranks.csv", "ranks.json"]
    with pytest.raises(InputError, match=r"written as \.csv or \.json"):
        ranks.write(tmp_path / "ranks.txt")


@pytest.mark.parametrize(("count", "nodes"), [(12, 2), (20, 4), (5, 1), (16, 2)])
def test_ranks_stand_on_the_nodes_that_are_priced(count, nodes):
    cluster = load_cluster("dgx-h100-superpod").resized(count)
    ranks, inner = rank_map(Layout(dp=count), cluster), cluster.tiers[0]
    assert (ranks.columns["node"] == ranks.columns["rank"] // inner.num_accelerators).all()
    assert ranks.columns["node"].max() + 1 == nodes == cluster.num_nodes
    assert ranks.columns["gpu"].max() + 1 == inner.num_accelerators
