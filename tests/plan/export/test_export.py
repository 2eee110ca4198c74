"""What all exports share."""

from dataclasses import replace

import pytest

from meshwright.describe.load import accelerator
from meshwright.errors import InputError
from meshwright.plan.export import EXPORTS, export, exported


@pytest.fixture(scope="module")
def plain(planned):
    """A plan that every stack can run."""
    return planned("tp=2,dp=32,order=tp-cp-dp-pp")


@pytest.mark.parametrize("kind", EXPORTS)
def test_every_file_says_where_it_comes_from_ends_in_a_newline_and_is_the_same_again(plain, kind, tmp_path):
    export(plain, kind, tmp_path / "file")
    written = (tmp_path / "file").read_bytes()
    assert written == exported(plain, kind).encode()
    assert b"\r" not in written and written.endswith(b"\n") and written.isascii()
    top = written.decode()[:1500]
    assert "by hand (plan file version 1" in top and "layout: tp=2,cp=1,pp=1,vp=1,dp=32,mbs=1" in top


def test_hosts_are_named_where_a_file_names_any(plain):
    hosts = [f"h{i}" for i in range(8)]
    assert exported(plain, "rankfile", hosts).endswith("rank 63=h7 slot=7\n")
    assert exported(plain, "deepspeed", hosts) == exported(plain, "deepspeed")


def test_an_unknown_kind(plain):
    with pytest.raises(InputError, match="no export named 'megatorn'") as error:
        exported(plain, "megatorn")
    assert "megatron" in error.value.fix


def test_other_peoples_accelerators(plain):
    with pytest.raises(InputError, match="does not run on tpu-v5p of Google"):
        exported(replace(plain, cluster=replace(plain.cluster, accelerator=accelerator("tpu-v5p"))), "megatron")


def test_a_folder_that_is_not_there(plain, tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        export(plain, "megatron", tmp_path / "nowhere" / "file")
