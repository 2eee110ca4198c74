"""One writer at a time in object storage, which has no locks that end with a process: a lease that its owner renews.

The newest of the objects `.lease-00000001.json`, `.lease-00000002.json`, ... names the writer. Each is made only if there is none, so two
processes never get the same one. The owner writes a new count into its own object every few seconds. Another process may take the next
number when the owner has released its object, when its process on this machine has ended, or when the count has not changed for
`LEASE_S`, by the clock of the process that watches: clocks of machines are never compared. An owner that could not renew for so long may
find that another has taken over; then `is_lost` says so, and it must stop writing.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from meshwright.errors import InputError
from meshwright.storage.remote import Missing, Remote

NAME = re.compile(r"\.lease-(\d{8})\.json")
BEAT_S = 5.0  # between two renewals
LEASE_S = 30.0  # without a renewal: then the owner counts as gone
LOOK_S = 1.0


class Held(InputError):
    """Another process writes here at this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who writes, and a count that grows as long as it does."""

    id: str
    host: str
    machine: str  # what tells machines, and containers on one machine, apart
    process: int
    beat: int = 0
    is_released: bool = False

    @classmethod
    def this_process(cls) -> Self:
        """This process."""
        return cls(id=uuid.uuid4().hex, host=socket.gethostname(), machine=_machine(), process=os.getpid())

    @property
    def has_ended(self) -> bool:
        """Whether the owner is known to have ended: it released its lease, or ran on this machine and runs no more."""
        return self.is_released or (self.machine == _machine() != "" and not Path(f"/proc/{self.process}").exists())


def _machine() -> str:
    """The start of this machine and the process numbers that this process sees; empty where that is not known."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    return ""


class Lease:
    """The right to write below `place`, until `release`, or until this process does not renew it."""

    def __init__(self, place: Remote, number: int, owner: Owner) -> None:
        self.place, self.owner, self.is_lost = place, owner, False
        self._number = number

    @classmethod
    def take(cls, place: Remote, *, wait: Callable[[float], None] = time.sleep, told: Callable[[str], None] = print) -> Self:
        """Take the lease. If the last owner may still run, watch it for `LEASE_S`; an error if it does. `told` gets a note first."""
        mine = Owner.this_process()
        while True:
            number, last = _newest(place)
            if last is not None and not last.has_ended:
                told(f"meshwright: {last.host} was writing {place}; waiting {LEASE_S:g} s to see whether it still does")
                _check_silent(place, number, last, wait)
            lease = cls(place, number + 1, mine)
            if lease._object.create(_text(mine)):
                lease._remove_older()
                return lease

    @property
    def _object(self) -> Remote:
        return self.place / f".lease-{self._number:08d}.json"

    def renew(self) -> None:
        """Show that this process still writes, and find out whether another has taken over."""
        self.owner = replace(self.owner, beat=self.owner.beat + 1)
        self._object.write(_text(self.owner))
        self.is_lost = self.is_lost or _newest_number(self.place) > self._number

    def check(self) -> None:
        """Raise an error if another process has taken over."""
        self.is_lost = self.is_lost or _newest_number(self.place) > self._number
        if self.is_lost:
            raise Held(
                "another process has taken over this run, because this one could not renew its lease",
                where=str(self.place),
                fix="stop one of the two; the other continues from the newest checkpoint",
            )

    def release(self) -> None:
        """Let others write at once."""
        if not self.is_lost:
            self._object.write(_text(replace(self.owner, is_released=True)))

    def _remove_older(self) -> None:
        for name in self.place.files():
            found = NAME.fullmatch(name)
            if found and int(found[1]) < self._number:
                (self.place / name).remove()


def _check_silent(place: Remote, number: int, last: Owner, wait: Callable[[float], None]) -> None:
    """Return once the owner has not renewed for `LEASE_S`; an error if it has."""
    for _ in range(int(LEASE_S / LOOK_S)):
        wait(LOOK_S)
        now_number, now = _newest(place)
        if now is None or now.has_ended:
            return
        if (now_number, now.id, now.beat) != (number, last.id, last.beat):
            raise Held(
                f"this run is being written by process {now.process} on {now.host}",
                where=str(place),
                fix="wait until it has ended, or stop it: `kill` with that number lets it save and end",
            )


def release_ended(place: Remote, owner_id: str) -> None:
    """Release the lease of a process that has ended, if it is still the newest."""
    number, owner = _newest(place)
    if owner is not None and owner.id == owner_id and not owner.is_released:
        Lease(place, number, owner).release()


def _newest_number(place: Remote) -> int:
    return max((int(found[1]) for name in place.files() if (found := NAME.fullmatch(name))), default=0)


def _newest(place: Remote) -> tuple[int, Owner | None]:
    """The newest lease and its owner; 0 and None if there is none."""
    number = _newest_number(place)
    if not number:
        return 0, None
    with suppress(Missing):
        return number, _owner((place / f".lease-{number:08d}.json").read())
    return number, None


def _owner(text: bytes) -> Owner | None:
    """The owner in a lease; None if it is none of ours."""
    with suppress(ValueError, TypeError):
        content: dict[str, Any] = json.loads(text)
        return Owner(**content)
    return None


def _text(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode()
