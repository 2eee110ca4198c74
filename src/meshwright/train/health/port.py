"""Connections at the port where the ranks meet: a flood of them from other processes is noticed and named.

Strangers cannot read or steer the run (`train.sealed`), but whoever opens many connections may use up the files of the process that hosts
the store, and new ranks then cannot join. Linux lists the connections of a network namespace in a file, which takes milliseconds to read.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"
LOOK_S = 5.0
OF_A_RANK, SOME = 16, 64  # connections: a rank has a handful of its own, and some come and go
MOST_NAMED = 3


def connections_at(port: int, tables: Iterable[Path] = TABLES) -> Counter[str]:
    """How many connections each address has to a port of this host; nothing where the system does not tell."""
    found: Counter[str] = Counter()
    for table in tables:
        with suppress(OSError, ValueError, IndexError):
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, state = line.split()[:4]
                if state == ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                    found[_address(remote.rpartition(":")[0])] += 1
    return found


def _address(digits: str) -> str:
    """An address as people write it; the system writes words of four bytes, each in the order of this machine."""
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address)


def flood(port: int, num_ranks: int, found: Counter[str], *, is_sealed: bool) -> str:
    """A sentence about more connections than the ranks make; "" if there are not. `is_sealed`: the ranks share a secret."""
    total, most = sum(found.values()), OF_A_RANK * num_ranks + SOME
    if total <= most:
        return ""
    named = ", ".join(f"{count} from {address}" for address, count in found.most_common(MOST_NAMED))
    harm = (
        "it can neither read nor change what the ranks agree on, and may keep ranks from joining"
        if is_sealed
        else "it can read and change what the ranks agree on, because they have no secret (--secret)"
    )
    return (
        f"{total} connections are open at port {port}, where {num_ranks} ranks meet and have at most {most} ({named}): another process "
        f"floods it; {harm}. Close the network to others"
    )


@contextmanager
def port_watched(port: int, num_ranks: int, notify: Callable[[str], None], *, is_sealed: bool, look_s: float = LOOK_S) -> Iterator[None]:
    """Look at a port again and again while the block runs; a flood is told once, and again after it was over."""
    ended = Event()

    def look() -> None:
        told = False
        while not ended.wait(look_s):
            sentence = flood(port, num_ranks, connections_at(port), is_sealed=is_sealed)
            if sentence and not told:
                notify(sentence)
            told = bool(sentence)

    thread = Thread(target=look, name="meshwright-port", daemon=True)
    if port:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if port:
            thread.join()
