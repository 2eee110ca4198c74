"""Two submissions of one benchmark, from their logs: time to quality as throughput times convergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from meshwright.audit.figures import percent
from meshwright.audit.score import LoggedSubmission, middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How much faster a submission is than another: times of the middle runs, and what they are made of."""

    time: float
    throughput: float  # samples a second, all of the clock counted
    convergence: float  # the other's samples over its own
    loop: float  # samples a second within the steps
    noise: float  # the larger spread between the runs of either
    has_factor: bool = False  # whether a score carries MLPerf's factor, which times as they ran do not

    @property
    def sentence(self) -> str:
        """What the numbers say."""
        if abs(self.loop - 1) < self.noise:
            inside = f"the difference in the loop is below the noise between runs ({percent(self.noise)})"
        else:
            inside = f"in the loop itself {self.loop:.3f} times"
        ran = " (times as they ran, without MLPerf's factor on the score)" if self.has_factor else ""
        return f"{self.time:.3f} times as fast{ran} = {self.throughput:.3f} throughput x {self.convergence:.3f} convergence; {inside}"


def compare(other: LoggedSubmission, base: LoggedSubmission) -> Comparison | None:
    """How `other` does against `base`; None where they are of two benchmarks, or a time, samples or steps are missing."""
    one, two = _middle_run(other), _middle_run(base)
    if not other.benchmark or other.benchmark != base.benchmark or one is None or two is None:
        return None
    (time_s, samples, loop_s), (base_s, base_samples, base_loop_s) = one, two
    return Comparison(
        time=base_s / time_s,
        throughput=(samples / time_s) / (base_samples / base_s),
        convergence=base_samples / samples,
        loop=base_loop_s / loop_s,
        noise=max(other.run_spread or 0.0, base.run_spread or 0.0),
        has_factor=other.score.scaling != 1 or base.score.scaling != 1,
    )


def _middle_run(one: LoggedSubmission) -> tuple[float, float, float] | None:
    """Seconds and samples, means without the fastest and the slowest, and seconds of a sample within the steps, the runs' median."""
    whole = [run for run in one.readable if run.is_whole and run.time_to_train_s and run.samples and run.log]
    if not whole:
        return None
    loops = [run.steps.median_s / run.log.global_batch_size for run in whole if run.steps and run.log]
    return mean(middle([run.time_to_train_s or 0.0 for run in whole])), mean(middle([run.samples or 0.0 for run in whole])), median(loops)


def comparisons(found: Sequence[LoggedSubmission]) -> list[tuple[LoggedSubmission, Comparison]]:
    """Every later submission against the first, where they compare."""
    pairs = [(one, compare(one, found[0])) for one in found[1:]]
    return [(one, comparison) for one, comparison in pairs if comparison is not None]
