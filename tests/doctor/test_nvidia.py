"""Answers of nvidia-smi, of new and old drivers, with values that a card does not have."""

from __future__ import annotations

import pytest

from meshwright.doctor import nvidia
from meshwright.doctor.nvidia import FIELDS, gpu, gpu_users, slowdown_words
from meshwright.units import MEGA, MIB

H200 = "3, NVIDIA H200, 580.65.06, 143771, 0, 700.00, 0, No, No, 1545, 1980, 0x0000000000000004\n"
CONSUMER = "0, NVIDIA GeForce RTX 4090, 550.54.14, 24564, 1024, 450.00, [N/A], [N/A], [N/A], 210, 3105, 0x0000000000000001\n"


def refuses(*unknown: str):
    """A driver that does not know some fields; others have the values of the H200."""
    values = dict(zip(FIELDS, H200.strip().split(", "), strict=True)) | {"clocks_throttle_reasons.active": "0x0000000000000008"}

    def ask(arguments):
        fields = arguments[1].partition("=")[2].split(",")
        for field in fields:
            if field in unknown:
                raise OSError(f'Field "{field}" is not a valid field to query.')
        return ", ".join(values[field] for field in fields)

    return ask


def test_a_card_is_read_in_si_units():
    asked = []
    found = gpu("3", lambda arguments: asked.append(arguments) or H200)
    assert (found.index, found.name, found.driver) == (3, "NVIDIA H200", "580.65.06")
    assert (found.memory_bytes, found.used_bytes, found.power_limit_w) == (143771 * MIB, 0.0, 700.0)
    assert (found.ecc_uncorrected, found.rows_pending, found.rows_failed) == (0, False, False)
    assert (found.clock_hz, found.max_clock_hz, found.slowdowns) == (1545 * MEGA, 1980 * MEGA, 4)
    assert asked == [["--id=3", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]]


def test_what_a_card_does_not_have_is_none():
    found = gpu("0", lambda arguments: CONSUMER)
    assert (found.ecc_uncorrected, found.rows_pending, found.rows_failed) == (None, None, None)
    assert found.used_bytes == 1024 * MIB and found.slowdowns == 1


def test_an_older_driver_is_asked_field_by_field_and_by_older_names():
    found = gpu("3", refuses("clocks_event_reasons.active", "remapped_rows.pending"))
    assert (found.slowdowns, found.rows_pending, found.ecc_uncorrected) == (8, None, 0)


def test_a_driver_that_answers_nothing_is_an_error_with_its_words():
    def broken(arguments):
        raise OSError("nvidia-smi fails: Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error")

    with pytest.raises(OSError, match="Unable to determine"):
        gpu("0", broken)
    with pytest.raises(OSError, match="No devices were found"):
        gpu("0", lambda arguments: "No devices were found\n")


def test_a_tool_that_hangs_is_not_asked_again():
    asked = []

    def hangs(arguments):
        asked.append(arguments)
        raise nvidia.NoAnswerError("nvidia-smi did not answer within 7 s")

    with pytest.raises(OSError, match="did not answer"):
        gpu("0", hangs)
    assert len(asked) == 1


def test_processes_on_a_card_are_named():
    printed = "4711, python, 40960\n4712, /usr/bin/other, [N/A]\n"
    assert gpu_users("0", lambda arguments: printed) == ("python (process 4711, 40960 MiB)", "/usr/bin/other (process 4712)")
    assert gpu_users("0", lambda arguments: "") == ()


@pytest.mark.parametrize("bits, words", [(0x4, ""), (0x1, ""), (0x8, "hardware slowdown"), (0xC0, "too hot (hardware limit), power brake")])
def test_reasons_that_no_healthy_card_has(bits, words):
    assert slowdown_words(bits) == words


def test_a_machine_without_the_tool_says_so(monkeypatch):
    monkeypatch.setattr(nvidia.shutil, "which", lambda name: None)
    with pytest.raises(OSError, match="no nvidia-smi"):
        nvidia.nvidia_smi(["--list-gpus"])


def test_a_tool_that_fails_or_hangs_says_why(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    tool.chmod(0o755)
    with pytest.raises(OSError, match="version mismatch"):
        nvidia.nvidia_smi(["--list-gpus"])
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(nvidia, "ANSWER_S", 0.3)
    with pytest.raises(OSError, match="did not answer"):
        nvidia.nvidia_smi(["--list-gpus"])
