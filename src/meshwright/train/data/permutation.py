"""Pseudo-random choices that are functions of numbers: no state, no list, the same on every machine.

`mixed` is the finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection of 64-bit words. `Permutation` is a Feistel network over
the smallest even number of bits that covers the size; values beyond the size are sent through again (cycle walking, Black and
Rogaway 2002), so that what comes out is a permutation of exactly `size` numbers, in constant memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]


def mixed(values: ArrayLike, key: int = 0) -> Words:
    """The 64-bit hash of every value under a key; distinct values have distinct hashes."""
    words = np.atleast_1d(np.asarray(values)).astype(np.uint64)
    words = words ^ np.uint64(key & (2**64 - 1))
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def key_of(*parts: object) -> int:
    """A 64-bit key from names and numbers."""
    return int.from_bytes(_digest(parts)[:8], "little")


def _digest(parts: tuple[object, ...]) -> bytes:
    return hashlib.blake2b(":".join(map(str, parts)).encode()).digest()


@dataclass(frozen=True, slots=True, eq=False)
class Permutation:
    """A permutation of 0 .. size-1. Do not change it without a new format version: the order of samples depends on it."""

    size: int
    keys: Words  # one for each of eight rounds: a BLAKE2b digest

    @classmethod
    def of(cls, size: int, *parts: object) -> Permutation:
        """The permutation of `size` numbers that belongs to these names and numbers."""
        return cls(size, np.frombuffer(_digest(parts), dtype="<u8").astype(np.uint64))

    def __call__(self, numbers: ArrayLike) -> NDArray[np.int64]:
        """The new place of each number."""
        words = np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
        assert words.size == 0 or int(words.max()) < self.size
        half_bits = max(1, ((self.size - 1).bit_length() + 1) // 2)
        words = self._rounds(words, half_bits)
        while np.any(outside := words >= self.size):  # at most three of four are outside, so a few rounds are enough
            words[outside] = self._rounds(words[outside], half_bits)
        return words.astype(np.int64)

    def _rounds(self, words: Words, half_bits: int) -> Words:
        shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
        left, right = words >> shift, words & mask
        for key in self.keys:
            left, right = right, left ^ (mixed(right, int(key)) & mask)
        return (left << shift) | right
