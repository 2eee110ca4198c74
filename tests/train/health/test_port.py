"""More connections than the ranks make are noticed and named."""

from __future__ import annotations

import socket
import time
from collections import Counter
from pathlib import Path

import pytest

from meshwright.train.health.port import connections_at, flood, port_watched

LINUX = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system does not list its connections in a file")
HEADER = "  sl  local_address rem_address   st\n"


def test_only_open_connections_to_the_port_count(tmp_path: Path) -> None:
    four, six = tmp_path / "tcp", tmp_path / "tcp6"
    four.write_text(
        HEADER + "0: 0100007F:733C 0200000A:C001 01 0\n1: 0100007F:733C 00000000:0000 0A 0\n2: 0100007F:733D 0200000A:C002 01 0\n"
    )
    mapped = "0000000000000000FFFF00000200000A"
    six.write_text(HEADER + f"0: {mapped}:733C {mapped}:C003 01 0\n1: {'0' * 24}01000000:733C {'0' * 24}01000000:C004 01 0\n")
    assert connections_at(0x733C, (four, six, tmp_path / "none")) == {"10.0.0.2": 2, "::1": 1}


def test_what_ranks_make_is_no_flood() -> None:
    assert flood(29500, 8, Counter({"10.0.0.1": 192}), is_sealed=True) == ""
    text = flood(29500, 8, Counter({"10.0.0.1": 40, "10.0.0.9": 900}), is_sealed=True)
    assert text.startswith("940 connections are open at port 29500, where 8 ranks meet and have at most 192 (900 from 10.0.0.9, 40 from")


@LINUX
def test_a_flood_is_told_once() -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        port = int(server.getsockname()[1])
        with port_watched(port, 1, told.append, is_sealed=False, look_s=0.02):
            strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            until_s = time.monotonic() + 20
            while not told and time.monotonic() < until_s:
                time.sleep(0.02)
            time.sleep(0.1)
            for one in strangers:
                one.close()
    assert len(told) == 1 and "from 127.0.0.1" in told[0] and "they have no secret" in told[0]
