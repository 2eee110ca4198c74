"""Supervisors of other nodes as processes on this machine, with ranks that do not train."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from typing import Any

from meshwright.layout import Layout
from meshwright.train.elastic.follower import Meeting, follow
from meshwright.train.elastic.member import Member
from meshwright.train.elastic.nodes import Nodes

SECRET = b"0123456789abcdef"
FACTS = {"layout dp": "2", "version of torch": "2.13"}
TWO = Layout(dp=2)
OPENED: list[Nodes] = []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def leading(num_nodes: int = 2, stall_s: float = 10.0, timeout_s: float = 60.0) -> Nodes:
    """The nodes of a run of one rank each, as node 0 sees them."""
    nodes = Nodes([1] * num_nodes, "127.0.0.1", free_port(), SECRET, FACTS, stall_s, timeout_s)
    nodes.open()
    OPENED.append(nodes)
    return nodes


def meeting(nodes: Nodes, node: int, **changes: Any) -> Meeting:
    """What the supervisor of a node brings along."""
    given: dict[str, Any] = {"secret": SECRET, "facts": FACTS, "timeout_s": 60.0, **changes}
    return Meeting(host="127.0.0.1", port=nodes._port, node=node, **given)


def started(nodes: Nodes, node: int, body: Callable[[Member], None], stall_s: float = 10.0, **changes: Any) -> ForkProcess:
    """The supervisor of another node; its exit status is that of its process."""

    def bodies(terms: Mapping[str, Any]) -> Callable[[Member], None]:
        return body

    def run() -> None:
        os.setsid()
        nodes.leave_to_parent()
        os._exit(follow(meeting(nodes, node, **changes), bodies, stall_s))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


@contextmanager
def ended(*processes: ForkProcess) -> Iterator[None]:
    """Kill what is left of supervisors, and their ranks with them."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()
