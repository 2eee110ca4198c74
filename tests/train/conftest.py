"""Ranks that all tests of this folder share: processes start once a session (once a worker of xdist) and end with it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

# The ranks import what they run by its name: `parity`, `on_ranks` and `ranks` of this folder.
sys.path.insert(0, str(Path(__file__).parent))

from ranks import Pools
from small_run import Small, make_corpus


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """Pools of gloo ranks by size."""
    started = Pools()
    yield started
    started.close()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The corpus of small runs, and plans for it."""
    return Small(corpus=make_corpus(tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="session")
def plan_of_two(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan file for two ranks."""
    return small.plan_file(tmp_path_factory.mktemp("plan") / "plan.json", "dp=2")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as a world of its own, of one thread, where no other test has left one."""
    from meshwright.train.measure.slices import alone

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert not dist.is_initialized()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads of a small product wait for each other longer than they work
    undo = alone(torch.device("cpu"))
    yield
    undo()
    torch.set_num_threads(num_threads)
