"""Mixtures of experts on one GPU: our trainer beside torchtitan's own, and the card's floor, in one call of eight minutes.

    python benchmarks/experts.py [--case NAME]... [--titan DIR | --no-peer] [--out FILE] [--steps N] [--warmup N] [--dry-run]

It is `benchmarks/h200.py speed --floor` with the cases of `h200_parts/cases.py: EXPERTS`: Qwen3-30B-A3B with the layers that fit and a
DeepSeek-style model of 16 billion parameters, each with 8,192 and with 4,096 tokens, bf16 states. The floor's products of experts have
the group sizes that our trainer had in its last step. Everything that `h200.py` says about its calls holds here too.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import h200
from h200_parts.cases import EXPERTS

LIMIT_S = "475"
STEPS, WARMUP = "12", "10"  # four cases with their floors share the call


def main(words: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if words is None else words)
    cases = [] if "--case" in given else [word for case in EXPERTS for word in ("--case", case.name)]
    return h200.main(["speed", "--floor", "--limit-s", LIMIT_S, "--steps", STEPS, "--warmup", WARMUP, *cases, *given])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no child outlives a call that is cut off
    sys.exit(main())
