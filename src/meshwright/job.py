"""A training job: a model, a cluster, a workload and the software that runs it. All functions that price or plan use a `Job`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.arguments import typed
from meshwright.describe.cluster import Cluster
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.model import Model
from meshwright.describe.profile import Profile
from meshwright.describe.recipe import recipe
from meshwright.describe.whatif import changed
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, argument
from meshwright.layout import AXES, Layout, parse_layout
from meshwright.predict.legality import check_layout
from meshwright.predict.practice import MEGATRON, MESHWRIGHT, WHOLE_GRAPHS, Effects, ExpertPractice, expert_practice, further_effects
from meshwright.predict.profile_choice import with_profile
from meshwright.predict.recompute import least_recompute
from meshwright.predict.software import BLACKWELL, Software, generation_of, software

if TYPE_CHECKING:
    from meshwright.plan.features import Features
    from meshwright.plan.planned import Planned
    from meshwright.plan.sweep import Sweep
    from meshwright.predict.forecast import Forecast
    from meshwright.predict.outcome import Terms

MOST_SEQUENCES = 10**7  # a step; more is a typing error
MOST_ACCELERATORS = 10**8


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Job:
    """A model, a workload, the cluster to train on, and the software.

    Every argument is a catalogue name, the path of a file, or the value itself::

        job = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
    """

    model: Model
    cluster: Cluster
    workload: Workload
    software: Software  # with the hardware profile, if there is one
    described: Cluster = field(compare=False)  # the cluster before its number of accelerators was changed

    @typed
    def __init__(
        self,
        model: Model | str | Path,
        cluster: Cluster | str | Path,
        workload: Workload | str | Path,
        software: Software | str | Path = "",
        *,
        profile: Profile | str | Path = "",
        gpus: int | None = None,
        changes: Sequence[str] = (),
        described: Cluster | None = None,
    ) -> None:
        """Make a job from names, files or values.

        Args:
            model: What is trained: a catalogue name, a TOML file, a Hugging Face `config.json`, or a `Model`.
            cluster: The machine: a catalogue name, a TOML file, or a `Cluster`.
            workload: Batch, sequence length, precision and length of the run: a catalogue name, a TOML file, or a `Workload`.
            software: How fast the software is: a class (`megatron`, `fsdp`), a release (`v5.1`, `nemo-26.04`) or the file of a software
                profile. By default the newest MLPerf round for a benchmark of MLPerf, and otherwise `megatron`: Megatron-LM as its users
                run it.
            profile: A hardware profile that `meshwright measure` wrote; `none` prices without one. By default, `this-machine` uses its own
                profile if there is one.
            gpus: Number of accelerators in use, if not the whole cluster.
            changes: Values to change, such as `fabric.planes=7`, as in `changed`.
            described: The cluster before its size was changed; for internal use.
        """
        _check_gpus(gpus)
        machine = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
        trained = model if isinstance(model, Model) else load_model(model)
        wanted = workload if isinstance(workload, Workload) else load_workload(workload)
        used, wanted = changed(machine, wanted, changes)
        used = used if gpus is None else used.resized(gpus)  # last, since a change of the domains changes the number too
        _check_batch(wanted)
        _check_imbalance(trained, wanted)
        used.accelerator.peak_flops_per_s(wanted.precision)  # refuses a precision that the accelerator lacks
        object.__setattr__(self, "model", trained)
        object.__setattr__(self, "cluster", used)
        object.__setattr__(self, "workload", wanted)
        object.__setattr__(self, "software", _software(software, trained, used, wanted, profile))
        object.__setattr__(self, "described", described or machine)

    @property
    def name(self) -> str:
        """The job in a few words, for titles."""
        return f"{self.model.name} on {self.cluster.name}"

    @property
    def num_accelerators(self) -> int:
        """Accelerators in use."""
        return self.cluster.num_accelerators

    @property
    def generation(self) -> str:
        """Generation of the accelerator whose fitted constants apply."""
        return generation_of(self.cluster.accelerator)

    @property
    def log_factor(self) -> float:
        """Natural logarithm of the compute time with this software, divided by the compute time with the reference release."""
        return self.software.log_factor_of(self.workload.adapters is not None, self.generation)

    @property
    def effects(self) -> Effects:
        """How the compute of this job differs from the reference release on a fitted chip, because of its software, chip and precision."""
        found = replace(self.software.effects, log_factor=self.log_factor)
        for name in further_effects(self.software.release, self.cluster.accelerator.architecture, self.workload.precision):
            found = found + self.software.further.get(name, Effects())
        return found

    @typed
    def on(self, cluster: Cluster) -> Job:
        """The same job on a cluster of another size."""
        return replace(self, cluster=cluster)

    @typed
    def changed(self, *assignments: str) -> Job:
        """The same job with changed values, named by their keys: `job.changed("fabric.planes=7", "workload.global_batch=2048")`."""
        cluster, workload = changed(self.cluster, self.workload, assignments)
        return replace(self, cluster=cluster, workload=workload)

    def usual_layout(self) -> Layout:
        """The switches and the rank order that this kind of software uses by default, with all degrees 1.

        They follow the measured runs: tensor traffic is overlapped except with NVFP4, and CUDA graphs are used from Blackwell on (for
        experts from container 26.06 on). The ranks of experts must be close together, so pipeline stages are the outermost axis.
        """
        order = ("tp", "cp", "dp", "pp") if self.model.experts else AXES
        graphs = self.generation == BLACKWELL and (self.model.experts is None or self.practice.graphs == WHOLE_GRAPHS)
        return Layout(overlap_tp=recipe(self.workload.precision).overlaps_tensor_traffic, cuda_graphs=graphs, order=order)

    @property
    def practice(self) -> ExpertPractice:
        """How the software runs a mixture of experts in this job."""
        stack = self.software
        return stack.practice or expert_practice(stack.release, self.cluster.accelerator, self.workload.precision)

    @typed
    def layout(self, text: str) -> Layout:
        """The layout that a text such as `tp=4,pp=8` describes.

        Choices that the text does not name have their usual values. Without `dp`, as many replicas are used as the cluster can hold.
        If the text does not name `recompute` and the layout does not fit without it, the cheapest kind that fits is chosen.
        """
        items = {item.partition("=")[0].strip(): item for item in text.split(",")}
        found = self._stated_layout(text, items)
        if "recompute" in items or not self._is_legal(found):
            return found
        parts = not self.software.profile and self.software.kind != MESHWRIGHT
        return least_recompute(self.model, self.cluster, self.workload, found, parts=parts, is_own=self.software.is_own)

    def _is_legal(self, layout: Layout) -> bool:
        try:
            self.check(layout)
        except InputError:
            return False
        return True

    def _stated_layout(self, text: str, items: Mapping[str, str]) -> Layout:
        usual = self.usual_layout()
        if "dp" in items:
            return parse_layout(text, usual)
        inner = parse_layout(",".join(item for key, item in items.items() if key in ("tp", "cp", "pp"))).num_ranks
        if self.num_accelerators % inner:
            sizes = [argument("gpus", size) for size in self.cluster.nearest_sizes(self.num_accelerators, inner)]
            raise InputError(
                f"tp x cp x pp = {inner} does not divide the {self.num_accelerators} accelerators of {self.cluster.name}",
                where=f"layout {text}",
                fix=" or ".join([f"choose degrees that do{',' * bool(sizes)}", *sizes]),
            )
        return parse_layout(text, replace(usual, dp=self.num_accelerators // inner))

    @typed
    def check(self, layout: Layout) -> None:
        """Raise an InputError if the layout does not divide the model, the batch or the cluster; the error says which number would."""
        check_layout(self.model, self.cluster, self.workload, layout)

    @typed
    def forecast(self, layout: Layout | str, **options: Any) -> Forecast:
        """The forecast for one layout: step time, memory, and time, cost and energy of the whole run.

        Args:
            layout: A layout as text (`tp=4,pp=8,...`) or as a `Layout`.
            **options: `terms` (prices, region and cooling, as `Terms`), `ignore_memory` (do not refuse a layout that does not fit into
                memory) and `ideal` (leave out interruptions, restarts, checkpoints and spare nodes).
        """
        from meshwright.predict.forecast import forecast

        return forecast(self, self.layout(layout) if isinstance(layout, str) else layout, **options)

    @typed
    def search(
        self,
        *,
        keep: int = 5,
        layout: str = "",
        stack: str = "",
        features: Features | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Forecast]:
        """Forecasts of the best layouts of this job by step time, the best first.

        Args:
            keep: Number of layouts to return.
            layout: Choices that are fixed, as text: `tp=4,pp=8`.
            stack: The stack that must be able to run the layouts: `megatron`, `bridge`, `torchtitan`, `deepspeed`, `meshwright`, or `any`.
                By default one that can run the job. A named stack also decides the class of software, unless the job names its software
                or is a benchmark of MLPerf.
            features: The choices that the search may make; by default those of the stack.
            progress: Called with the number of layouts done and the number of all layouts.
        """
        from meshwright.plan.best import best_forecasts

        return best_forecasts(self, keep=keep, layout=layout, stack=stack, features=features, progress=progress)

    @typed
    def plan(
        self, *, keep: int = 5, layout: str = "", stack: str = "", gpus: int | None = None, terms: Terms | None = None, **aim: Any
    ) -> Planned:
        """The best plans with the reasons for them, as `meshwright plan` prints them.

        Args:
            keep: Number of plans to keep.
            layout: Choices that are fixed, as text: `tp=4,pp=8`.
            stack: The stack that must be able to run the plan, as in `search`.
            gpus: Number of accelerators to plan for, if not that of the job.
            terms: Prices, region and cooling.
            **aim: `objective` (`time`, `cost`, `energy`, `carbon` or `tokens-per-dollar`), `deadline_s` (seconds),
                `budget_usd` (US dollars), `max_gpus` (choose the number of accelerators up to this one), `pareto` (time against cost for
                several numbers of accelerators) and `ideal` (leave out interruptions, restarts, checkpoints and spare nodes).
        """
        from meshwright.plan.planned import plan_job

        return plan_job(self, keep=keep, layout=layout, stack=stack, gpus=gpus, terms=terms, **aim)

    @typed
    def sweep(
        self,
        gpus: Sequence[int],
        *,
        mode: str = "weak",
        base: int | None = None,
        layout: str = "",
        stack: str = "",
        terms: Terms | None = None,
    ) -> Sweep:
        """The best plan at each number of accelerators, as `meshwright sweep` prints it.

        Args:
            gpus: Numbers of accelerators.
            mode: `weak` (the batch grows with the number of accelerators) or `strong` (the batch stays the same).
            base: In weak scaling, the number of accelerators that has the batch of the workload.
            layout: Choices that are fixed, as text: `tp=4,pp=8`.
            stack: The stack that must be able to run the plans, as in `search`.
            terms: Prices, region and cooling.
        """
        from meshwright.plan.sweep import sweep_job

        return sweep_job(self, gpus, mode=mode, base=base, layout=layout, stack=stack, terms=terms)

    def _repr_html_(self) -> str:
        from meshwright.say.html import fragment
        from meshwright.say.job import job_document

        return fragment(job_document(self))

    def __repr__(self) -> str:
        names = ", ".join(repr(noun.name) for noun in (self.model, self.cluster, self.workload))
        return f"Job({names}, software={self.software.name!r}, gpus={self.num_accelerators})"


def _software(given: Software | str | Path, model: Model, cluster: Cluster, workload: Workload, profile: Profile | str | Path) -> Software:
    """The software by name, with the chosen hardware profile. A `Software` value is returned unchanged."""
    if isinstance(given, Software):
        return _on(cluster, with_profile(given, model, cluster, workload, profile) if profile else given)
    found = software(str(given)) if str(given) else replace(_usual_software(cluster, workload), is_default=True)
    return _on(cluster, with_profile(found, model, cluster, workload, profile))


def _on(cluster: Cluster, stack: Software) -> Software:
    """The software on a machine. The speed of processors is measured, so there the effects that were fitted on GPUs are not used."""
    if cluster.accelerator.architecture != "cpu" or stack.profile or stack.effects == Effects():
        return stack
    return replace(stack, log_factor=0.0, finetuning={}, effects=Effects(), further={}, note="")


def _usual_software(cluster: Cluster, workload: Workload) -> Software:
    """The default software: that of the newest round for MLPerf benchmarks, our own trainer on processors, and Megatron-LM otherwise."""
    if cluster.accelerator.architecture == "cpu":
        return software(MESHWRIGHT)
    if workload.is_mlperf:
        return software()
    note = "the software is not named: taken as Megatron-LM as its users run it, with an interval for any software; name yours"
    return replace(software(MEGATRON), known=False, note=note)


def _check_gpus(gpus: int | None) -> None:
    if gpus is not None and not 1 <= gpus <= MOST_ACCELERATORS:
        raise InputError(
            f"{argument('gpus')} is {gpus!r}, not a whole number from 1 to {MOST_ACCELERATORS:,}",
            where=argument("gpus"),
            fix="give a number such as 512",
        )


def _check_imbalance(model: Model, workload: Workload) -> None:
    if workload.expert_imbalance != 1 and model.experts is None:
        raise InputError(
            f"{model.name} has no experts whose tokens could be {workload.expert_imbalance:g} times the mean on a rank",
            where=f"workload {workload.name}: expert_imbalance",
            fix="leave it at 1, or choose a mixture of experts",
        )


def _check_batch(workload: Workload) -> None:
    if workload.global_batch > MOST_SEQUENCES:
        raise InputError(
            f"a batch of {workload.global_batch:,} sequences is more than the {MOST_SEQUENCES:,} that a step may have",
            where=f"workload {workload.name}: global_batch",
            fix="give the sequences of one step, not of the run",
        )
