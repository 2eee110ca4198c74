"""The files that put ranks in their places: hosts in rank order, a rank file, and the environment and command of the launch.

Hosts are given in the order of the machine (all of the first domain, then the second), or are named after their places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.errors import InputError
from meshwright.plan.export.heading import comment, heading
from meshwright.plan.numbering import PP_LAST, Order, places
from meshwright.plan.plan import Plan
from meshwright.plan.rankmap import rank_map

PLACEHOLDER = "host names: these are placeholders; pass your own, in the order of the machine"
RECORD_CHANNELS = 4


def host_names(plan: Plan, hosts: Sequence[str] = ()) -> list[str]:
    """One host per node in use, in the order of the machine; placeholders such as rack001-tray01 if no hosts are given."""
    if not hosts:
        return _placeholders(plan)
    count = plan.cluster.num_nodes
    if len(hosts) != count:
        raise InputError(
            f"{len(hosts)} hosts for the {count} nodes of the plan",
            where="hosts",
            fix=f"name {count}, in the order of the machine; leave spares out",
        )
    name, times = Counter(hosts).most_common(1)[0]
    if times > 1:
        raise InputError(f"host {name} is named {times} times", where="hosts", fix="name every host once")
    return list(hosts)


def _placeholders(plan: Plan) -> list[str]:
    placed = rank_map(plan.layout, plan.cluster)
    firsts = placed.columns["gpu"] == 0
    names = placed.place[:-1]  # all levels but the GPU
    columns = [placed.columns[name][firsts].tolist() for name in names]
    widths = [len(str(max(column) + 1)) for column in columns]
    return ["-".join(f"{n}{i + 1:0{w}}" for n, i, w in zip(names, row, widths, strict=True)) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class Seats:
    """Nodes in the order of the machine, and node and slot of each accelerator in use; the last node of a domain may be partly used."""

    node: list[int]
    slot: list[int]
    sizes: list[int]  # accelerators in use on each node

    @classmethod
    def of(cls, plan: Plan) -> Seats:
        """The nodes and slots of the plan's accelerators, from its rank map."""
        slot = rank_map(plan.layout, plan.cluster).columns["gpu"]
        node = (slot == 0).cumsum() - 1
        return cls(node.tolist(), slot.tolist(), np.bincount(node).tolist())


def host_file(plan: Plan, hosts: Sequence[str] = ()) -> str:
    """Hosts and their slots, in the order of the plan's ranks."""
    return _host_file(plan, hosts, plan.layout.order)


def host_file_pp_last(plan: Plan, hosts: Sequence[str] = ()) -> str:
    """Hosts and their slots for a stack that numbers its ranks tp-cp-dp-pp."""
    return _host_file(plan, hosts, PP_LAST)


def _host_file(plan: Plan, hosts: Sequence[str], order: Order) -> str:
    names, sizes = host_names(plan, hosts), Seats.of(plan).sizes
    nodes = node_order(plan, order)
    limits = ([] if hosts else [PLACEHOLDER]) + _spares(plan)
    use = "The n-th host is node rank n of torchrun; mpirun and DeepSpeed read the file as it is."
    lines = [*heading(plan, f"Host file, ranks numbered {'-'.join(order)}", limits), comment(use)]
    return "\n".join([*lines, *(f"{names[node]} slots={sizes[node]}" for node in nodes), ""])


def node_order(plan: Plan, order: Order) -> list[int]:
    """Nodes in the order of their ranks; an error if the ranks of a node are not numbered in a row."""
    seats, placed, nodes, start = Seats.of(plan), places(plan.layout, order), list[int](), 0
    while start < len(placed):
        first = placed[start]
        node = seats.node[first]
        size = seats.sizes[node]
        if seats.slot[first] or placed[start : start + size] != list(range(first, first + size)):
            raise InputError(
                f"numbered {'-'.join(order)}, the ranks of a node are not neighbours: an order of hosts cannot place them",
                where="layout.order",
                fix="use the rank file of kind rankfile-pp-last, which places every rank by itself",
            )
        nodes.append(node)
        start += size
    return nodes


def rank_file(plan: Plan, hosts: Sequence[str] = ()) -> str:
    """Host and slot of every rank, with ranks numbered as in the plan."""
    return _rank_file(plan, hosts, plan.layout.order)


def rank_file_pp_last(plan: Plan, hosts: Sequence[str] = ()) -> str:
    """Host and slot of every rank for a stack that numbers its ranks tp-cp-dp-pp: Megatron-LM by default, torchtitan, DeepSpeed."""
    return _rank_file(plan, hosts, PP_LAST)


def _rank_file(plan: Plan, hosts: Sequence[str], order: Order) -> str:
    names, seats = host_names(plan, hosts), Seats.of(plan)
    limits = ([] if hosts else [PLACEHOLDER]) + _spares(plan)
    use = "Use: mpirun --rankfile THIS_FILE (Open MPI); slot k is local GPU k. With Slurm, SLURM_HOSTFILE takes the hosts in this order."
    lines = [*heading(plan, f"Rank file, ranks numbered {'-'.join(order)}", limits), comment(use)]
    for rank, place in enumerate(places(plan.layout, order)):
        lines.append(f"rank {rank}={names[seats.node[place]]} slot={seats.slot[place]}")
    return "\n".join([*lines, ""])


def _spares(plan: Plan) -> list[str]:
    if not plan.spares_per_domain:
        return []
    inner = plan.cluster.tiers[0]
    return [f"{plan.spares_per_domain} of {inner.num_installed} accelerators of each {inner.name} are spares: leave their hosts out"]


def environment(plan: Plan, hosts: Sequence[str] = ()) -> str:
    """A shell file: NCCL and CUDA settings with their reasons, and the torchrun command of every node."""
    names = host_names(plan, hosts)
    limits = ([] if hosts else [PLACEHOLDER]) + [
        "which network cards and traffic class: they are the site's (NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_IB_TC)",
        "the training script and its arguments",
    ]
    lines = heading(plan, "Environment and launch", limits)
    for why, setting in settings(plan):
        lines += ["", comment(why), setting]
    return "\n".join([*lines, "", *_torchrun(plan, names[0]), ""])


def settings(plan: Plan) -> list[tuple[str, str]]:
    """The reason and the shell line of every setting."""
    cluster, made = plan.cluster, list[tuple[str, str]]()
    if cluster.num_nodes > 1:
        made += _fabric_settings(plan)
    if cluster.accelerator.vendor == "NVIDIA":
        made += _domain_settings(plan)
        if needs_one_connection(plan):
            why = "One queue keeps communication and multiplications in the order they were launched; Megatron-LM insists before Blackwell."
            made.append((why, "export CUDA_DEVICE_MAX_CONNECTIONS=1"))
    return made


def needs_one_connection(plan: Plan) -> bool:
    """Whether kernels must run in launch order for tensor or context parallelism: only before Blackwell, and not with sharded weights."""
    split = plan.layout.tp > 1 or plan.layout.cp > 1
    return split and plan.layout.zero_stage < 2 and not plan.cluster.accelerator.architecture.startswith("blackwell")


def _fabric_settings(plan: Plan) -> list[tuple[str, str]]:
    outer = plan.cluster.tiers[-1]
    why = f"The cards of the {outer.name} ({outer.link}), one for each accelerator; without it NCCL may pick a management port."
    made = [(why, "# export NCCL_IB_HCA=mlx5_0,mlx5_1,...")]
    if outer.routing == "hashed":
        why = "Flows are hashed onto paths: more queue pairs a connection spread them."
        made.append((why, "export NCCL_IB_QPS_PER_CONNECTION=4\nexport NCCL_IB_SPLIT_DATA_ON_QPS=1"))
    return made


def _domain_settings(plan: Plan) -> list[tuple[str, str]]:
    """Settings for an NVLink domain larger than a node (NVL72), as in the record run."""
    inner = plan.cluster.tiers[0]
    if not inner.link.startswith("nvlink") or inner.num_accelerators <= plan.cluster.accelerators_per_node:
        return []
    return [
        (f"One {inner.name} is one NVLink domain of several nodes: fail at once if NCCL does not see it.", "export NCCL_MNNVL_ENABLE=1"),
        (
            "Reductions by the switches off, as in the record run: what is reduced crosses the fabric, and NVLS takes memory and SMs.",
            "export NCCL_NVLS_ENABLE=0",
        ),
        ("SHARP off, as in the record run: the fabric's switches reduce nothing.", "export NCCL_COLLNET_ENABLE=0"),
        (
            f"{RECORD_CHANNELS} channels, as in the record run: few SMs carry messages, the others multiply. It is the least NCCL opens.",
            f"export NCCL_MIN_NCHANNELS={RECORD_CHANNELS}",
        ),
    ]


def _torchrun(plan: Plan, first: str) -> list[str]:
    sizes = Seats.of(plan).sizes
    is_even = len(set(sizes)) == 1
    per_node = sizes[0] if is_even else "${SLOTS:?}"
    why = (
        f"On every node. NODE_RANK is the line of the host in the host file: kind `hostfile` for a stack that numbers ranks as the plan, "
        f"{'-'.join(plan.layout.order)}; kind `hostfile-pp-last` for one that numbers them {'-'.join(PP_LAST)}."
    )
    uneven = f"Not all nodes have {max(sizes)} accelerators in use: SLOTS is the number of slots on the host's line."
    return [
        comment(why),
        *([] if is_even else [comment(uneven)]),
        f"torchrun --nnodes={len(sizes)} --nproc-per-node={per_node} --node-rank=${{NODE_RANK:?}} \\",
        f"  --rdzv-backend=static --master-addr={first} --master-port=29500 \\",
        '  "${SCRIPT:?the training script}" "$@"',
    ]
