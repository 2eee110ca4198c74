"""Host files, rank files and the environment."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from meshwright.errors import InputError
from meshwright.plan.export import hostfile
from meshwright.plan.rankmap import rank_map


def body(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_record_machine_in_rank_order(record):
    hosts = body(hostfile.host_file(record))
    assert len(hosts) == 2048
    assert (hosts[0], hosts[15], hosts[16], hosts[-1]) == (
        "rack001-tray01 slots=4",
        "rack001-tray16 slots=4",
        "rack002-tray01 slots=4",
        "rack128-tray16 slots=4",
    )
    assert "8 of 72 accelerators of each rack are spares" in hostfile.host_file(record)


def test_with_the_pipeline_numbered_last_a_stage_is_two_trays_of_every_rack(record):
    hosts = body(hostfile.host_file_pp_last(record))
    assert hosts[:3] == ["rack001-tray01 slots=4", "rack001-tray02 slots=4", "rack002-tray01 slots=4"]
    assert hosts[256] == "rack001-tray03 slots=4"  # 128 replicas x 2 trays later: the second stage
    ranks = body(hostfile.rank_file_pp_last(record))
    assert (ranks[9], ranks[1024]) == ("rank 9=rack002-tray01 slot=1", "rank 1024=rack001-tray03 slot=0")


def test_a_rank_file_in_the_plans_own_order_counts_up(planned):
    plan = planned("tp=2,dp=8", machine="dgx-h100-superpod")
    ranks = body(hostfile.rank_file(plan, ["a", "b"]))
    assert ranks == [f"rank {rank}={'ab'[rank // 8]} slot={rank % 8}" for rank in range(16)]


def test_part_of_a_node(planned):
    assert body(hostfile.host_file(planned("tp=2,dp=2"))) == ["node1 slots=4"]


def test_an_order_that_tears_nodes_apart_needs_a_rank_file(planned):
    plan = planned("pp=4,dp=4")
    with pytest.raises(InputError, match="not neighbours") as error:
        hostfile.host_file_pp_last(plan)
    assert "rankfile-pp-last" in error.value.fix
    ranks = body(hostfile.rank_file_pp_last(plan))
    assert ranks[:5] == [
        "rank 0=node1 slot=0",
        "rank 1=node1 slot=4",
        "rank 2=node2 slot=0",
        "rank 3=node2 slot=4",
        "rank 4=node1 slot=1",
    ]


@pytest.mark.parametrize("hosts, what", [(["a"], "1 hosts for the 8 nodes"), (["a"] * 8, "host a is named 8 times")])
def test_hosts_that_do_not_fit_the_plan(planned, hosts, what):
    with pytest.raises(InputError, match=what):
        hostfile.host_file(planned("tp=2,dp=32"), hosts)


def exports(plan):
    return dict(
        line.removeprefix("export ").split("=", 1) for line in hostfile.environment(plan).splitlines() if line.startswith("export ")
    )


def test_the_record_runs_settings(record):
    assert exports(record) == {
        "NCCL_MNNVL_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_COLLNET_ENABLE": "0",
        "NCCL_MIN_NCHANNELS": "4",
    }
    text = hostfile.environment(record)
    assert "torchrun --nnodes=2048 --nproc-per-node=4 " in text and "--master-addr=rack001-tray01 " in text


@pytest.mark.parametrize("layout, there", [("tp=2,dp=32", True), ("cp=2,dp=32", True), ("dp=64", False), ("tp=2,dp=32,zero=3", False)])
def test_hopper_needs_one_connection_for_tensor_and_context_parallelism(planned, layout, there):
    assert ("CUDA_DEVICE_MAX_CONNECTIONS" in exports(planned(layout))) == there


def test_every_setting_has_its_reason(record, planned):
    for plan in (record, planned("tp=2,dp=32")):
        assert all(why and line for why, line in hostfile.settings(plan))


def test_hashed_paths_get_more_queue_pairs(planned):
    plan = planned("tp=2,dp=32")
    outer = replace(plan.cluster.tiers[-1], routing="hashed")
    hashed = replace(plan, cluster=replace(plan.cluster, tiers=(*plan.cluster.tiers[:-1], outer)))
    assert exports(hashed)["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    assert "NCCL_IB_QPS_PER_CONNECTION" not in exports(plan)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_shell_can_read_it(record, tmp_path):
    path = tmp_path / "launch.sh"
    path.write_text(hostfile.environment(record))
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


def test_nodes_in_use_by_part_have_so_many_slots(planned):
    assert [line.split()[1] for line in body(hostfile.host_file(planned("dp=12")))] == ["slots=6", "slots=6"]
    assert body(hostfile.rank_file(planned("dp=12"), ["a", "b"]))[6] == "rank 6=b slot=0"


@pytest.mark.parametrize(("count", "sizes"), [(66, [4] * 16 + [2]), (6, [4, 2]), (8, [4, 4]), (3, [3])])
def test_the_last_tray_of_a_rack_may_be_in_use_by_part(planned, count, sizes):
    plan = planned(f"dp={count}", machine="gb200-nvl72-ndr")
    assert [int(line.split("slots=")[1]) for line in body(hostfile.host_file(plan))] == sizes
    seats_agree_with_the_rank_map(plan)
    launch = hostfile.environment(plan)
    assert f"--nnodes={len(sizes)} " in launch
    if len(set(sizes)) == 1:
        assert f"--nproc-per-node={sizes[0]} " in launch and "SLOTS" not in launch
    else:
        assert "--nproc-per-node=${SLOTS:?} " in launch and "SLOTS is the number of slots on the host's line" in launch


def test_every_rack_may_leave_its_last_tray_in_use_by_part(planned):
    plan = planned("dp=132", machine="gb200-nvl72-ndr")
    rack, fabric = plan.cluster.tiers
    racks = (replace(rack, num_accelerators=66, num_installed=72), replace(fabric, num_accelerators=132, num_installed=144))
    plan = replace(plan, cluster=replace(plan.cluster, tiers=racks))
    hosts = body(hostfile.host_file(plan))
    assert len(hosts) == 34 == plan.cluster.num_nodes
    assert hosts[16:18] == ["rack1-tray17 slots=2", "rack2-tray01 slots=4"] and hosts[-1] == "rack2-tray17 slots=2"
    seats_agree_with_the_rank_map(plan)
    assert "--nnodes=34 --nproc-per-node=${SLOTS:?}" in hostfile.environment(plan)


def seats_agree_with_the_rank_map(plan):
    placed = rank_map(plan.layout, plan.cluster)
    names = hostfile.host_names(plan)
    ranks = body(hostfile.rank_file(plan))
    assert len(ranks) == len(placed) == plan.layout.num_ranks
    for line, row in zip(ranks, placed.rows(), strict=True):
        host, slot = line.split("=", 1)[1].split(" slot=")
        at = dict(zip(placed.columns, row, strict=True))
        numbers = [int(part.lstrip("racktynode")) - 1 for part in host.split("-")]
        assert host in names and numbers == [at[name] for name in placed.place[:-1]] and int(slot) == at["gpu"]
