from __future__ import annotations

from meshwright.train.health.idle_experts import DEAD_AFTER, IdleExperts
from meshwright.train.parallel.balance import Routing


def routing(*loads: int, layer: int = 3) -> Routing:
    return Routing(layer=layer, loads=loads, num_dropped=0, auxiliary=1.0, z=0.0, entropy=1.0, bias_norm=0.0)


def test_an_expert_is_dead_once_after_so_many_steps_without_a_token() -> None:
    idle = IdleExperts()
    found = [dead for step in range(1, 2 * DEAD_AFTER) for dead in idle.update(step, [routing(5, 0, 1, 0), routing(1, 1, 2, 2, layer=4)])]
    (dead,) = found
    assert (dead.step, dead.layer, dead.experts) == (DEAD_AFTER, 3, (1, 3))
    assert "experts 1, 3 of layer 3 had no token" in str(dead)


def test_a_token_brings_an_expert_back() -> None:
    idle = IdleExperts()
    for step in range(1, DEAD_AFTER):
        assert idle.update(step, [routing(5, 0)]) == []
    assert idle.update(DEAD_AFTER, [routing(5, 1)]) == []
    assert idle.update(DEAD_AFTER + 1, [routing(5, 0)]) == []
