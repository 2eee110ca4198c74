"""The price of each part of a step from a hardware profile, as `predict.prices.Pricer` has it from data sheets and fitted constants."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.layers import Division, LayerTime
from meshwright.cost.measured import ends_time, exchange_s, placed_core_s, placed_exchange_s, tensor_exchange_s
from meshwright.cost.pipeline import ChunkTimes
from meshwright.errors import InputError
from meshwright.layout import RECOMPUTE, USUAL_RECOMPUTE, Layouts
from meshwright.predict import software as sw
from meshwright.predict.inputs import Inputs
from meshwright.predict.measured import STEP_SUM_BYTES, Measured, composed
from meshwright.predict.parameters import BUCKET_PARAMETERS, SMALLEST_BUCKETS
from meshwright.predict.prices import Column, Layer, Pricer
from meshwright.predict.shared_cores import share_of_even
from meshwright.predict.software import Constants
from meshwright.predict.stages import Split


class MeasuredPricer(Pricer):
    """The same from a hardware profile: kernels as they were timed, put together, and corrected by slices of the trainer's step."""

    waits = True  # whether exchanges wait for links between hosts

    def __init__(self, inputs: Inputs, layouts: Layouts, constants: Constants, measured: Measured) -> None:
        # What was timed is our own trainer.
        ours = replace(inputs, log_factor=0.0, own_exchange=1.0, sends_once=0.0, expert_hidden=0.0)
        super().__init__(ours, layouts, constants)
        known = (*USUAL_RECOMPUTE, "mlp")
        if not np.isin(layouts.recompute, [RECOMPUTE.index(kind) for kind in known]).all():
            raise InputError(
                f"a hardware profile was measured with our own trainer, which recomputes {', '.join(known)} alone",
                where="layout.recompute",
                fix="choose one of these, or price without the profile",
            )
        self.m = measured
        profile = measured.profile
        self.ranks = self.tp * self.cp * self.pp * self.dp
        cores = max(profile.num_cores, 1)
        # Times are those of so many processes at once: more of them on the same cores take as much longer.
        self.crowd = (
            np.maximum(self.ranks, cores) / max(profile.num_processes, cores) if profile.shares_cores else np.ones_like(self.tokens)
        )
        if profile.shares_cores:
            self.contention = np.ones_like(self.tokens)  # who sends takes the cores of who computes
        self.sequences = np.asarray(layouts.micro_batch, dtype=np.float64)
        self.slower = self._slower_tiers()
        self.together = np.minimum(self.q.tier_size, self.ranks)  # members of the group of all ranks

    def _slower_tiers(self) -> Column:
        """How much slower each tier is than when it was timed; 1 unless the cluster was changed since, as `--set` does."""
        timed = np.array([[tier.bytes_per_s] for tier in self.m.profile.tiers]).reshape(-1, 1)
        return np.asarray(timed / self._as_timed(np.asarray(self.q.tier_bytes_per_s)) * np.ones_like(self.tokens))

    def _as_timed(self, tiers: Column) -> Column:
        """Rows of tiers as many as were timed: inputs repeat the last tier, or leave a repeated one out."""
        rows = np.minimum(np.arange(len(self.m.profile.tiers)), len(tiers) - 1)
        return np.asarray(tiers[rows])

    def without_waits(self) -> Self:
        """The same prices if no exchange had to wait for a link between hosts: the cores' part of it."""
        bare = copy(self)
        bare.waits = False
        return bare

    def wait_s(self, kind: str, payload_bytes: Any, members: Column) -> Column:
        """Seconds by which an exchange between hosts is longer than in one machine, where such exchanges were timed; else 0.

        They were timed with all groups at work at once, so what groups share is in them. A tier that is slower now than it was then makes
        the wait longer in proportion. What the network costs the cores, beyond the same exchange in one machine, is no wait: it stays
        where waits are left out.
        """
        timed = self.m.rates.placed.get(kind, ())
        if not timed:
            return np.zeros_like(self.tokens)
        members = self._as_timed(members)
        alone_s = exchange_s(payload_bytes, members[-1], *self.m.rates.collectives[kind])
        working_s = np.maximum(placed_core_s(payload_bytes, members, timed) * self._ranks_per_core() - alone_s, 0.0)
        if not self.waits:
            return np.asarray(working_s)
        placed_s = placed_exchange_s(payload_bytes, members, timed)
        below = np.concatenate([np.ones_like(members[:1]), members[:-1]])
        outermost = np.max(np.where(members > below, np.arange(len(members))[:, None], 0), axis=0)
        slower: Column = np.take_along_axis(self.slower, outermost[None], axis=0)[0]
        return np.asarray(working_s + np.maximum(placed_s - alone_s - working_s, 0.0) * slower)

    def _ranks_per_core(self) -> float:
        """Processes that shared a core when exchanges were timed."""
        profile = self.m.profile
        return max(profile.num_processes / max(profile.num_cores, 1), 1.0) if profile.shares_cores else 1.0

    def layer(self) -> Layer:
        """Seconds of a layer for one micro-batch. What recomputing adds leaves out the last product, which nothing reads again; but a
        compiled layer, as on a GPU where no rank waits inside it and nothing is put off, is run whole."""
        way, fix = self._correction()
        seen = self._layer_time()
        ones = np.ones_like(self.tokens)
        matmul, attention, memory = ((both[0] * way, both[1] * way) for both in (seen.matmul, seen.attention, seen.memory))
        shared = seen.shared_s[0] * way, (seen.shared_s[1] + seen.shared_s[2]) * way
        gaps = fix / 3, fix * 2 / 3
        beside = [matmul[i] + attention[i] + memory[i] + gaps[i] for i in (0, 1)]
        layer = self._recompute(
            Layer(
                matmul=matmul,
                attention=attention,
                memory=memory,
                gaps=gaps,
                exposed_tp=self.exposed_tensor_s(matmul),
                exposed_cp=self.context_s(attention[0]),
                exposed_ep=self.exposed_expert_s((beside[0], beside[1]), shared),
                weight_s=seen.weight_s * way,
                parts_s=np.where(self.l.recomputes("mlp"), seen.into_s * way, 0.0),
                offload_s=0.0 * ones,
            )
        )
        stops_early = self.m.profile.shares_cores | (self.tp > 1) | self.l.is_zero_bubble | (self.m.frozen is not None)
        unread_s = np.where(self.l.recomputes_all & stops_early, seen.last_s * way, 0.0)
        return replace(layer, matmul=(layer.matmul[0], layer.matmul[1] - unread_s))

    def _correction(self) -> tuple[Column, Column]:
        """Factor and fixed seconds of a layer: where slices were timed that compute the same again, theirs."""
        factor, fixed_s = self.m.layer.factor * np.ones_like(self.tokens), self.m.layer.fixed_s * np.ones_like(self.tokens)
        for kind, correction in self.m.again.items():
            same = self.l.recompute == RECOMPUTE.index(kind)
            factor, fixed_s = np.where(same, correction.factor, factor), np.where(same, correction.fixed_s, fixed_s)
        return factor * self.crowd, fixed_s * self.crowd

    def _layer_time(self) -> LayerTime:
        """Seconds of a layer as its kernels were timed, with its adapters where its weights are frozen."""
        on = Division(tp=self.tp, ep=self.ep, etp=self.etp, imbalance=self.imbalance)
        return composed(self.m.kinds, self.m.frozen, self.sequences / self.cp, np.asarray(self.q.seq_len), self.m.rates, on)

    def head_s(self) -> tuple[Column, Column]:
        """Seconds of both ends of one micro-batch: embedding, output projection, loss."""
        trained = self.m.frozen is None
        forward_s, backward_s = ends_time(
            self.q.hidden, self.q.vocab, self.tokens, self.m.block_rows, self.tp, self.m.rates, trained=trained
        )
        factor, fixed_s = self.m.ends.factor * self.crowd, self.m.ends.fixed_s * self.crowd
        exchange_s_ = self.ends_tp_s() / 2
        return forward_s * factor + fixed_s / 3 + exchange_s_, backward_s * factor + fixed_s * 2 / 3 + exchange_s_

    def embedding_s(self) -> Column:
        """Nothing: a slice's ends are priced together, in the head."""
        return np.zeros_like(self.tokens)

    def optimizer_s(self, split: Split) -> Column:
        """Seconds of the trainer's update, as slices took it."""
        owned = self.owned_parameters(split)
        if self.m.slices:
            return np.asarray(self.m.slices[-1].update_s(owned) * self.crowd)
        return np.asarray((sw.OPTIMIZER_BYTES + sw.STEP_BYTES) * owned / self.m.profile.optimizer_bytes_per_s * self.crowd)

    def exchange_s(self, kind: str, payload_bytes: Any, num_ranks: Any) -> Column:
        """Seconds of a collective between processes of this machine, all groups at once."""
        return np.asarray(exchange_s(payload_bytes, num_ranks, *self.m.rates.collectives[kind]) * self.crowd)

    def tensor_s(self) -> Column:
        """Seconds of tensor traffic in one direction of a layer: where collectives were timed, by them and by slices that make them."""
        if "all-gather" not in self.m.rates.collectives:
            return super().tensor_s()
        payload = self.tokens * self.q.hidden * self.m.element_bytes
        members = self.placement.members["tp"]
        waits_s = 2 * (self.wait_s("all-gather", payload, members) + self.wait_s("reduce-scatter", payload, members))
        return np.asarray(tensor_exchange_s(payload, self.tp, self.m.rates) * self.m.tensor * self.crowd + waits_s)

    def hidden_tensor_share(self) -> Column:
        """Nothing where collectives were timed: the trainer waits for each of them."""
        return np.zeros_like(self.tokens) if "all-gather" in self.m.rates.collectives else super().hidden_tensor_share()

    def ends_tp_s(self) -> Column:
        """The embedding scatters and the head gathers, and back; the loss sums twice over its rows."""
        if "all-gather" not in self.m.rates.collectives:
            return np.zeros_like(self.tokens)
        small_s = self.exchange_s("all-reduce", 4.0 * self.tokens, self.tp)
        small_s = small_s + self.wait_s("all-reduce", 4.0 * self.tokens, self.placement.members["tp"])
        return np.asarray(self.tensor_s() + 2 * small_s)

    def message_s(self) -> Column:
        """Seconds of a message between stages."""
        if "message" not in self.m.rates.collectives:
            return super().message_s()
        payload = self.tokens * self.q.hidden / self.tp * self.m.element_bytes
        pair = np.where(self._meets("pp"), 2.0, 1.0)
        return np.asarray(self.exchange_s("message", payload, pair[-1]) + self.wait_s("message", payload, pair))

    def _meets(self, axis: str) -> NDArray[np.bool_]:
        """By tier: whether all neighbours on an axis are in one domain of it, [tiers, layouts]; the slowest of their messages counts."""
        members = self.placement.members[axis]
        below = np.concatenate([np.ones_like(members[:1]), members[:-1]])
        outermost = np.max(np.where(members > below, np.arange(len(members))[:, None], -1), axis=0)
        return np.asarray((np.arange(len(members))[:, None] >= outermost) & (outermost >= 0))

    def working_message_s(self, message_s: Column) -> Column:
        """The cores' part of a message."""
        return np.asarray(self.without_waits().message_s()) if self.m.rates.placed else message_s

    def sent_s(self, message_s: Column, chunk_s: Column) -> Column:
        """Seconds that a sender stands still: the cores' part of a message. The trainer waits for its sends at the end of the step only;
        who waits for the link is the receiver, in the schedule."""
        return super().sent_s(self.working_message_s(message_s), chunk_s)

    def data_parallel_s(self, split: Split, layer: Layer, *, contended: bool = True) -> Column:
        """The same, where waiting for a link is hidden for nothing and the cores' part of the traffic is not."""
        if not self.m.rates.placed:
            return super().data_parallel_s(split, layer, contended=contended)
        between, working = self.between(split), self.without_waits().between(split)
        whole_s = between.gathered_s + between.reduced_s
        share = (working.gathered_s + working.reduced_s) / np.where(whole_s > 0, whole_s, 1.0)
        shared, experts = self.parameters(split)
        return self._exposed_dp_s(split, layer, between, shared + experts, self.paid_share(contended=contended) * share)

    def _traffic_s(self, parameters: Column, members: Column) -> tuple[Column, Column]:
        if "reduce-scatter" not in self.m.rates.collectives:
            return super()._traffic_s(parameters, members)
        pieces = np.maximum(parameters / BUCKET_PARAMETERS, SMALLEST_BUCKETS)
        size, ranks = parameters * self.m.element_bytes / pieces, members[-1]
        both = [self.exchange_s(kind, size, ranks) + self.wait_s(kind, size, members) for kind in ("reduce-scatter", "all-gather")]
        return np.asarray(pieces * both[0]), np.asarray(pieces * both[1])

    def step_s(self) -> Column:
        """Seconds of the one sum over all ranks; what the host does else is in the slices' ends."""
        if "all-reduce" not in self.m.rates.collectives:
            return np.zeros_like(self.tokens)
        return self.exchange_s("all-reduce", STEP_SUM_BYTES, self.ranks) + self.wait_s("all-reduce", STEP_SUM_BYTES, self.together)

    def sender_share(self) -> Any:
        """All of it where cores are shared: who sends in the background takes the time of who computes. Else our own trainer launches
        messages beside its kernels, through queues of their own."""
        return 1.0 if self.m.profile.shares_cores else np.where((self.l.overlap_pp > 0) & self.hides, sw.PP_EXPOSED, 1.0)

    def core_share(self, times: ChunkTimes, message_s: Column) -> Any:
        """The time of a pipeline whose stages share cores over that of one whose stages always have the same part of them; and what
        sharing costs. Replicas run in step, so their stages work and wait at the same time."""
        if not self.m.profile.shares_cores:
            return 1.0
        fastest = np.maximum(self.ranks / self.m.profile.num_cores, 1.0)
        hop_s = np.where(self.l.overlap_pp > 0, message_s, 0.0)
        counts = np.broadcast_arrays(self.num_micro_batches, self.pp, self.vp, self.l.is_zero_bubble, hop_s, fastest, self.tokens)
        share = [
            share_of_even(int(m), int(pp), int(vp), times.row(i), float(hop), float(most), zero_bubble=bool(puts_off))
            for i, (m, pp, vp, puts_off, hop, most, _) in enumerate(zip(*counts, strict=True))
        ]
        return np.array(share) * np.where(self.pp > 1, 1.0 + (self.m.pipeline - 1.0) * self._core_part(), 1.0)

    def _core_part(self) -> Any:
        """Of a layer's seconds, the share in which cores work and no rank waits for a link."""
        if not self.m.rates.placed:
            return 1.0
        layer, working = self.layer(), self.without_waits().layer()
        return (working.total_s(0) + working.total_s(1)) / (layer.total_s(0) + layer.total_s(1))
