"""How well anything could predict the robust deviation of a run's step times before the run: python benchmarks/noise_bound.py

The simulator's target is a factor of 1.5 for 85 % of logs (docs/simulator.md). This prints what the logs themselves allow: how far two
halves of one log differ, two logs of one machine and round, and two logs of one round, chip and precision; and what the best of many
Gaussian processes over everything that is known before a run reaches on logs that are left out in turn.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from meshwright.predict.software import RELEASES
from meshwright.simulator.logs import StepLog, step_logs

Floats = NDArray[np.float64]
FACTOR = float(np.log(1.5))
SCALES, FEATURES = (0.7, 1.0, 1.5, 2.5, 4.0), ((0, 4, 5), (0, 2, 4, 5), (0, 1, 3, 4, 5), (0, 1, 2, 3, 4, 5))
MACHINE, CLASS, NOISE = (0.0, 0.3, 1.0), (0.0, 0.5), (0.1, 0.3, 0.6)  # weights of a common machine, a common class, and of chance


def log_deviation(times_s: Floats) -> float:
    """ln of 1.4826 times the median deviation from the median, over the median."""
    middle = np.median(times_s)
    return float(np.log(1.4826 * np.median(np.abs(times_s - middle)) / middle))


def kind_of(log: StepLog) -> tuple[str, str, str]:
    """Round, chip and precision."""
    return log.run.round, log.run.cluster.accelerator.name, log.run.workload.precision


def known_before(log: StepLog) -> list[float]:
    """What is known of a run before it: round, accelerators, replicas, step time, generation, whether it multiplies in fp4."""
    run, chip = log.run, log.run.cluster.accelerator
    sizes = np.log([run.num_accelerators, run.layout.dp, run.measured_s])
    return [float(RELEASES.index(run.round)), *sizes, float("b" in chip.name), float("fp4" in run.workload.precision)]


def within(differences: list[float]) -> str:
    """How many of them are within the factor."""
    return f"{sum(one <= FACTOR for one in differences)} of {len(differences)}"


def left_out_errors(kernel: Floats, values: Floats) -> Floats:
    """Errors of a Gaussian process on each value, from the others."""
    inverse = np.linalg.inv(kernel + 4.0)  # the mean is unknown
    return np.abs((inverse @ values) / np.diag(inverse))


def main() -> None:
    logs = step_logs()
    values = np.array([log_deviation(log.times.steady_s) for log in logs])
    halves = [np.array_split(log.times.steady_s, 2) for log in logs]
    print("two halves of one log:", within([abs(log_deviation(one) - log_deviation(other)) for one, other in halves]))
    pairs = [(abs(values[i] - values[j]), logs[i], logs[j]) for i, j in combinations(range(len(logs)), 2)]
    same = [difference for difference, one, other in pairs if (one.machine, one.run.round) == (other.machine, other.run.round)]
    print("two logs of one machine and round:", within(same))
    print("two logs of one round, chip and precision:", within([gap for gap, one, other in pairs if kind_of(one) == kind_of(other)]))
    features = np.array([known_before(log) for log in logs])
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    machine = np.array([[float(one.machine == other.machine) for other in logs] for one in logs])
    kind = np.array([[float(kind_of(one) == kind_of(other)) for other in logs] for one in logs])
    reached = []
    for scale, used, by_machine, by_class, noise in product(SCALES, FEATURES, MACHINE, CLASS, NOISE):
        own = features[:, used]
        near = np.exp(-((own[:, None] - own[None]) ** 2).sum(axis=-1) / 2 / scale**2)
        errors = left_out_errors(near + by_machine * machine + by_class * kind + noise * np.eye(len(logs)), values)
        reached.append(int((errors <= FACTOR).sum()))
    print(f"Gaussian processes, {len(reached)} settings, each log left out: {min(reached)} to {max(reached)} of {len(logs)}")


if __name__ == "__main__":
    main()
