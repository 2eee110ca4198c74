from __future__ import annotations

from pathlib import Path

import pytest
from made_logs import lines, write

from meshwright.audit import compliance
from meshwright.audit.compliance import FAILED, NOT_RUN, PASSED, check
from meshwright.record.mllog import read_log

SHARED = Path(__file__).parents[2] / ".." / "shared" / "logs"


def test_without_the_package_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compliance, "find_spec", lambda name: None)
    found = check(read_log(write(tmp_path / "a.txt", lines())), "v5.1")
    assert (found.state, found.rules) == (NOT_RUN, "") and "not installed" in found.why


@pytest.mark.parametrize(
    "round_name, benchmark, why",
    [
        ("", "llama31_405b", "the round is not known: give --round"),
        ("v9.9", "llama31_405b", "the checker has no ruleset 9.9.0"),
        ("v5.1", "gpt3", "ruleset 5.1.0 has no closed_gpt3"),
        ("v5.1", "../../../evil", "submission_benchmark is not a plain word"),
    ],
)
def test_without_a_ruleset_it_says_so(tmp_path: Path, round_name: str, benchmark: str, why: str) -> None:
    pytest.importorskip("mlperf_logging")
    found = check(read_log(write(tmp_path / "a.txt", lines(benchmark=benchmark))), round_name)
    assert (found.state, found.why) == (NOT_RUN, why)


def test_a_log_that_breaks_the_rules_gets_complaints(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_logging")
    found = check(read_log(write(tmp_path / "a.txt", lines())), "v5.1")
    assert (found.state, found.rules) == (FAILED, "ruleset 5.1.0, llama31_405b")
    assert any("opt_name" in complaint for complaint in found.complaints)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real logs are not here")
def test_a_real_log_passes_its_own_rounds_rules() -> None:
    pytest.importorskip("mlperf_logging")
    log = read_log(SHARED / "v5.1_theia_ngpu512_llama31_405b" / "result_0.txt")
    assert check(log, "v5.1").state == PASSED
