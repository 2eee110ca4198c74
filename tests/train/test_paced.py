"""Ranks that wait instead of computing: as many steps as asked for, none shorter than its wait."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from meshwright.record.pace import Pace


def test_two_replicas_wait_and_sum(tmp_path):
    pace = Pace(num_steps=3, wait_s=0.05, replica_ranks=1, payload_bytes=((4000, 400),), slow_ranks=(1,), slow_factor=4.0, slow_from=3)
    pace.write(tmp_path / "pace.json")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    words = [sys.executable, "-m", "meshwright.train.paced", str(tmp_path / "pace.json"), str(tmp_path / "out.jsonl")]
    ranks = [subprocess.Popen(words, env={**os.environ, **place, "RANK": str(rank)}) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    steps = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["step_s"] >= 0.05 for step in steps) and steps[2]["step_s"] >= 0.2  # rank 0 waits for the slow one
