"""The choices that a search may make, and the settings of a software stack."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.layout import CP_KINDS, ORDERS, SCHEDULES, USUAL_RECOMPUTE

FLAGS = ("overlap_tp", "overlap_pp", "overlap_dp", "cuda_graphs")  # switches that are taken as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The choices that a search may make, and the switches that it does not change."""

    max_tp: int = 0  # 0: as the model allows
    max_cp: int = 0
    max_pp: int = 0
    max_vp: int = 0
    max_micro_batch: int = 0
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[str, ...] = USUAL_RECOMPUTE
    schedules: tuple[str, ...] = SCHEDULES
    cp_kinds: tuple[str, ...] = CP_KINDS
    orders: tuple[tuple[str, ...], ...] = ORDERS
    uneven_split: bool = True  # whether the embedding and the loss may count as layers where the layers alone do not divide
    low_weights: bool = True  # whether weights of fp8 products are held in fp8 alone, without a copy in bf16 beside it
    divides_experts: bool = False  # whether each expert may be divided over ranks where ep takes no more of them
    overlap_tp: bool = False
    overlap_pp: bool = True
    overlap_dp: bool = True
    cuda_graphs: bool = True
