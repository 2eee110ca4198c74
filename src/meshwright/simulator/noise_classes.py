"""Which noise a job has: runs are divided into classes by software, chips and number format, each with its own constants.

The class depends only on what a plan knows before the run. The constants are data, written by `meshwright noise --fit` into `noise.json`.
The constants of a class with few logs stay close to the common values, and a job of no class (chips without any log) has the common values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.describe.recipe import recipe
from meshwright.files import read_text
from meshwright.frozen import FrozenDict
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.predict.software import BLACKWELL, GENERATIONS
from meshwright.simulator.noise import MEANING, Noise

CONSTANTS_FILE = Path(__file__).parent / "noise.json"

FIRST_RELEASE = "v3.0"
EARLY_RELEASES = ("v3.1", "v4.0", "v4.1")  # their timers leave out the time between steps, as those of v3.0 do
COMMON = "common"
UNPIPELINED = "unpipelined"
# Why these classes: drift differs most between logs. It is small before v5.0 except in the first round; from v5.0 on it is twice as large
# on Blackwell in fp8 as on Hopper, and small again in fp4. Without a pipeline it is small on all chips.
CLASSES: Mapping[str, str] = {
    "first": "software of MLPerf v3.0",
    "early": "software of MLPerf v3.1 to v4.1",
    "hopper": "Hopper, software from v5.0 on",
    "blackwell": "Blackwell in fp8 or wider formats, software from v5.0 on",
    "blackwell-fp4": "Blackwell in fp4",
    UNPIPELINED: "jobs without a pipeline, whatever their software and chips",
    COMMON: "all others, and what classes with few logs are drawn to",
}


@dataclass(frozen=True, slots=True)
class FittedNoise:
    """The constants by class, `common` included, and the number of logs for each (for `unpipelined`: rows of measured runs)."""

    classes: Mapping[str, Noise]
    num_logs: Mapping[str, int]

    def of(self, name: str) -> Noise:
        """The constants of a class, or the common ones if the class has no log."""
        return self.classes.get(name, self.classes[COMMON])


def class_of_job(job: Job, layout: Layout) -> str:
    """The class of a job's runs with a layout."""
    if layout.pp == 1:
        return UNPIPELINED
    return class_named(job.cluster.accelerator.architecture, recipe(job.workload.precision).number_format, job.software.release)


def class_named(architecture: str, number_format: str, release: str) -> str:
    """The class of pipelined runs on chips of an architecture, with products in a number format, by a release of software."""
    if release == FIRST_RELEASE:
        return "first"
    if release in EARLY_RELEASES:
        return "early"
    generation = GENERATIONS.get(architecture, "")
    if generation == BLACKWELL:
        return "blackwell-fp4" if number_format == "fp4" else "blackwell"
    return "hopper" if generation else COMMON


def usual_noise(job: Job, layout: Layout) -> Noise:
    """The noise of runs of a job's class."""
    return fitted_noise().of(class_of_job(job, layout))


@cache
def fitted_noise(path: Path = CONSTANTS_FILE) -> FittedNoise:
    """The constants in the package, written by `meshwright noise --fit`."""
    return noise_of(json.loads(read_text(path)))


def noise_of(data: Mapping[str, Any]) -> FittedNoise:
    """The constants from their JSON form."""
    classes = {name: Noise(**{f.name: float(entry["constants"][f.name]) for f in fields(Noise)}) for name, entry in data["classes"].items()}
    return FittedNoise(FrozenDict(classes), FrozenDict({name: int(entry["num_logs"]) for name, entry in data["classes"].items()}))


def json_text(values: FittedNoise, fitted_on: str, date: str) -> str:
    """The constants as JSON text, as in the package."""
    entries = {
        name: {
            "meaning": CLASSES[name],
            "num_logs": values.num_logs[name],
            "constants": {f.name: getattr(noise, f.name) for f in fields(Noise)},
        }
        for name, noise in values.classes.items()
    }
    meaning = {name: {"unit": unit, "meaning": words} for name, (unit, words) in MEANING.items()}
    return json.dumps({"fitted_on": fitted_on, "date": date, "constants": meaning, "classes": entries}, indent=1) + "\n"
