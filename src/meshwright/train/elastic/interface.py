"""The network interface over which ranks of several nodes reach each other."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress

SIOCGIFADDR = 0x8915  # ioctl(2): the address of an interface, on Linux
GLOO = "GLOO_SOCKET_IFNAME"


def interface_of(address: str) -> str:
    """The name of the interface that has an address; empty if it cannot be found."""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def use_interface_of(address: str) -> None:
    """Let gloo use the interface with this address, unless the user has chosen one: the name of a host may lead to another one."""
    name = interface_of(address)
    if name:
        os.environ.setdefault(GLOO, name)
