"""One device in a few seconds; the GPU's own numbers are in benchmarks/doctor.py."""

from __future__ import annotations

import time

import pytest
import torch

from meshwright.train.measure import card
from meshwright.train.measure.card import busy_while, card_speed, card_versions, speed_on

CPU = torch.device("cpu")


def test_speeds_of_a_device_and_what_was_seen_meanwhile(monkeypatch):
    monkeypatch.setattr(card, "PRODUCT_S", 0.01)
    monkeypatch.setattr(card, "COPY_S", 0.01)
    flops_per_s, bytes_per_s, seen = speed_on(CPU, lambda: "a clock")
    assert flops_per_s > 0 and bytes_per_s > 0 and seen == "a clock"


def test_the_device_works_until_the_look_has_ended():
    calls = []
    assert busy_while(lambda: calls.append(time.sleep(0.001)), CPU, lambda: (time.sleep(0.1), len(calls))[1]) > 2
    seen_nothing = busy_while(lambda: None, CPU, lambda: (_ for _ in ()).throw(OSError("no tool")))
    assert seen_nothing is None


def test_a_machine_without_a_gpu_says_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match="no GPU that it can use"):
        card_speed(0, lambda: None)


def test_versions_are_texts():
    assert all(isinstance(text, str) and text for text in card_versions().values())
