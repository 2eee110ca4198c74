"""One replica group of one rank that trains a small model with torchft on gloo; benchmarks/against_torchft.py starts it.

    python torchft_replica.py NAME LIGHTHOUSE LOG

Each line of LOG is one attempt at a step: when it ended, the step, whether it counts, and how many groups took part.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn, optim

WIDTH, PER_GROUP = 128, 4  # 67 K parameters, as the model of the other side; samples of one group in a step


def train(name: str, lighthouse: str, log: Path) -> None:
    """Train until the process is ended."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    inner = optim.AdamW(model.parameters())
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), inner.load_state_dict(state["optimizer"])),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=name,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        timeout=timedelta(seconds=10),
    )
    trained, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    with open(log, "a", buffering=1) as file:
        while True:
            before = manager.current_step()
            optimizer.zero_grad()
            trained(torch.randn(PER_GROUP, WIDTH)).square().mean().backward()
            optimizer.step()
            entry = {"time_s": time.time(), "step": manager.current_step(), "counts": manager.current_step() > before}
            file.write(json.dumps({**entry, "num_groups": manager.num_participants()}) + "\n")


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
