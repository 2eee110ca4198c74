"""What a software stack can run, as rules. One layout, or columns of layouts, can be checked against them.

A rule says what the stack lacks, where the layout asks for it, what to use instead, and the source of this information. All other code uses
these rules: the search leaves out what they forbid, an export refuses it with the text of the rule, and a listed plan names the stacks
whose rules allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.layout import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, Layout, Layouts
from meshwright.plan.features import Features
from meshwright.plan.numbering import Order, same_numbers

Mask = NDArray[np.bool_]
CHOICES = ("schedules", "cp_kinds", "orders")  # of which a stack has some
INTERLEAVED, ONE_CHUNK = SCHEDULES.index("interleaved"), SCHEDULES.index("1f1b")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be run: a model and a workload, and where it is known the cluster."""

    model: Model
    workload: Workload
    cluster: Cluster | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRule:
    """A job that a stack does not run, whatever the layout. `what` follows the stack's name; {asked...} in it is filled in."""

    what: str
    where: str
    fix: str
    source: str
    forbids: Callable[[Asked], bool]
    is_near: bool = False  # the stack runs it, but not as it is priced here


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Layouts that a stack does not run. `what` follows the stack's name; {asked...}, {layout...} and {value} in it are filled in."""

    what: str
    where: str
    fix: str
    source: str
    forbids: Callable[[Asked, Layouts], Mask]
    is_near: bool = False  # the stack runs it, but differently from the plan: it is not proposed, and an export says so
    matters: Callable[[Asked], bool] = lambda _: True  # whether the rule can forbid any layout of a job
    value: Callable[[Asked, Layouts], NDArray[np.int64]] | None = None  # the number that breaks the rule, for {value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A software stack: its name, its class of software, what it can run, and the switches that it sets by itself."""

    name: str  # as `--stack` accepts it
    title: str  # its name in sentences
    software: str = ""  # the class of software that it belongs to
    export: str = ""  # the kind of `--export` that writes files for it
    schedules: tuple[str, ...] = SCHEDULES
    cp_kinds: tuple[str, ...] = CP_KINDS
    orders: tuple[Order, ...] = ORDERS  # in which it numbers ranks without a rank file
    switches: Mapping[str, bool] = field(default_factory=dict)  # switches of a layout that cannot be changed in this stack
    overlaps_single_chunks: bool = True  # whether it overlaps pipeline messages also with one chunk per stage
    divides_experts: bool = False  # whether a search for it divides single experts over ranks
    captures_recomputed: bool = True  # whether fully recomputed layers can be in CUDA graphs
    job_rules: tuple[JobRule, ...] = ()
    rules: tuple[Rule, ...] = ()
    source: str = ""  # of its schedules, kinds of context parallelism and orders

    @property
    def is_any(self) -> bool:
        """Whether nothing is forbidden: no stack in particular."""
        return not self.export and not self.job_rules and not self.rules

    @property
    def has_all_orders(self) -> bool:
        """Whether ranks may be numbered in any order."""
        return len(self.orders) == len(ORDERS)

    def restricts(self, asked: Asked) -> bool:
        """Whether any layout of a job may be forbidden."""
        return any(True for _ in self._layout_rules(asked))

    def narrowed(self, features: Features) -> Features:
        """The features with only the choices that the stack has."""
        kept = {key: tuple(one for one in getattr(features, key) if one in getattr(self, key)) for key in CHOICES}
        changes: dict[str, Any] = {**{key: able for key, able in kept.items() if able}, **self.switches}
        changes["divides_experts"] = self.divides_experts
        return replace(features, **changes)

    def settled(self, rows: Layouts, fixed: Collection[str] = ()) -> Layouts:
        """The rows, with those switches set that follow from other choices. Switches that the user fixed are not changed."""
        changes = {}
        if not self.overlaps_single_chunks and "overlap_pp" not in fixed:
            changes["overlap_pp"] = np.where((rows.pp > 1) & (rows.vp == 1), 0, rows.overlap_pp)
        if not self.captures_recomputed and "cuda_graphs" not in fixed:
            changes["cuda_graphs"] = np.where(rows.recompute == RECOMPUTE.index("full"), 0, rows.cuda_graphs)
        return Layouts(**{f.name: getattr(rows, f.name) for f in fields(Layouts)} | changes) if changes else rows

    def allows(self, asked: Asked, rows: Layouts) -> Mask:
        """Whether the stack runs each layout as planned; one value per row."""
        allowed = np.ones(len(rows), dtype=bool)
        for rule in self._layout_rules(asked):
            allowed &= ~rule.forbids(asked, rows)
        return allowed

    def check_job(self, asked: Asked) -> None:
        """Raise an InputError where the stack runs no layout of the job as it is priced: why, and what would help."""
        for rule in self.job_rules:
            if rule.forbids(asked):
                raise self._error(rule, asked, None)

    def check(self, asked: Asked, layout: Layout) -> None:
        """Raise an InputError where the stack has no way to run a layout."""
        for rule in self._broken(asked, layout):
            if not rule.is_near:
                raise self._error(rule, asked, layout)

    def differences(self, asked: Asked, layout: Layout) -> list[str]:
        """What the stack does differently from the plan, in words."""
        return [self._words(rule, asked, layout) for rule in self._broken(asked, layout) if rule.is_near]

    def refusal(self, asked: Asked, layout: Layout) -> str:
        """Why the stack does not run a layout as planned, in words; empty where it does."""
        broken = sorted(self._broken(asked, layout), key=lambda rule: rule.is_near)
        return f"{self.title} {self._words(broken[0], asked, layout)}" if broken else ""

    def _broken(self, asked: Asked, layout: Layout) -> Iterator[JobRule | Rule]:
        rows = Layouts.of([layout])
        yield from (rule for rule in self.job_rules if rule.forbids(asked))
        yield from (rule for rule in self._layout_rules(asked) if rule.forbids(asked, rows)[0])

    def _layout_rules(self, asked: Asked) -> Iterator[Rule]:
        """The rules, after those that follow from the choices the stack has."""
        if set(self.schedules) != set(SCHEDULES):
            yield Rule(
                what="has no {schedule} schedule",
                where="layout.schedule",
                fix=f"plan with schedule={' or schedule='.join(reversed(self.schedules))}",
                source=self.source,
                forbids=lambda _, rows: (rows.pp > 1) & ~np.isin(schedule_of(rows), [SCHEDULES.index(name) for name in self.schedules]),
            )
        if set(self.cp_kinds) != set(CP_KINDS):
            yield Rule(
                what="has no context parallelism by {layout.cp_kind}",
                where="layout.cp_kind",
                fix=f"plan with cp_kind={' or cp_kind='.join(self.cp_kinds)}",
                source=self.source,
                forbids=lambda _, rows: (rows.cp > 1) & ~np.isin(rows.cp_kind, [CP_KINDS.index(name) for name in self.cp_kinds]),
            )
        if not self.has_all_orders:
            yield Rule(
                what=f"numbers ranks {' or '.join('-'.join(order) for order in self.orders)} (innermost first), the plan places them "
                "{order}: start it with the rank file of kind `rankfile-pp-last`, or the axes land on other tiers than planned",
                where="layout.order",
                fix=f"plan with order={' or order='.join('-'.join(order) for order in self.orders)}",
                source=self.source,
                forbids=lambda _, rows: ~self._numbers(rows),
                is_near=True,
            )
        yield from (rule for rule in self.rules if rule.matters(asked))

    def _numbers(self, rows: Layouts) -> Mask:
        """Where ranks are numbered as the plan places them."""
        own = np.isin(rows.order, [ORDERS.index(order) for order in self.orders])
        return own if own.all() else own | np.any([same_numbers(rows, order) for order in self.orders], axis=0)

    def _error(self, rule: JobRule | Rule, asked: Asked, layout: Layout | None) -> InputError:
        return InputError(f"{self.title} {self._words(rule, asked, layout)}", where=rule.where, fix=rule.fix)

    def _words(self, rule: JobRule | Rule, asked: Asked, layout: Layout | None) -> str:
        named: dict[str, Any] = {"asked": asked, "layout": layout}
        if layout:
            named |= {"order": "-".join(layout.order), "schedule": SCHEDULES[schedule_of(Layouts.of([layout]))[0]]}
        if layout and isinstance(rule, Rule) and rule.value:
            named["value"] = rule.value(asked, Layouts.of([layout]))[0]
        return rule.what.format(**named)


def schedule_of(rows: Layouts) -> NDArray[np.int64]:
    """The schedule of every row as an index; interleaving with one chunk per stage is 1F1B."""
    return np.where((rows.schedule == INTERLEAVED) & (rows.vp == 1), ONE_CHUNK, rows.schedule)


def micro_batches(asked: Asked, rows: Layouts) -> NDArray[np.int64]:
    """Micro-batches that each replica runs in a step, for every row."""
    return np.asarray(asked.workload.global_batch // (rows.dp * rows.micro_batch))


def sharing(rows: Layouts) -> Mask:
    """Where there are replicas to share a state."""
    return np.asarray(rows.dp * rows.cp > 1)


def recompute_rule(kinds: Collection[str], source: str) -> Rule:
    """The rule of a stack that has only some kinds of recomputing."""
    known = [RECOMPUTE.index(kind) for kind in kinds]
    return Rule(
        what="has no recompute={layout.recompute}",
        where="layout.recompute",
        fix=f"choose from {', '.join(kinds)}" if len(kinds) < 5 else "choose other parts of a layer",
        source=source,
        forbids=lambda _, rows: ~np.isin(rows.recompute, known),
    )
