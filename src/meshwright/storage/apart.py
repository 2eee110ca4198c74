"""Runs a function in a process of its own, and returns what it returns.

The library for object storage has threads that a fork does not copy: a process that has used it hangs in its forked ranks. So the process
that forks ranks leaves every request to a process that ends.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from meshwright.errors import MeshwrightError
from meshwright.storage.remote import is_used

T = TypeVar("T")


def apart(body: Callable[[], T]) -> T:
    """What `body` returns, or the error that it raises, from a forked process; in this one, if it has used object storage already."""
    if is_used():
        return body()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(body, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        result, error = ours.recv()
    except EOFError:
        process.join()
        raise MeshwrightError(f"the process that used object storage ended with exit code {process.exitcode}") from None
    finally:
        ours.close()
    process.join()
    if error is not None:
        kind, what, where, fix = error
        raise kind(what, where=where, fix=fix)
    returned: T = result
    return returned


def _run(body: Callable[[], T], answer: Connection) -> None:
    try:
        answer.send((body(), None))
    except MeshwrightError as error:
        answer.send((None, (type(error), *error._marked)))
    except KeyboardInterrupt:
        os._exit(130)
    answer.close()
    os._exit(0)
