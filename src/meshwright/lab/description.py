"""What a lab consists of: racks of hosts, links with a rate, planes; and the names and addresses that follow from it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.errors import InputError

PREFIX = "mw"  # every namespace of a lab begins with it, and with the name of the lab
NAME = re.compile(r"[a-z][a-z0-9]{0,11}")  # no hyphen: one lab's prefix is then never the beginning of another's
RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit")
FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9}
MOST_HOSTS = 128  # each is a namespace with its own processes on this one machine
MOST_PLANES = 8
LEAST_BITS_PER_S, MOST_BITS_PER_S = 1e5, 1e11
OWN_NETWORK = ipaddress.ip_network("10.64.0.0/16")  # of the hosts themselves, where several planes lead to them
PLANE_NETWORK = ipaddress.ip_network("10.65.0.0/16")  # of the first plane; the others follow
MANAGEMENT_NETWORK = ipaddress.ip_network("10.80.0.0/16")  # of Slurm and ssh, apart from the traffic of jobs; its links have no rate
LOGIN = "login"  # the host from which jobs are submitted, and on which Slurm's controller runs


@dataclass(frozen=True, slots=True, order=True)
class Host:
    """One host, by its rack and its place in the rack."""

    rack: int
    number: int

    def __str__(self) -> str:
        return f"r{self.rack}h{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Racks of hosts on one machine. The rates of links are one way, and of all planes together."""

    name: str = "lab"
    num_racks: int = 2
    num_hosts: int = 2  # of a rack
    num_ranks: int = 2  # of a host: processes that act as accelerators
    rail_bits_per_s: float = 2e9  # between a host and its rack
    uplink_bits_per_s: float = 1e8  # between a rack and the spine
    num_planes: int = 1
    is_spread: bool = False  # with several planes: whether pairs of hosts have a plane each, and are not hashed onto one
    has_slurm: bool = False  # a Slurm whose nodes are the hosts
    has_ssh: bool = False  # an ssh server on each host
    has_accounting: bool = False  # Slurm's accounts, in a database of the lab's own

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InputError(f"{self.name!r} is no name for a lab", where="--name", fix="use up to 12 lower-case letters and digits")
        counts = {"--racks": self.num_racks, "--hosts": self.num_hosts, "--ranks": self.num_ranks, "--planes": self.num_planes}
        for option, count in counts.items():
            if count < 1:
                raise InputError(f"{option} is {count}", where=option, fix="give 1 or more")
        if self.num_racks * self.num_hosts > MOST_HOSTS:
            what = f"{self.num_racks} racks of {self.num_hosts} hosts are {self.num_racks * self.num_hosts} hosts"
            raise InputError(what, where="--racks, --hosts", fix=f"use at most {MOST_HOSTS} hosts in all")
        if self.num_planes > MOST_PLANES:
            raise InputError(f"--planes is {self.num_planes}", where="--planes", fix=f"give at most {MOST_PLANES}")
        if self.has_accounting and not self.has_slurm:
            raise InputError("accounts are those of a Slurm", where="--accounting", fix="add --slurm, or leave it out")
        for option, rate in (("--rail", self.rail_bits_per_s), ("--uplink", self.uplink_bits_per_s)):
            check_rate(rate, option)

    @property
    def prefix(self) -> str:
        """How the names of this lab's namespaces begin."""
        return f"{PREFIX}-{self.name}-"

    @property
    def hosts(self) -> list[Host]:
        """All hosts, rack by rack."""
        return [Host(rack, number) for rack in range(self.num_racks) for number in range(self.num_hosts)]

    @property
    def num_slots(self) -> int:
        """Places for ranks on all hosts together."""
        return self.num_racks * self.num_hosts * self.num_ranks

    @property
    def interface(self) -> str:
        """The interface of a host whose address its ranks use."""
        return "eth0" if self.num_planes == 1 else "own0"

    @property
    def has_login(self) -> bool:
        """Whether there is a host from which jobs are submitted, and a network of its own to reach the others."""
        return self.has_slurm or self.has_ssh

    @property
    def words(self) -> str:
        """The lab in a few words."""
        routed = "spread" if self.is_spread else "hashed"
        planes = f", {self.num_planes} planes ({routed})" if self.num_planes > 1 else ""
        rates = f"rail {rate_text(self.rail_bits_per_s)}, uplink {rate_text(self.uplink_bits_per_s)}"
        slurm = ", with Slurm and its accounts" if self.has_accounting else ", with Slurm" if self.has_slurm else ""
        services = slurm + (", with ssh" if self.has_ssh else "")
        sizes = ((self.num_racks, "rack"), (self.num_hosts, "host"), (self.num_ranks, "rank"))
        shape = " x ".join(f"{count} {noun}{'s' if count != 1 else ''}" for count, noun in sizes)
        return f"{shape}, {rates}{planes}{services}"

    def host_at(self, slot: int) -> Host:
        """The host of a place for a rank; places are counted host by host, rack by rack."""
        return self.hosts[slot // self.num_ranks]

    def namespace(self, host: Host) -> str:
        """The namespace of a host."""
        return f"{self.prefix}{host}"

    def rack_switch(self, rack: int, plane: int) -> str:
        """The namespace of a rack's switch in one plane."""
        return f"{self.prefix}p{plane}rack{rack}"

    def spine(self, plane: int) -> str:
        """The namespace of the switch between the racks in one plane."""
        return f"{self.prefix}p{plane}spine"

    def namespaces(self) -> Iterator[str]:
        """All namespaces of the lab."""
        yield from map(self.namespace, self.hosts)
        for plane in range(self.num_planes):
            yield from (self.rack_switch(rack, plane) for rack in range(self.num_racks))
            yield self.spine(plane)
        if self.has_login:
            yield from (self.login, self.management_switch)

    @property
    def login(self) -> str:
        """The namespace of the host from which jobs are submitted."""
        return f"{self.prefix}{LOGIN}"

    @property
    def management_switch(self) -> str:
        """The namespace of the switch of the management network."""
        return f"{self.prefix}mgmt"

    def management_address(self, host: Host | None) -> str:
        """The address of a host, or of the login host, in the management network."""
        return _address(MANAGEMENT_NETWORK, MANAGEMENT_NETWORK.num_addresses - 2 if host is None else self._number(host))

    def address(self, host: Host) -> str:
        """The address under which a host's ranks are reached: that of its only link, or its own one where several planes lead to it."""
        return self.plane_address(host, 0) if self.num_planes == 1 else _address(OWN_NETWORK, self._number(host))

    def plane_address(self, host: Host, plane: int) -> str:
        """The address of a host's link in one plane."""
        network = ipaddress.ip_network((int(PLANE_NETWORK.network_address) + plane * PLANE_NETWORK.num_addresses, 16))
        return _address(network, self._number(host))

    def _number(self, host: Host) -> int:
        return host.rack * self.num_hosts + host.number + 1


def _address(network: ipaddress.IPv4Network | ipaddress.IPv6Network, number: int) -> str:
    return str(network.network_address + number)


def rate_of(text: str, option: str) -> float:
    """Bits per second of a text such as 2gbit or 100mbit, as `tc` writes rates."""
    found = RATE.fullmatch(text.strip().lower())
    if not found:
        raise InputError(f"{option} is {text!r}, which is no rate", where=option, fix=f"write it as 100mbit or 2gbit: {option} 100mbit")
    return check_rate(float(found[1]) * FACTORS[found[2]], option)


def check_rate(bits_per_s: float, option: str) -> float:
    """The rate, if a link of a lab can have it."""
    if not LEAST_BITS_PER_S <= bits_per_s <= MOST_BITS_PER_S:
        what = f"{option} is {bits_per_s:g} bits per second"
        raise InputError(what, where=option, fix=f"give {rate_text(LEAST_BITS_PER_S)} to {rate_text(MOST_BITS_PER_S)}")
    return bits_per_s


def rate_text(bits_per_s: float) -> str:
    """A rate as it is given: 2gbit, 100mbit."""
    for letter in ("g", "m", "k"):
        if bits_per_s >= FACTORS[letter]:
            return f"{bits_per_s / FACTORS[letter]:g}{letter}bit"
    return f"{bits_per_s / 1e3:g}kbit"
