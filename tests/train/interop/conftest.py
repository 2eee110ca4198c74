"""Folders of a small model, as the tests of this folder read and spoil them."""

import pytest
import torch
from llamas import MODEL, weights_of

from meshwright.train.interop.huggingface_save import save_huggingface


@pytest.fixture
def folder(tmp_path):
    """A folder of one file, in fp32."""
    path = tmp_path / "small"
    save_huggingface(path, MODEL, weights_of(MODEL), context=512, dtype=torch.float32)
    return path


@pytest.fixture
def sharded(tmp_path):
    path = tmp_path / "small"
    save_huggingface(path, MODEL, weights_of(MODEL), context=512, dtype=torch.float32, shard_bytes=20_000)
    return path
