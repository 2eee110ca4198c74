"""Conversations: the same loss and gradients packed or not, in micro-batches of any size, and on any ranks; a mean over all tokens."""

from __future__ import annotations

import pytest
from on_conversations import differing, gradients_of, sequences
from parity import joined
from ranks import Pools

from meshwright.describe.workload import Adapters
from meshwright.layout import Layout, parse_layout

LAYOUTS = {
    False: ["mbs=8", "mbs=4", "mbs=2", "mbs=1", "dp=2,mbs=2", "tp=2,pp=2,mbs=2"],
    True: ["mbs=1", "mbs=2", "mbs=4", "cp=2,mbs=2", "tp=2,dp=2,zero=2,mbs=1"],
}


@pytest.mark.parametrize("adapters", [None, Adapters(rank=2, targets=("q", "v", "down"))], ids=["all weights", "adapters"])
def test_packing_accumulation_and_layouts_give_the_same_gradients(adapters: Adapters | None, pools: Pools) -> None:
    assert len(sequences(True)) == 4
    wanted = joined(pools.of(1).run(gradients_of, False, Layout(micro_batch=8), adapters))
    for pack, texts in LAYOUTS.items():
        for text in texts if adapters is None else texts[-2:]:
            layout = parse_layout(text)
            found = joined(pools.of(layout.num_ranks).run(gradients_of, pack, layout, adapters))
            assert differing(found, wanted) == [], (pack, text)
