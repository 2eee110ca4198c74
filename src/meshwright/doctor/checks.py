"""One function a check: the readings of all ranks, and what is expected of them -> findings, those that are well among them.

A limit is a share of what is described, and where several ranks report, of what is usual among them. Limits lie between what healthy
machines show and what a defect does to them; the comment beside each one says how far apart these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from meshwright.describe.this_machine import catalogue_name
from meshwright.doctor.expected import Expected, least_versions, version_of
from meshwright.doctor.nvidia import POWER_CAP, slowdown_words
from meshwright.doctor.pairs import slow_pairs, to_blame
from meshwright.doctor.reading import Gathered, Reading
from meshwright.errors import InputError
from meshwright.units import GIB, MEGA, gib, per_cent, seconds, si

OK, WARN, FAIL = "ok", "warn", "fail"
# The products of an 8B model ran at 0.69 and 0.70 of an H200's bf16 peak, under its power cap, on two cards (benchmarks/h200.md).
GPU_FLOPS_OF_DESCRIBED, GPU_FLOPS_OF_USUAL = 0.6, 0.85
# Copies ran at 4.25 to 4.28 TB/s there, 0.89 of the data sheet's 4.8 TB/s; half the bandwidth would be 0.44.
GPU_COPY_OF_DESCRIBED, GPU_COPY_OF_USUAL = 0.7, 0.85
# Ten tries on two busy virtual cores lay between 0.63 and 1 of the best product, and 0.88 and 1 of the best copy; the better of two counts.
CORES_FLOPS_OF_DESCRIBED, CORES_FLOPS_OF_USUAL = 0.5, 0.6
CORES_COPY_OF_DESCRIBED, CORES_COPY_OF_USUAL = 0.6, 0.7
CLOCK_SHARE = 0.9  # of the highest clock that a GPU under load has unless its power cap slows it
CLOCK_AT_CAP = 0.5  # and where it does: an H200 multiplies at 0.7 to 0.8
TAKEN_BYTES, TAKEN_SHARE = GIB, 0.02  # of a GPU that nobody uses: the driver keeps some 0.5 GiB for itself
GPU_MEMORY_SHARE = 0.9  # of what is described: data sheet and driver differ by up to 7 %
POWER_SHARE = 0.97  # of the described power cap, below which somebody has lowered it
AVAILABLE_SHARE = 0.2  # of host memory: the system, a data loader and a copy of the checkpoint need some
DISK_BYTES_PER_S = 50 * MEGA  # half of what the slowest healthy disks reach: one spinning disk, or a share over 1 Gbit/s
DISK_OF_USUAL = 0.3  # of what other nodes reach: disks are shared, and what else they do at the moment differs
AHEAD_WARN_S, AHEAD_FAIL_S = 0.1, 1.0  # NTP keeps nodes within milliseconds; from a second on, events of different nodes change places
LEAST_PEERS = 2  # readings that show what is usual
LOOSE = ("kernel",)  # versions that may differ, with a warning
READ_FIXES = {  # by the part of a reading that failed
    "the driver": "run nvidia-smi on the node; where it hangs or fails, restart the node",
    "GPU speed": "see whether torch can use the GPU: python -c 'import torch; print(torch.zeros(1).cuda())'",
    "disk": "write a file in the folder of --runs by hand, or put the run elsewhere",
    "clock": "see whether the node still reaches rank 0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check says about one rank or node."""

    check: str
    level: str  # ok, warn or fail
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    what: str
    measured: str = ""
    expected: str = ""
    fix: str = ""


Check = Callable[[Gathered, Expected], Iterator[Finding]]


def findings_of(gathered: Gathered, expected: Expected) -> list[Finding]:
    """What all checks say, in their order."""
    return [finding for check in CHECKS for finding in check(gathered, expected)]


def _about(reading: Reading, check: str, level: str, what: str, measured: str = "", expected: str = "", fix: str = "") -> Finding:
    return Finding(
        check=check, level=level, nodes=(reading.node,), ranks=(reading.rank,), what=what, measured=measured, expected=expected, fix=fix
    )


def answers(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """Ranks that gave no reading, and parts of a reading that failed."""
    for rank, node in gathered.silent.items():
        yield Finding(
            check="answer", level=FAIL, nodes=(node,), ranks=(rank,), what=f"rank {rank} gave no reading in time",
            fix="look at the node: its driver or its disk may hang",
        )  # fmt: skip
    for reading in gathered.readings:
        for what, why in reading.failed.items():
            fix = READ_FIXES.get(what, "read it by hand on the node to see why")
            yield _about(reading, "answer", FAIL, f"{what} could not be read: {why}", fix=fix)
        if not reading.failed:
            yield _about(reading, "answer", OK, "everything could be read", measured=seconds(reading.took_s))


def gpus(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """Whether a node has the GPUs that the plan needs."""
    if not expected.needs_gpus:
        return
    wanted = f"{expected.gpus_per_node} {expected.accelerator}"
    for reading in gathered.readings:
        has = f"{reading.num_gpus} GPUs" if reading.num_gpus != 1 else "1 GPU"
        name = reading.gpu.name if reading.gpu else ""
        if reading.num_gpus < expected.gpus_per_node and reading.is_first:
            fix = "leave this node out, or check that its driver is loaded and that CUDA_VISIBLE_DEVICES hides none of its GPUs"
            yield _about(reading, "GPUs", FAIL, f"{expected.words} needs {wanted} on a node, and this one has {has}", has, wanted, fix)
        elif name and not _is_kind(name, expected.accelerator):
            fix = "leave this node out, or plan for the GPUs that it has"
            yield _about(reading, "GPUs", FAIL, f"the GPU is another than {expected.words} is for", name, expected.accelerator, fix)
        elif reading.gpu:
            yield _about(reading, "GPUs", OK, "the GPU is of the described kind", name, wanted)


def _is_kind(name: str, accelerator: str) -> bool:
    try:
        return catalogue_name(name) == accelerator
    except InputError:  # of the user's own description: the names say nothing about each other
        return True


def gpu_clock(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """The clock of a GPU under load: neither capped by a setting, nor lowered by heat or its supply."""
    for reading in gathered.readings:
        busy = reading.busy_gpu
        if busy is None or busy.clock_hz is None or busy.max_clock_hz is None:
            continue
        measured = f"{busy.clock_hz / MEGA:.0f} MHz"
        at_cap = bool((busy.slowdowns or 0) & POWER_CAP)
        least = (CLOCK_AT_CAP if at_cap else CLOCK_SHARE) * busy.max_clock_hz
        limit = f"{least / MEGA:.0f} MHz of at most {busy.max_clock_hz / MEGA:.0f}{' at its power cap' if at_cap else ''}"
        if words := slowdown_words(busy.slowdowns or 0):
            fix = "check cooling and power supply of the node (nvidia-smi --query --display=PERFORMANCE)"
            yield _about(reading, "GPU clock", FAIL, f"the driver slows the GPU down: {words}", measured, limit, fix)
        elif busy.clock_hz < least:
            fix = "reset the clocks: nvidia-smi --reset-gpu-clocks, nvidia-smi --reset-applications-clocks"
            yield _about(reading, "GPU clock", FAIL, "the clock is capped below what the GPU can do", measured, limit, fix)
        else:
            yield _about(reading, "GPU clock", OK, "the clock under load is as it should be", measured, limit)


def gpu_power(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """The power limit that is set, against the described one."""
    for reading in gathered.readings:
        limit_w = reading.gpu.power_limit_w if reading.gpu else None
        if limit_w is None or not expected.power_cap_w:
            continue
        measured, wanted = f"{limit_w:.0f} W", f"{expected.power_cap_w:.0f} W"
        if limit_w < POWER_SHARE * expected.power_cap_w:
            fix = f"raise it where power and cooling allow: nvidia-smi --power-limit={expected.power_cap_w:.0f}"
            yield _about(reading, "power limit", WARN, "somebody has lowered the power limit", measured, wanted, fix)
        else:
            yield _about(reading, "power limit", OK, "the power limit is the described one", measured, wanted)


def memory_errors(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """Memory errors that could not be corrected, of the GPU and of the host."""
    for reading in gathered.readings:
        gpu = reading.gpu
        if gpu and (gpu.rows_failed or gpu.rows_pending):
            what = "a bad row of GPU memory could not be replaced" if gpu.rows_failed else "a bad row of GPU memory waits to be replaced"
            fix = "have the GPU replaced" if gpu.rows_failed else "reset the GPU: nvidia-smi --gpu-reset, or restart the node"
            yield _about(reading, "memory errors", FAIL, what, fix=fix)
        for where, count in (("the GPU", gpu.ecc_uncorrected if gpu else None), ("the host", reading.ecc_uncorrected)):
            if count is None:
                continue
            if count:
                fix = "restart the node, and have the part replaced if errors come again"
                what = f"{where} reports memory errors that could not be corrected"
                yield _about(reading, "memory errors", FAIL, what, f"{count} errors", "0 errors", fix)
            else:
                yield _about(reading, "memory errors", OK, f"{where} reports none", "0 errors", "0 errors")


def gpu_memory(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """Memory of a GPU: all that is described, and nobody else's."""
    for reading in gathered.readings:
        gpu = reading.gpu
        if gpu is None or gpu.memory_bytes is None or gpu.used_bytes is None:
            continue
        most = max(TAKEN_BYTES, TAKEN_SHARE * gpu.memory_bytes)
        wanted = f"at most {gib(most)} of {gib(gpu.memory_bytes)} in use"
        if expected.gpu_memory_bytes and gpu.memory_bytes < GPU_MEMORY_SHARE * expected.gpu_memory_bytes:
            fix = "check whether the GPU is divided (MIG) or is another model"
            what = "the GPU has less memory than described"
            yield _about(reading, "GPU memory", FAIL, what, gib(gpu.memory_bytes), gib(expected.gpu_memory_bytes), fix)
        elif gpu.used_bytes > most:
            users = f": {', '.join(reading.gpu_users)}" if reading.gpu_users else "; none is visible from here, so look from the host"
            fix = f"end the processes that hold it{users}"
            yield _about(reading, "GPU memory", FAIL, "memory of the GPU is already taken", gib(gpu.used_bytes), wanted, fix)
        else:
            yield _about(reading, "GPU memory", OK, "nobody uses the GPU", gib(gpu.used_bytes), wanted)


def host_memory(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """Memory of the host that a new program can have: some of it, and what the plan needs where it runs on cores."""
    for reading in gathered.readings:
        if reading.memory_bytes is None or reading.available_bytes is None:
            continue
        needed = max(AVAILABLE_SHARE * reading.memory_bytes, expected.host_bytes or 0.0)
        measured, wanted = gib(reading.available_bytes), f"at least {gib(needed)} of {gib(reading.memory_bytes)} available"
        if reading.available_bytes < needed:
            fix = "end the programs that hold it (ps aux --sort=-rss), or use a node with more"
            yield _about(reading, "host memory", FAIL, "memory of the host is already taken", measured, wanted, fix)
        else:
            yield _about(reading, "host memory", OK, "there is enough memory", measured, wanted)


def product_rate(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """The rate of a large matrix product."""
    shares = (GPU_FLOPS_OF_DESCRIBED, GPU_FLOPS_OF_USUAL, CORES_FLOPS_OF_DESCRIBED, CORES_FLOPS_OF_USUAL)
    fix = "look at clock, power limit, heat and other programs of the node"
    yield from _rates(gathered, "product", lambda one: one.flops_per_s, expected.flops_per_s, "FLOP/s", shares, fix, expected)


def copy_rate(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """The rate of a copy within memory."""
    shares = (GPU_COPY_OF_DESCRIBED, GPU_COPY_OF_USUAL, CORES_COPY_OF_DESCRIBED, CORES_COPY_OF_USUAL)
    fix = "look for other programs that use this memory; where there are none, have the node examined"
    yield from _rates(gathered, "copy", lambda one: one.copy_bytes_per_s, expected.bytes_per_s, "B/s", shares, fix, expected)


def _rates(
    gathered: Gathered,
    check: str,
    rate_of: Callable[[Reading], float | None],
    described: float | None,
    unit: str,
    shares: tuple[float, float, float, float],
    fix: str,
    expected: Expected,
) -> Iterator[Finding]:
    """Findings about a rate; `shares`: of the described and of the usual rate, on a GPU, then on cores."""
    rates = {reading.rank: rate for reading in gathered.readings if (rate := rate_of(reading)) is not None}
    for reading in gathered.readings:
        if reading.rank not in rates:
            continue
        is_gpu = reading.gpu is not None
        of_described, of_usual = shares[:2] if is_gpu else shares[2:]
        comparable = described if is_gpu == expected.needs_gpus else None  # a GPU is no measure for cores
        least, words = _limit(list(rates.values()), comparable, of_described, of_usual, expected.words)
        rate = rates[reading.rank]
        if least and rate < least:
            yield _about(reading, check, FAIL, f"the {check} is slower than {words}", si(rate, unit), f"at least {si(least, unit)}", fix)
        else:
            wanted = f"at least {si(least, unit)}" if least else "nothing to compare with"
            yield _about(reading, check, OK, f"the {check} is as fast as it should be", si(rate, unit), wanted)


def _limit(rates: Sequence[float], described: float | None, of_described: float, of_usual: float, by: str) -> tuple[float, str]:
    """The least rate that is well, and where it comes from: the higher of two limits."""
    usual = median(rates) if len(rates) >= LEAST_PEERS else 0.0
    limits = {
        f"{per_cent(of_described, '.0f')} of {si(described or 0.0, '')} in {by}": of_described * (described or 0.0),
        f"{per_cent(of_usual, '.0f')} of the median of {len(rates)} ranks": of_usual * usual,
    }
    words = max(limits, key=lambda key: limits[key])
    return limits[words], words


def disk(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """How fast a node writes and reads where the run's folder will be."""
    for way, rate_of in (("written", _writes), ("read", _reads)):
        rates = {reading.rank: rate for reading in gathered.readings if (rate := rate_of(reading)) is not None}
        usual = DISK_OF_USUAL * median(rates.values()) if len(rates) >= LEAST_PEERS else 0.0
        least = max(DISK_BYTES_PER_S, usual)
        for reading in (reading for reading in gathered.readings if reading.rank in rates):
            rate, wanted = rates[reading.rank], f"at least {si(least, 'B/s')}"
            measured = f"{si(rate, 'B/s')} {way}"
            if rate < least:
                by = "other nodes' disks are" if least == usual else "a healthy disk is"
                fix = f"look at what else uses the disk of {reading.disk_folder}, or put the run elsewhere (--runs)"
                yield _about(reading, "disk", FAIL, f"files are {way} more slowly than {by}", measured, wanted, fix)
            else:
                yield _about(reading, "disk", OK, f"files are {way} fast enough", measured, wanted)


def _writes(reading: Reading) -> float | None:
    return reading.disk_write_bytes_per_s


def _reads(reading: Reading) -> float | None:
    return reading.disk_read_bytes_per_s


def clocks(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """Clocks of the nodes, against the median of them: of two clocks that differ, rank 0's is taken to be right."""
    ahead = {reading.rank: reading.clock_ahead_s for reading in gathered.readings if reading.clock_ahead_s is not None}
    if len(ahead) < 2:
        return
    right_s = 0.0 if len(ahead) == 2 else median(ahead.values())
    against = "rank 0's" if len(ahead) == 2 else "the median of all nodes"
    for reading in gathered.readings:
        if reading.rank not in ahead:
            continue
        off_s, error_s = ahead[reading.rank] - right_s, reading.clock_error_s or 0.0
        surely_s = max(abs(off_s) - error_s, 0.0)
        level = FAIL if surely_s > AHEAD_FAIL_S else WARN if surely_s > AHEAD_WARN_S else OK
        measured = f"{seconds(abs(off_s))} {'ahead' if off_s >= 0 else 'behind'}, to within {seconds(error_s)}"
        what = "the clock agrees with the others" if level == OK else f"the clock differs from {against}"
        fix = "" if level == OK else "start a time service on the node (chronyd, ntpd), or check the server that it follows"
        yield _about(reading, "clock", level, what, measured, f"within {seconds(AHEAD_WARN_S)}", fix)


def pairs(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """Bandwidth between ranks, pair by pair, tier by tier."""
    nodes = {rank: gathered.node_of(rank) for rank in range(gathered.num_ranks)}
    if gathered.pairs_failed:
        stuck = to_blame(gathered.stuck, nodes)
        for node, some in stuck.items():
            ranks = tuple(sorted({rank for pair in some for rank in pair if nodes[rank] == node}))
            what = f"{_pair_words(some)} did not finish an exchange"
            yield Finding(check="pairs", level=FAIL, nodes=(node,), ranks=ranks, what=what, fix="look at the network of these nodes")
        if not stuck:
            what = f"pairs of ranks were not timed: {gathered.pairs_failed}"
            yield Finding(check="pairs", level=FAIL if not gathered.silent else WARN, nodes=(), ranks=(), what=what)
    slow = slow_pairs(gathered.pairs, expected.tiers, on_gpus=_on_gpus(gathered))
    rates = {(one.pair.first, one.pair.second): one for one in slow}
    for node, some in to_blame(list(rates), nodes).items():
        ranks = tuple(sorted({rank for pair in some for rank in pair if nodes[rank] == node}))
        worst = min((rates[pair] for pair in some), key=lambda one: one.pair.bytes_per_s)
        others = sorted({nodes[rank] for pair in some for rank in pair} - {node})
        at = f" with {', '.join(others)}" if others else ""
        yield Finding(
            check="pairs", level=FAIL, nodes=(node,), ranks=ranks,
            what=f"{_pair_words(some)} exchange more slowly{at} than {worst.words} (tier {worst.tier})",
            measured=si(worst.pair.bytes_per_s, "B/s"), expected=f"at least {si(worst.least_bytes_per_s, 'B/s')}",
            fix="look at the links between them (nvidia-smi nvlink --status, ibstat); of two nodes, either may be at fault",
        )  # fmt: skip
    if gathered.pairs and not slow:
        least, most = min(one.bytes_per_s for one in gathered.pairs), max(one.bytes_per_s for one in gathered.pairs)
        what = f"all {len(gathered.pairs)} timed pairs exchange as fast as others of their tier"
        yield Finding(check="pairs", level=OK, nodes=(), ranks=(), what=what, measured=f"{si(least, 'B/s')} to {si(most, 'B/s')}")


def _pair_words(some: Sequence[tuple[int, int]]) -> str:
    listed = [f"{first} and {second}" for first, second in some[:4]]
    more = f" and {len(some) - 4} more pairs" if len(some) > 4 else ""
    return f"ranks {'; '.join(listed)}{more}"


def _on_gpus(gathered: Gathered) -> bool:
    return any(reading.gpu for reading in gathered.readings)


def versions(gathered: Gathered, expected: Expected) -> Iterator[Finding]:
    """Versions of software: the same on all ranks, and none too old."""
    readings = gathered.readings
    for name in dict.fromkeys(name for reading in readings for name in reading.versions):
        found = {reading.rank: reading.versions.get(name, "none") for reading in readings}
        counts = Counter(found.values())
        usual = found[readings[0].rank] if counts[found[readings[0].rank]] == max(counts.values()) else counts.most_common(1)[0][0]
        for reading in readings:
            level = OK if found[reading.rank] == usual else WARN if name in LOOSE else FAIL
            if level == OK:
                continue
            same = sum(1 for version in found.values() if version == usual)
            what = f"{name} is another version than on {same} of {len(readings)} ranks"
            yield _about(reading, "versions", level, what, found[reading.rank], usual, f"install {name} {usual} on this node")
    for reading in readings:
        yield from _too_old(reading)


def _too_old(reading: Reading) -> Iterator[Finding]:
    """Versions of one rank that do not fit each other, or meshwright."""
    least, has, well = least_versions(), reading.versions, True
    for name, needed in least.items():
        if name in has and version_of(has[name]) < needed:
            wanted = f"{'.'.join(map(str, needed))} or later"
            yield _about(reading, "versions", FAIL, f"{name} is too old", has[name], wanted, f"install {name} {wanted}")
            well = False
    built = has.get("torch's nccl")
    if built and "nccl" in has and version_of(has["nccl"]) < version_of(built):
        what = "an older NCCL is loaded than torch was built with"
        fix = "check LD_LIBRARY_PATH and LD_PRELOAD: they bring another NCCL before torch's own"
        yield _about(reading, "versions", FAIL, what, has["nccl"], f"{built} or later", fix)
        well = False
    if well:
        yield _about(reading, "versions", OK, "versions are new enough", ", ".join(f"{name} {text}" for name, text in has.items()))


CHECKS: tuple[Check, ...] = (
    answers,
    gpus,
    versions,
    gpu_clock,
    gpu_power,
    memory_errors,
    gpu_memory,
    host_memory,
    product_rate,
    copy_rate,
    disk,
    clocks,
    pairs,
)


def failed_nodes(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """Nodes with a finding of level `fail`, and why."""
    found: dict[str, list[str]] = {}
    for finding in findings:
        for node in finding.nodes if finding.level == FAIL else ():
            beside = f": {finding.measured}, expected {finding.expected}" if finding.measured and finding.expected else ""
            found.setdefault(node, []).append(f"{finding.check}: {finding.what}{beside}")
    return found
