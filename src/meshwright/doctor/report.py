"""What there is to say about the nodes that were examined, as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.doctor.checks import FAIL, OK, WARN, Finding, failed_nodes
from meshwright.doctor.expected import Expected
from meshwright.doctor.reading import Gathered, Reading
from meshwright.record.bad_nodes import BadNode
from meshwright.say.document import Block, Document, Note, Pairs, Table, Text
from meshwright.units import seconds

SHOWN = 2  # different values of one check that a line shows
LEVELS = (FAIL, WARN, OK)


def doctor_document(
    gathered: Gathered, expected: Expected, findings: Sequence[Finding], bad: Sequence[BadNode], listed: str, notes: Sequence[str]
) -> Document:
    """The examination: every check, what is wrong, what to do, and which nodes are on the list. `listed`: the path of that list."""
    failed = failed_nodes(findings)
    all_notes = [*notes, *gathered.notes, *_still_listed(gathered, failed, bad, listed)]
    values = {
        "is_fit": not any(finding.level == FAIL for finding in findings),
        "expected_by": expected.words,
        "num_nodes": len(_nodes(gathered)),
        "num_ranks": gathered.num_ranks,
        "examined_s": gathered.took_s,
        "diagnoses": [_diagnosis(finding) for finding in findings],
        "node_readings": [_values(reading) for reading in gathered.readings],
        "rank_pairs": [{"ranks": [pair.first, pair.second], "exchanged_bytes_per_s": pair.bytes_per_s} for pair in gathered.pairs],
        "bad_nodes": [{"node": one.node, "date": one.date, "failed_checks": list(one.reasons)} for one in bad],
        "notes": all_notes,
    }
    title = f"{_count(len(_nodes(gathered)), 'node')}, {_count(gathered.num_ranks, 'rank')}, compared with {expected.words}"
    blocks = (*_blocks(gathered, findings, failed, title, listed), *map(Note, all_notes))
    return Document(kind="doctor", title=title, blocks=blocks, values=values)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _nodes(gathered: Gathered) -> list[str]:
    return list(dict.fromkeys([*(reading.node for reading in gathered.readings), *gathered.silent.values()]))


def _still_listed(gathered: Gathered, failed: dict[str, list[str]], bad: Sequence[BadNode], listed: str) -> Iterator[str]:
    """Nodes that pass and are on the list all the same."""
    for one in bad:
        if one.node in _nodes(gathered) and one.node not in failed:
            yield f"{one.node} passes now, and is on the list since {one.date}: delete its entry in {listed} to use it again"


def _blocks(gathered: Gathered, findings: Sequence[Finding], failed: dict[str, list[str]], title: str, listed: str) -> Iterator[Block]:
    yield Table(title, ("check", "result", "measured", "expected"), tuple(_check_rows(findings)))
    wrong = [finding for finding in findings if finding.level != OK]
    if wrong:
        rows = tuple((one.level, ", ".join(one.nodes) or "-", _ranks(one), one.what, one.measured, one.expected) for one in wrong)
        yield Table("what is wrong", ("result", "node", "rank", "what", "measured", "expected"), rows)
        yield Pairs("what to do", tuple(dict.fromkeys((one.check, one.fix, "") for one in wrong if one.fix)))
    yield Text(_verdict(gathered, findings, failed, listed))


def _ranks(finding: Finding) -> str:
    return ", ".join(map(str, finding.ranks)) or "-"


def _check_rows(findings: Sequence[Finding]) -> Iterator[tuple[str, ...]]:
    """One row a check: how it came out, and the values of those that came out so."""
    for check in dict.fromkeys(finding.check for finding in findings):
        some = [finding for finding in findings if finding.check == check]
        worst = next(level for level in LEVELS if any(finding.level == level for finding in some))
        such = [finding for finding in some if finding.level == worst]
        count = f" {len(such)} of {len(some)}" if worst != OK and len(some) > 1 else ""
        yield check, f"{worst}{count}", _few([finding.measured for finding in such]), _few([finding.expected for finding in such])


def _few(texts: Sequence[str]) -> str:
    different = [text for text in dict.fromkeys(texts) if text]
    more = f"; and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return "; ".join(different[:SHOWN]) + more


def _verdict(gathered: Gathered, findings: Sequence[Finding], failed: dict[str, list[str]], listed: str) -> str:
    took = f"examined in {seconds(gathered.took_s)}"
    if failed:
        return f"{len(failed)} of {_count(len(_nodes(gathered)), 'node')} failed: {', '.join(failed)}; written to {listed}; {took}"
    if any(finding.level == FAIL for finding in findings):
        return f"the examination failed, and no node could be named for it; {took}"
    warned = " with warnings" if any(finding.level == WARN for finding in findings) else ""
    return f"fit for a run{warned}; {took}"


def _diagnosis(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level,
        "nodes": list(finding.nodes),
        "ranks": list(finding.ranks),
        "what": finding.what,
        "measured_value": finding.measured,
        "expected_value": finding.expected,
        "fix": finding.fix,
    }


def _values(reading: Reading) -> dict[str, Any]:
    gpu, busy = reading.gpu, reading.busy_gpu
    return {
        "node": reading.node,
        "rank": reading.rank,
        "num_gpus": reading.num_gpus,
        "gpu_name": gpu.name if gpu else None,
        "gpu_total_bytes": gpu.memory_bytes if gpu else None,
        "gpu_used_bytes": gpu.used_bytes if gpu else None,
        "gpu_power_limit_w": gpu.power_limit_w if gpu else None,
        "gpu_memory_errors": gpu.ecc_uncorrected if gpu else None,
        "gpu_clock_hz": busy.clock_hz if busy else None,
        "gpu_max_clock_hz": busy.max_clock_hz if busy else None,
        "product_flops_per_s": reading.flops_per_s,
        "copied_bytes_per_s": reading.copy_bytes_per_s,
        "host_total_bytes": reading.memory_bytes,
        "host_available_bytes": reading.available_bytes,
        "host_memory_errors": reading.ecc_uncorrected,
        "disk_folder": reading.disk_folder,
        "disk_write_bytes_per_s": reading.disk_write_bytes_per_s,
        "disk_read_bytes_per_s": reading.disk_read_bytes_per_s,
        "disk_free_bytes": reading.disk_free_bytes,
        "clock_ahead_s": reading.clock_ahead_s,
        "clock_error_s": reading.clock_error_s,
        "versions": dict(reading.versions),
        "failed_readings": dict(reading.failed),
        "read_s": reading.took_s,
    }
