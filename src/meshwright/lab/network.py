"""The commands that make, change and remove a lab's network: pure, so that a test can read them without being root.

A host is a namespace with one link for each plane. The switch of a rack and the spine are bridges in namespaces of their own. Both ends of
a link are shaped by a token bucket (`tc tbf`), so the rate holds in each direction. Nothing is made outside these namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshwright.errors import InputError, nearest
from meshwright.lab.description import Host, Lab

Command = tuple[str, ...]
# A full bucket lets this much pass at once. It must hold a few packets, and is otherwise short: messages of training may be as small as a
# bucket, and would seem to cost nothing.
BUCKET_S, LEAST_BUCKET_BYTES = 0.001, 20_000
# A queue this long loses nothing: TCP's own windows are smaller. A lossy queue would add TCP's retransmission time of 200 ms to collectives
# of a few milliseconds, which the lossless networks of real clusters do not have.
QUEUE_BYTES = 64_000_000
# Jumbo frames, as in the networks of clusters. Every packet costs the cores an interrupt at each shaped link, and a rank that computes pays
# for it: with packets of 1,500 bytes, links at 100 Mbit/s took a sixth of two cores.
MTU_BYTES = 9_000
MANAGEMENT = "mgmt0"  # the interface of a host in the management network
SETTINGS = (
    "net.ipv4.tcp_congestion_control=reno",  # every namespace may choose it; the system's own, such as bbr, may pace short bursts
    "net.ipv4.tcp_slow_start_after_idle=0",  # a collective comes after a pause for compute
    "net.ipv4.fib_multipath_hash_policy=1",  # flows between the same two hosts may take different planes
    "net.ipv4.conf.all.rp_filter=0",  # an answer may come through another plane
    "net.ipv4.conf.all.ignore_routes_with_linkdown=1",  # a plane whose switch is gone is no longer used
)


@dataclass(frozen=True, slots=True)
class Link:
    """One link of one plane, as the two ends that are shaped: (namespace, interface)."""

    name: str  # rack1 for its uplink, r0h1 for the link of a host
    plane: int
    ends: tuple[tuple[str, str], tuple[str, str]]
    bits_per_s: float


def links(lab: Lab) -> list[Link]:
    """All links of a lab, plane by plane: those of hosts, then the uplinks. The rate of a link is that of its plane."""
    found = []
    for plane in range(lab.num_planes):
        for host in lab.hosts:
            ends = (lab.namespace(host), f"eth{plane}"), (lab.rack_switch(host.rack, plane), f"h{host.number}")
            found.append(Link(str(host), plane, ends, lab.rail_bits_per_s / lab.num_planes))
        for rack in range(lab.num_racks):
            ends = (lab.rack_switch(rack, plane), "up0"), (lab.spine(plane), f"rack{rack}")
            found.append(Link(f"rack{rack}", plane, ends, lab.uplink_bits_per_s / lab.num_planes))
    return found


def chosen(lab: Lab, name: str, plane: int | None) -> list[Link]:
    """The links of that name in one plane, or in all planes."""
    known = links(lab)
    if name not in {link.name for link in known}:
        raise InputError(f"no link is named {name!r}", where="LINK", fix=nearest(name, sorted({link.name for link in known})))
    if plane is not None and not 0 <= plane < lab.num_planes:
        fix = f"give 0 to {lab.num_planes - 1}" if lab.num_planes > 1 else "leave it out: this lab has one plane"
        raise InputError(f"no plane {plane}", where="--plane", fix=fix)
    return [link for link in known if link.name == name and plane in (None, link.plane)]


def up_commands(lab: Lab) -> Iterator[Command]:
    """Make the whole network."""
    for plane in range(lab.num_planes):
        for switch in (*(lab.rack_switch(rack, plane) for rack in range(lab.num_racks)), lab.spine(plane)):
            yield "ip", "netns", "add", switch
            yield "ip", "-n", switch, "link", "add", "br0", "type", "bridge"
            yield "ip", "-n", switch, "link", "set", "br0", "up"
    for host in lab.hosts:
        yield "ip", "netns", "add", lab.namespace(host)
        yield "ip", "-n", lab.namespace(host), "link", "set", "lo", "up"
        yield "ip", "netns", "exec", lab.namespace(host), "sysctl", "-qw", *SETTINGS
    for link in links(lab):
        yield from _link_commands(link)
    for host in lab.hosts:
        yield from _address_commands(lab, host)
    if lab.has_login:
        yield from _management_commands(lab)


def _management_commands(lab: Lab) -> Iterator[Command]:
    """A switch to which every host and the login host have a link without a rate: Slurm and ssh take no room on the job's links."""
    switch = lab.management_switch
    yield "ip", "netns", "add", switch
    yield "ip", "-n", switch, "link", "add", "br0", "type", "bridge"
    yield "ip", "-n", switch, "link", "set", "br0", "up"
    yield "ip", "netns", "add", lab.login
    yield "ip", "-n", lab.login, "link", "set", "lo", "up"
    for number, host in enumerate((None, *lab.hosts)):
        namespace, port = lab.login if host is None else lab.namespace(host), f"port{number}"
        yield "ip", "link", "add", MANAGEMENT, "netns", namespace, "type", "veth", "peer", "name", port, "netns", switch
        yield "ip", "-n", switch, "link", "set", port, "master", "br0"
        yield "ip", "-n", switch, "link", "set", port, "up"
        yield "ip", "-n", namespace, "addr", "add", f"{lab.management_address(host)}/16", "dev", MANAGEMENT
        yield "ip", "-n", namespace, "link", "set", MANAGEMENT, "up"


def _link_commands(link: Link) -> Iterator[Command]:
    (near, near_name), (far, far_name) = link.ends
    yield "ip", "link", "add", near_name, "netns", near, "type", "veth", "peer", "name", far_name, "netns", far
    for namespace, interface in link.ends:
        yield "ip", "-n", namespace, "link", "set", interface, "mtu", str(MTU_BYTES)
        if not interface.startswith("eth"):
            yield "ip", "-n", namespace, "link", "set", interface, "master", "br0"
        yield "ip", "-n", namespace, "link", "set", interface, "up"
    yield from rate_commands(link, link.bits_per_s)


def _address_commands(lab: Lab, host: Host) -> Iterator[Command]:
    """Addresses of a host; with several planes also its own address, and a route through all planes to each other host's own."""
    namespace = lab.namespace(host)
    for plane in range(lab.num_planes):
        yield "ip", "-n", namespace, "addr", "add", f"{lab.plane_address(host, plane)}/16", "dev", f"eth{plane}"
    if lab.num_planes == 1:
        return
    # A bridge without ports holds the address: gloo takes an interface by its name, and the first address of `lo` is another one.
    yield "ip", "-n", namespace, "link", "add", lab.interface, "type", "bridge"
    yield "ip", "-n", namespace, "addr", "add", f"{lab.address(host)}/32", "dev", lab.interface
    yield "ip", "-n", namespace, "link", "set", lab.interface, "up"
    for other in lab.hosts:
        if other != host:
            if lab.is_spread:
                yield from _spread_routes(lab, host, other)
                continue
            hops = [("nexthop", "via", lab.plane_address(other, plane), "dev", f"eth{plane}") for plane in range(lab.num_planes)]
            route = ("route", "add", f"{lab.address(other)}/32", "src", lab.address(host))
            yield "ip", "-n", namespace, *route, *(word for hop in hops for word in hop)


def _spread_routes(lab: Lab, host: Host, other: Host) -> Iterator[Command]:
    """Routes to another host's own address: through the plane of its number, and through the next one where that plane is lost."""
    for choice in range(lab.num_planes):
        plane = (other.number + choice) % lab.num_planes
        hop = ("via", lab.plane_address(other, plane), "dev", f"eth{plane}")
        route = ("route", "add", f"{lab.address(other)}/32", *hop, "src", lab.address(host), "metric", str(10 + choice))
        yield "ip", "-n", lab.namespace(host), *route


def rate_commands(link: Link, bits_per_s: float) -> Iterator[Command]:
    """Give both ends of a link a rate."""
    bucket = max(round(bits_per_s / 8 * BUCKET_S), LEAST_BUCKET_BYTES)
    for namespace, interface in link.ends:
        shape = ("tbf", "rate", f"{round(bits_per_s)}bit", "burst", f"{bucket}b", "limit", f"{QUEUE_BYTES}b")
        yield "tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *shape


def switch_commands(link: Link, *, is_up: bool) -> Iterator[Command]:
    """Cut a link, or mend it, at the side of the switch: the host then sees that the cable is dead."""
    namespace, interface = link.ends[1] if link.ends[0][1].startswith("eth") else link.ends[0]
    yield "ip", "-n", namespace, "link", "set", interface, "up" if is_up else "down"


def down_commands(namespaces: Iterable[str]) -> Iterator[Command]:
    """Remove namespaces, and with each its interfaces."""
    for namespace in namespaces:
        yield "ip", "netns", "del", namespace
