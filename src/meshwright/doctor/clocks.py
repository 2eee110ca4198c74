"""How far a node's clock is ahead of rank 0's, as NTP finds it: rank 0 tells its time, and it was half way between question and answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

QUESTIONS = 8  # the one that was answered fastest counts

Clock = Callable[[], float]


class Store(Protocol):
    """What is used of torch's key-value store."""

    def set(self, key: str, value: str, /) -> None:
        """Keep a value."""

    def get(self, key: str, /) -> bytes:
        """A value that is there."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Return when all keys are there; RuntimeError after the time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Seconds that a clock is ahead of rank 0's, and how far that may be off."""

    ahead_s: float
    error_s: float


def value_of(store: Store, key: str, until_s: float) -> str:
    """A value that another rank sets; TimeoutError where it is not there by `until_s` of the monotonic clock."""
    try:
        store.wait([key], timedelta(seconds=max(until_s - time.monotonic(), 0.01)))
        return store.get(key).decode()
    except RuntimeError as error:  # torch's stores raise no other, for a lost connection as for a time limit
        raise TimeoutError(f"{key} did not come in time") from error


def ask_time(store: Store, rank: int, until_s: float, now: Clock = time.time) -> Ahead:
    """How far this rank's clock is ahead."""
    answers = []
    for number in range(QUESTIONS):
        asked_s = now()
        store.set(f"doctor/ask/{rank}/{number}", "?")
        told_s = float(value_of(store, f"doctor/tell/{rank}/{number}", until_s))
        heard_s = now()
        answers.append(Ahead(ahead_s=(asked_s + heard_s) / 2 - told_s, error_s=(heard_s - asked_s) / 2))
    return min(answers, key=lambda answer: answer.error_s)


def tell_time(store: Store, ranks: Sequence[int], until_s: float, now: Clock = time.time) -> None:
    """Answer all questions of these ranks, one rank after the other; one that does not ask is left out when the time is up."""
    for rank in ranks:
        with suppress(TimeoutError):
            for number in range(QUESTIONS):
                value_of(store, f"doctor/ask/{rank}/{number}", until_s)
                store.set(f"doctor/tell/{rank}/{number}", repr(now()))
