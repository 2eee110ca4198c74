"""Which network interface has an address."""

from __future__ import annotations

import os

import pytest

from meshwright.train.elastic import interface


def test_loopback_addresses_are_those_of_one_interface() -> None:
    assert interface.interface_of("127.0.0.1") == interface.interface_of("127.0.0.2") == "lo"
    assert interface.interface_of("203.0.113.9") == ""  # an address for documentation: nobody has it


def test_the_choice_of_the_user_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interface.GLOO, "ib0")
    interface.use_interface_of("127.0.0.1")
    assert os.environ[interface.GLOO] == "ib0"
    monkeypatch.delenv(interface.GLOO)
    interface.use_interface_of("203.0.113.9")
    assert interface.GLOO not in os.environ
    interface.use_interface_of("127.0.0.1")
    assert os.environ.pop(interface.GLOO) == "lo"
