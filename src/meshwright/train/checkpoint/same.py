"""Checks that a resumed run has the same plan, corpus and code as before, by their digests."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from meshwright.errors import InputError, nearest


def check_same(
    saved: Mapping[str, str],
    now: Mapping[str, str],
    *,
    allowed: Collection[str] = (),
    flag: str = "--allow-changed",
    changes: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """The names that differ and are allowed to. Any other difference is an error that lists all of them with both values.

    `flag` is the option with which a user allows a change; the error quotes it. `changes` describes changes in words, if possible.
    """
    known = {*saved, *now}
    for name in allowed:
        if name not in known:
            raise InputError(f"{name!r} is not something that a checkpoint compares", where=flag, fix=nearest(name, known))
    differing = sorted(name for name in known if saved.get(name) != now.get(name))
    refused = [name for name in differing if name not in allowed]
    if refused:
        lines = [f"{name}: {saved.get(name, 'not recorded')} in the checkpoint, {now.get(name, 'not known')} now" for name in refused]
        raise InputError(
            _difference(refused, changes or {}),
            where="; ".join(lines),
            fix=f"restore what the checkpoint was made with, or allow the change with {' '.join(f'{flag} {name}' for name in refused)}",
        )
    return tuple(differing)


def _difference(refused: Collection[str], changes: Mapping[str, str]) -> str:
    """What has changed: in words if known, otherwise the names of what was compared."""
    unnamed = [name for name in refused if name not in changes]
    words = [changes[name] for name in refused if name in changes]
    if not words:
        return f"this run differs from its checkpoint in {', '.join(unnamed)}"
    return f"this run differs from its checkpoint: {'; '.join([*words, *unnamed])}"
