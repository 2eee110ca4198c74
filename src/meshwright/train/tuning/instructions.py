"""A small instruction set that is made here: short requests about Python, and their answers, by rule.

It is for the small model that `meshwright train` makes of Python's own sources: that model has seen code and no request yet. The same
number gives the same rows, and a request of one row is in no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from meshwright.files import write_whole
from meshwright.train.data.permutation import Permutation

NAME = "python-instructions"
NUM_ROWS = 1200
SEED = 0
MODULES = ("os", "re", "sys", "json", "math", "time", "random", "socket", "struct", "string", "types", "copy", "errno", "select", "codecs")
NAMES = ("value", "name", "path", "size", "text", "data", "line", "file", "item", "key", "result", "count", "index", "length", "start")
VERBS = ("get", "set", "read", "write", "find", "check", "open", "close", "make", "parse")

Pair = tuple[str, str]


def requests() -> Iterator[Pair]:
    """Every request with its answer, kind by kind."""
    for module in MODULES:
        for name in NAMES:
            yield f"Import {name} from {module}.", f"from {module} import {name}"
            yield f"Import {module} as {name}.", f"import {module} as {name}"
    for verb in VERBS:
        for name in NAMES:
            for other in NAMES:
                if other != name:
                    yield f"Write a function {verb}_{name} that returns {other}.", f"def {verb}_{name}():\n    return {other}"
                    yield f"Call {verb}_{name} with {other}.", f"{verb}_{name}({other})"
    for name in NAMES:
        for other in NAMES:
            if other != name:
                yield f"Set self.{name} to {other}.", f"self.{name} = {other}"
                yield f"Raise an error if {name} is not {other}.", f"if {name} != {other}:\n    raise ValueError({name})"


def rows(count: int = NUM_ROWS) -> list[dict[str, str]]:
    """So many requests, drawn from all of them, as rows of the format Alpaca."""
    every = list(requests())
    chosen = Permutation.of(len(every), NAME, SEED)(range(min(count, len(every)))).tolist()
    return [{"instruction": every[number][0], "output": every[number][1]} for number in chosen]


def write_instructions(folder: Path) -> Path:
    """The file of the instruction set in a folder, written if it is not there yet."""
    path = folder / f"{NAME}.jsonl"
    content = "".join(json.dumps(row) + "\n" for row in rows())
    if not path.is_file() or path.read_text(encoding="utf-8") != content:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return path
