"""What rank 0 writes: the run folder, the MLPerf log, and the progress line on the terminal."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, TextIO

import numpy as np
import torch
from numpy.typing import NDArray

from meshwright.layout import Layout
from meshwright.ledger import Budget, amount
from meshwright.record.entries import StepRecord
from meshwright.record.writer import RunWriter
from meshwright.train.checkpoint import SaveReport
from meshwright.train.health.idle_experts import DeadExperts
from meshwright.train.health.slow_links import SlowLinks
from meshwright.train.health.spikes import Peak, Spike
from meshwright.train.health.stragglers import Stragglers
from meshwright.train.incidents import Incident
from meshwright.train.job import TrainingJob
from meshwright.train.membership import EVENT as MEMBERSHIP
from meshwright.train.parallel.balance import Routing
from meshwright.train.record import measured
from meshwright.train.record.ending import last_step
from meshwright.train.record.meter import Meter
from meshwright.train.record.mlperf import MlperfLog
from meshwright.train.record.rank_times import RankTimes
from meshwright.train.record.screen import Screen
from meshwright.train.record.tracer import TRACES, Overlap
from meshwright.train.sums import Graded, StepResult
from meshwright.units import per_cent, seconds

LINE_S = 0.25  # between two refreshes of the live line on a terminal
PLAIN_S = 10.0  # between two lines where there is no terminal
RECENT = 20  # steps over which the step time is averaged
MOST_LOADS = 1024  # loads of experts that are recorded per step, on average
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes per unit of the kernel's number for resident memory


def peak_memory_bytes() -> int:
    """The largest memory that this process has used so far: of its GPU in torch's allocator, otherwise of the host."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


class Counts(Protocol):
    """How far a run has come."""

    @property
    def step(self) -> int:
        """Steps done."""

    @property
    def samples(self) -> int:
        """Samples trained on."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step that is done; its times arrive later from all ranks."""

    step: int
    samples: int
    result: StepResult
    step_s: float
    rate: float  # learning rate
    exchange: measured.Exchange
    ended_s: float = math.nan  # by the monotonic clock
    routing: tuple[Routing, ...] = ()  # of layers with experts


class Logbook:
    """The record of a run on rank 0. On other ranks a call does nothing, except to wait where all ranks must."""

    def __init__(
        self,
        job: TrainingJob,
        writer: RunWriter | None,
        log: MlperfLog,
        out: TextIO | None = None,
        meter: Meter | None = None,
        links: SlowLinks | None = None,
    ) -> None:
        self.job, self.writer, self.log, self.meter = job, writer, log, meter
        self.live = LiveLine(job, out or progress_stream(job)) if writer else None
        self.recording_s = 0.0  # time to write the record of the last step
        self.copying_s = 0.0  # time to copy the state to a neighbour after the last step
        self._waiting: Step | None = None
        self._begun_step = 0
        self._after = job.after  # the incident whose cost is known with the first step
        self._begun_s = time.monotonic()
        self.stragglers = Stragglers(measured.groups_of(job.layout)) if writer else None
        self.slow_links = links
        self.rank_times = RankTimes(writer.folder) if writer else None
        self._share = np.ones(job.layout.num_ranks)  # micro-batches of each rank, divided by the mean

    def block_start(self, progress: Counts) -> None:
        """Training begins, or continues after an evaluation."""
        self.log.block_start(progress.samples, progress.step)

    def step(self, done: Step) -> None:
        """Add one step.

        `flush` writes its record once the times of all ranks are here. Until then it is set aside, so that it survives a kill.
        """
        self._waiting = done
        if self.writer is not None:
            self.writer.step_aside(self._record(done, {}))
            if self._after is not None:
                self._incident(done, self._after)
                self._after = None

    def flush(self) -> None:
        """Write the record of the waiting step, once its times are here. All ranks must call it."""
        done, self._waiting = self._waiting, None
        if done is None:
            return
        everyones = done.exchange.table()
        if self.writer is None or self.stragglers is None or self.live is None or self.rank_times is None:
            return
        parts_s = of_step(everyones, self.job.layout, done.step_s)
        self.writer.step(self._record(done, parts_s))
        self.log.step(done.step, done.samples, done.result.loss, done.step_s, done.rate)
        self.rank_times.update(done.step, measured.busy_s(everyones))
        for found in self.stragglers.update(done.step, measured.busy_s(everyones) / self._share):
            self.event("recovered_rank" if found.recovered else "slow_rank", done, rank=found.rank, message=str(found))
            self.live.say(str(found))
        self._links(done, everyones)
        self.live.step(done, done.result.loss, done.step_s, parts_s)

    def _links(self, done: Step, everyones: NDArray[np.float64]) -> None:
        """Record the links that are found to be slow, or normal again."""
        for found in self.slow_links.update(done.step, everyones, done.step_s, self._share) if self.slow_links else ():
            detail: dict[str, Any] = {"axis": found.axis, "ranks": list(found.ranks), "groups": [list(group) for group in found.groups]}
            detail |= {"hosts": list(found.hosts), "slowdown": found.slowdown, "compared_with": [list(group) for group in found.peers]}
            self.event("recovered_link" if found.recovered else "slow_link", done, **detail, message=str(found))
            self.say(str(found))

    def _record(self, done: Step, parts_s: dict[str, float]) -> StepRecord:
        tokens_per_s = self.job.plan.workload.tokens_per_step / done.step_s
        drawn_j = self.meter.between(done.ended_s - done.step_s, done.ended_s) if self.meter else None
        return StepRecord(
            step=done.step,
            samples=done.samples,
            loss=done.result.loss,
            grad_norm=done.result.grad_norm,
            step_s=done.step_s,
            parts_s=parts_s,
            extra={
                "tokens_per_s": tokens_per_s,
                "learning_rate": done.rate,
                "recording_s": self.recording_s,
                "peak_memory_bytes": peak_memory_bytes(),
                **({} if drawn_j is None else {"energy_j": drawn_j}),
                **of_routing(done.routing),
                **({"memory_copy_s": self.copying_s} if self.copying_s else {}),
            },
            expert_loads=loads_over_mean(done.routing) if keeps_loads(done.step, done.routing) else (),
        )

    def evaluation_start(self, progress: Counts) -> None:
        """Record that an evaluation begins."""
        self.log.block_stop(progress.samples, progress.step)
        self.log.evaluation_start(progress.samples, progress.step)

    def evaluation(self, progress: Counts, graded: Graded, took_s: float) -> None:
        """Record an evaluation."""
        loss = graded.mean_loss
        self.log.evaluation(progress.samples, progress.step, loss)
        more = {} if graded.accuracy is None else {"token_accuracy": graded.accuracy}
        self.event("evaluation", progress, loss=loss, num_tokens=graded.num_tokens, seconds=took_s, samples=progress.samples, **more)
        if self.live:
            self.live.evaluation(progress, loss, graded.accuracy)

    def overlap(self, progress: Counts, found: Overlap) -> None:
        """Record how much communication of the traced steps ran behind compute."""
        detail = found.detail()
        self.event("profile", progress, **detail)
        if self.live:
            self.live.say(f"profile: {detail['message']}; the traces are in {self.job.folder / TRACES}")

    def saves(self, progress: Counts, reports: Sequence[SaveReport]) -> None:
        """Record the checkpoints that were completed, or failed, since the last step."""
        for report in reports:
            if report.failure is not None:
                message = str(report.failure.what)
                self.event("checkpoint_failed", progress, saved_step=report.step, message=message, stall_s=report.stall_s)
                if self.live:
                    self.live.say(f"checkpoint of step {report.step} failed: {report.failure.what}; the last good one is kept")
            else:
                times = {"stall_s": report.stall_s, "write_s": report.write_s, "commit_s": report.commit_s}
                self.event("checkpoint", progress, saved_step=report.step, num_bytes=report.num_bytes, **times)
                self._keep_money()

    def spike(self, progress: Counts, found: Spike, parameter: str) -> None:
        """Record that the current step has gradients far larger than usual."""
        message = found.words(parameter)
        detail = {"norm": found.norm, "usual_norm": found.usual, "ranks": list(found.ranks), "parameter": parameter}
        self.event("gradient_spike", progress, **detail, message=message)
        if self.live:
            self.live.say(message)

    def replay(self, before: Counts, outcome: str, reason: str, ranks: Sequence[int], lost_s: float, message: str, **more: Any) -> None:
        """Record that a step was done again: `sound` the second time, the `same` again, or its samples `skipped`."""
        detail = {"outcome": outcome, "reason": reason, "ranks": list(ranks), "lost_s": lost_s, **self._usd(lost_s), **more}
        self.event("replay", before, **detail, message=message)
        self.say(message)

    def rebalanced(self, progress: Counts, deal: Sequence[int], ranks: Sequence[int]) -> None:
        """Record that replicas have different numbers of micro-batches from the next step on."""
        layout = self.job.layout
        shares = [deal[layout.coordinate(rank)["dp"]] for rank in range(layout.num_ranks)]
        self._share = np.array(shares) / (sum(deal) / len(deal))
        why = f"because rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'} slow"
        message = (
            f"micro-batches by replica from step {progress.step + 1} on: {', '.join(map(str, deal))}, {why if ranks else 'as planned'}"
        )
        self.event("rebalanced", progress, deal=list(deal), ranks=list(ranks), message=message)
        self.say(message)

    def say(self, text: str) -> None:
        """Print a line above the progress line."""
        if self.live:
            self.live.say(text)

    def _usd(self, cost_s: float) -> dict[str, str]:
        """What so many seconds of all ranks cost, if the price is known."""
        rate = self.job.rate
        return {} if rate is None else {"cost_usd": f"{float(rate.usd_per_gpu_hour) * self.job.layout.num_ranks * cost_s / 3600:.6f}"}

    def _incident(self, done: Step, incident: Incident) -> None:
        """Record that the run goes on after a fault, and what the fault cost until the end of this step."""
        num_lost, lost_s = incident.lost(self._begun_step)
        down_s = done.ended_s - done.step_s - incident.noticed_s
        action = incident.action or f"restarted from step {self._begun_step}"
        cost_s = incident.silent_s + down_s + lost_s
        words = f"{incident.message}; {action}, {num_lost} steps are done again, {seconds(cost_s)} lost"
        detail: dict[str, Any] = {
            "number": incident.number,
            "reason": incident.reason,
            "rank": incident.rank,
            "broke_at_step": incident.step,
        }
        detail |= {
            "action": action,
            "num_lost_steps": num_lost,
            "noticed_after_s": incident.silent_s,
            "down_s": down_s,
            "lost_s": lost_s,
            **self._usd(cost_s),
        }
        self.event("incident", done, **detail, message=words)
        if self.live:
            self.live.say(f"incident {incident.number}: {words}")

    def peak(self, progress: Counts, found: Peak) -> None:
        """Record that one gradient of the current step is far larger than usual."""
        self.event("gradient_peak", progress, rank=found.rank, size=found.size, usual_size=found.usual, message=str(found))
        if self.live:
            self.live.say(str(found))

    def dead_experts(self, progress: Counts, found: DeadExperts) -> None:
        """Record that experts have had no token for many steps."""
        self.event("dead_experts", progress, layer=found.layer, experts=list(found.experts), message=str(found))
        if self.live:
            self.live.say(str(found))

    def event(self, kind: str, progress: Counts, **detail: Any) -> None:
        """Record an event."""
        if self.writer is not None:
            self.writer.event(kind, progress.step, **detail)

    def begun(self, progress: Counts, starting_s: float, attention: str = "", *, num_groups: int, groups_s: float) -> None:
        """The run starts or continues: its price, how long the start took, and the package for attention if it is not torch.

        `num_groups`: process groups that this rank is in, each a communicator over NCCL; `groups_s`: how long making them took.
        """
        job = self.job
        detail: dict[str, Any] = {"layout": str(job.layout), "num_ranks": job.layout.num_ranks}
        detail |= {"num_groups": num_groups, "groups_s": groups_s}
        if attention:
            detail["attention"] = attention
        if job.rate is not None:
            detail["price"] = job.rate.to_json()
        if job.budget is not None:
            detail |= {"budget_usd": str(job.budget.usd), "spent_usd": str(job.budget.spent_usd)}
        self.event("resumed" if job.resume else "start", progress, **detail, starting_s=starting_s)
        self._begun_s, self._begun_step = time.monotonic() - starting_s, progress.step
        self._keep_money()

    def regrouped(self, progress: Counts, begun_s: float, membership: Mapping[str, Any]) -> None:
        """The run has other replicas from the next step on. `begun_s`: when its processes were first started, by the monotonic clock."""
        self.event(MEMBERSHIP, progress, **membership)
        self._begun_s, self._begun_step = begun_s, progress.step
        self._keep_money()

    def make_up(self, unwritten: Step | None, progress: Counts) -> None:
        """Write the record of the newest step that counts, if the rank that wrote the records was lost before it did."""
        if self.writer is None or unwritten is None or unwritten.step != progress.step:
            return
        if last_step(self.writer.folder) == progress.step - 1:
            self.writer.step(self._record(unwritten, {}))

    def leave(self, *, keeps_records: bool = False) -> Step | None:
        """Close the files without an end of the run: another generation of ranks goes on, perhaps with another rank 0.

        With `keeps_records` the writer stays open for that generation: to read all records again takes the longer the run is. The step is
        returned whose times have not arrived: its record may be missing.
        """
        self.log.close()
        if self.meter:
            self.meter.stop()
        if self.live:
            self.live.end()
        if self.writer is not None and not keeps_records:
            self.writer.close()
        return self._waiting

    def _keep_money(self) -> None:
        """Update the budget in the header of the run: at the start, with every checkpoint and at the end."""
        if self.writer is None or (self.job.budget is None and self.writer.header.money is None):
            return
        budget = self.job.budget
        with suppress(OSError):  # a full disk ends the run when its steps are written
            spent_usd = budget.cost_usd(time.monotonic() - self._begun_s) if budget else None
            self.writer.keep_money((str(budget.usd), f"{spent_usd:.6f}") if budget else None)

    def over_budget(self, progress: Counts, budget: Budget, spent_usd: Decimal) -> str:
        """Record that another step would exceed the budget, and return the message."""
        message = f"another step would pass the budget of {amount(budget.usd)}: {amount(spent_usd)} are spent at step {progress.step}"
        self.event("budget", progress, message=message, budget_usd=str(budget.usd), spent_usd=f"{spent_usd:.6f}")
        if self.live:
            self.live.say(message)
        return message

    def finish(self, progress: Counts, status: str) -> None:
        """Record the end of the run."""
        if status != "failed":
            self.log.run_stop(progress.samples, progress.step)
        self.log.close()
        if self.meter:
            self.meter.stop()
        if self.live:
            self.live.end()
        if self.writer is not None:
            if self._waiting is not None:  # after a failure: its times never arrived
                self.writer.step(self._record(self._waiting, {}))
            self._keep_money()
            self.writer.finish(status)


def of_step(everyones: NDArray[np.float64], layout: Layout, step_s: float) -> dict[str, float]:
    """The parts of the step: those of the busiest stage, scaled to the clock of rank 0 so that they add up to the step."""
    parts_s = measured.of_busiest_stage(everyones, layout)
    total_s = sum(parts_s.values())
    return {part: value * step_s / total_s for part, value in parts_s.items()} if total_s > 0 else parts_s


def of_routing(routing: Sequence[Routing]) -> dict[str, float]:
    """What the routers of a step did, in a few numbers: means over layers, the busiest expert of all, visits that were dropped."""
    if not routing:
        return {}
    count = len(routing)
    return {
        "expert_peak": max(one.peak for one in routing),
        "expert_peak_mean": sum(one.peak for one in routing) / count,
        "balance_loss": sum(one.auxiliary for one in routing) / count,
        "router_z": sum(one.z for one in routing) / count,
        "router_entropy": sum(one.entropy for one in routing) / count,
        "router_bias_norm": sum(one.bias_norm for one in routing) / count,
        "num_dropped_visits": sum(one.num_dropped for one in routing),
    }


def keeps_loads(step: int, routing: Sequence[Routing]) -> bool:
    """Whether the loads of all experts are recorded with this step: with every step, or with fewer where there are many experts."""
    return bool(routing) and (step - 1) % -(-sum(len(one.loads) for one in routing) // MOST_LOADS) == 0


def loads_over_mean(routing: Sequence[Routing]) -> tuple[tuple[float, ...], ...]:
    """The load of every expert over the mean, in hundredths, by layer."""
    return tuple(tuple(round(load * len(one.loads) / max(sum(one.loads), 1), 2) for load in one.loads) for one in routing)


def progress_stream(job: TrainingJob) -> TextIO:
    """Where progress is printed: standard output, unless that is reserved for the JSON result."""
    return sys.stderr if job.prints_json else sys.stdout


class LiveLine:
    """Step, loss, speed, exposed communication and remaining time, on one line that is updated."""

    def __init__(self, job: TrainingJob, out: TextIO) -> None:
        self.job, self.screen = job, Screen(out)
        self.is_terminal = out.isatty()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # step time, exposed time
        self._shown_s = 0.0
        self._width = 0
        self._last_evaluation = ""

    def step(self, progress: Counts, loss: float, step_s: float, parts_s: dict[str, float]) -> None:
        """Show the step, if the line is due."""
        exposed_s = sum(value for part, value in parts_s.items() if part.startswith("exposed"))
        self._recent.append((step_s, exposed_s))
        now_s = time.monotonic()
        if now_s - self._shown_s >= (LINE_S if self.is_terminal else PLAIN_S) or progress.step == 1:
            self._shown_s = now_s
            self._show(self._words(progress, loss))

    def evaluation(self, progress: Counts, loss: float, accuracy: float | None = None) -> None:
        """Show an evaluation."""
        correct = "" if accuracy is None else f", {per_cent(accuracy)} of tokens correct"
        target = self.job.training.target_loss
        self._last_evaluation = f"valid {loss:.3f}" + (f" (target {target:.2f})" if target else "")
        self.say(f"step {progress.step}: validation loss {loss:.4f}{correct}" + (f", target {target:.4f}" if target else ""))

    def say(self, text: str) -> None:
        """Print a line that stays, above the progress line."""
        self.screen.write(("\r" + " " * self._width + "\r" if self.is_terminal else "") + text + "\n")
        self._width = 0

    def end(self) -> None:
        """Keep the last line on the terminal."""
        if self.is_terminal and self._width:
            self.screen.write("\n")
        self.screen.end()

    def _words(self, progress: Counts, loss: float) -> str:
        times = np.array(self._recent)
        mean_s, exposed = times[:, 0].mean(), times[:, 1].sum() / times[:, 0].sum()
        rate = self.job.plan.workload.tokens_per_step / mean_s
        words = [
            f"step {progress.step}/{self._ends_after(progress.step)}",
            f"loss {loss:.3f}",
            f"{rate:,.0f} tokens/s",
            f"exposed {per_cent(exposed, '.0f')}",
            self._left(progress.step, mean_s),
        ]
        return "  ".join([*words, self._last_evaluation] if self._last_evaluation else words)

    def _left(self, step: int, step_s: float) -> str:
        """Time to the target, by the number of steps that the workload expects; time to the end, if the last step may come first."""
        last, expected = self.job.last_step, self.job.expected_steps
        if not self.job.training.target_loss:
            return f"{seconds((last - step) * step_s)} to the end"
        if step < expected < last:
            return f"about {seconds((expected - step) * step_s)} to the target"
        return f"at most {seconds((last - step) * step_s)} to the end"

    def _ends_after(self, step: int) -> int:
        """Steps that the run is expected to need; for a run that has passed them, the last step."""
        return self.job.expected_steps if step <= self.job.expected_steps else self.job.last_step

    def _show(self, text: str) -> None:
        if self.is_terminal:
            self.screen.write("\r" + text.ljust(self._width), is_live=True)
            self._width = max(len(text), self._width)  # an earlier, longer text may still be visible
        else:
            self.screen.write(text + "\n", is_live=True)


def machine_words(device_type: str, num_ranks: int, name: str) -> str:
    """The machine in words, for headers and logs."""
    return f"{num_ranks} ranks on {name}" if device_type == "cpu" else f"{num_ranks} x {name}"
