"""What a rank takes of its machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from meshwright.train.launch import Place
from meshwright.train.session import _claim


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("value, wanted", [("3", 3), (None, 1)])
def test_the_users_number_of_threads_is_kept(monkeypatch: pytest.MonkeyPatch, value: str | None, wanted: int) -> None:
    torch.set_num_threads(3)  # as torch does by itself where OMP_NUM_THREADS is 3
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    if value:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    else:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    _claim(torch.device("cpu"), Place(rank=0, num_ranks=4096, local_rank=0, num_local_ranks=4096, store=dist.HashStore()), 4096)
    assert torch.get_num_threads() == wanted
