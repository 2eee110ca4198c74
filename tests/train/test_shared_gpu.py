"""Several ranks on one GPU: what is missing for it is named."""

import ctypes

import pytest

from meshwright.errors import InputError
from meshwright.train import shared_gpu
from meshwright.train.shared_gpu import SETTINGS, allow_sharing, check_sharing, loaded_nccl


@pytest.fixture
def mps(tmp_path) -> dict[str, str]:
    """The environment of a process that MPS serves."""
    (tmp_path / "control").touch()
    return {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}


@pytest.mark.parametrize("version", [(2, 30, 0), (2, 31, 2), (3, 0, 1)])
def test_a_new_library_and_mps_are_enough(mps, version):
    check_sharing(version, mps)


@pytest.mark.parametrize("version", [(2, 29, 9), (2, 28, 9), (1, 99, 0)])
def test_an_older_library_is_named_with_what_to_install(mps, version):
    with pytest.raises(InputError, match=rf"need NCCL 2\.30 or later, and this process has loaded {'.'.join(map(str, version))}") as found:
        check_sharing(version, mps)
    assert "LD_PRELOAD" in found.value.fix


def test_a_torch_without_nccl_is_named(mps):
    with pytest.raises(InputError, match="this torch has no NCCL"):
        check_sharing(None, mps)


def test_a_missing_daemon_is_named_with_where_it_was_looked_for(tmp_path):
    with pytest.raises(InputError, match=f"no MPS daemon listens in {tmp_path}") as found:
        check_sharing((2, 31, 2), {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert "nvidia-cuda-mps-control -d" in found.value.fix


def test_settings_of_the_user_stay():
    environment = {"NCCL_MAX_CTAS": "4"}
    allow_sharing(environment)
    assert environment == {**SETTINGS, "NCCL_MAX_CTAS": "4"}


class Library:
    """Stands in for NCCL's library, with a version of its own and whether asking for it fails."""

    def __init__(self, number: int, fails: bool = False) -> None:
        self.number, self.fails = number, fails

    def ncclGetVersion(self, place) -> int:
        ctypes.cast(place, ctypes.POINTER(ctypes.c_int))[0] = self.number
        return int(self.fails)


@pytest.mark.parametrize(
    ("library", "version"), [(Library(23102), (2, 31, 2)), (Library(30000), (3, 0, 0)), (Library(1, fails=True), None)]
)
def test_the_version_is_asked_of_the_library_that_is_loaded(monkeypatch, library, version):
    monkeypatch.setattr(shared_gpu.ctypes, "CDLL", lambda *_, **__: library)
    assert loaded_nccl() == version


def test_a_process_without_the_library_has_no_version(monkeypatch):
    def missing(*_, **__):
        raise OSError("libnccl.so.2: cannot open shared object file")

    monkeypatch.setattr(shared_gpu.ctypes, "CDLL", missing)
    assert loaded_nccl() is None
