"""Time of collectives on a network of tiers.

A group of ranks is described by how many of its members share one domain of each tier, from the inside out: (2, 128) is two in a rack
and 128 in all. Arrays have the tiers as their first axis and broadcast over the others, so one call prices all candidate layouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[np.float64]
Tiers = NDArray[np.float64]  # first axis: tiers


def _inside(members: Tiers) -> Tiers:
    """Members in a domain of the tier below each tier; one member below the innermost."""
    return np.concatenate([np.ones_like(members[:1]), members[:-1]])


def gather_s(payload_bytes: Quantity, members: Tiers, bytes_per_s: Tiers, hop_s: Quantity = 0.0) -> Any:
    """Seconds until each member holds the whole payload, of which it had a share: an all-gather, or backwards a reduce-scatter.

    Rings through all members, as many as there are members in a domain so that each uses its own port to the tier above: a port
    of tier k carries the payload but for one share, divided by the members below. The slowest tier that is crossed decides.
    `hop_s` is what each of the n - 1 rounds costs whatever its size.
    """
    size = members[-1]
    crossed = members > _inside(members)
    port_bytes = payload_bytes * (size - 1) / size / _inside(members)
    return np.max(np.where(crossed, port_bytes / bytes_per_s, 0.0), axis=0) + (size - 1) * hop_s


def all_to_all_s(sent_bytes: Quantity, members: Tiers, bytes_per_s: Tiers, hop_s: Quantity = 0.0) -> Any:
    """Seconds until every member has sent its `sent_bytes` in equal shares to all members.

    What goes to members beyond a domain of tier k - 1 but within one of tier k crosses tier k; the tiers work side by side.
    """
    share = (members - _inside(members)) / members[-1]
    return np.max(sent_bytes * share / bytes_per_s, axis=0) + np.where(members[-1] > 1, hop_s, 0.0)


def sent_once_s(token_bytes: Quantity, num_targets: Quantity, members: Tiers, bytes_per_s: Tiers) -> Any:
    """Seconds until every member has sent its tokens to the members that hold one or more of each token's `num_targets` targets.

    A token crosses tier k once for each domain below that holds a target, and is passed on inside. With random targets, G x (1 - (1 -
    1/G)^n) of G domains hold one of n.
    """
    size, inside = members[-1], _inside(members)
    domains = size / inside
    reached = domains * (1 - (1 - 1 / domains) ** num_targets)
    share = (members - inside) / size
    share[0] = (1 - 1 / size) * (members[0] > 1)  # what came in from elsewhere is passed on over the innermost tier
    return np.max(token_bytes * reached * share / bytes_per_s, axis=0)


def neighbour_s(message_bytes: Quantity, members: Tiers, bytes_per_s: Tiers, latency_s: Tiers) -> Any:
    """Seconds of a message to the next member, over the outermost tier that any such message crosses: a pipeline waits for its slowest."""
    crossed = members > _inside(members)
    return np.max(np.where(crossed, message_bytes / bytes_per_s + latency_s, 0.0), axis=0)
