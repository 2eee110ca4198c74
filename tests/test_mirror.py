"""Tests mirror the source: src/meshwright/A/b.py is tested in tests/A/test_b.py, and a test file has the name of what it tests."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "meshwright"

# Files that test a whole and not one module, each with what that whole is.
OF_A_WHOLE = {
    "benchmarks/test_attention.py": "a script of benchmarks/, which is no part of the package",
    "benchmarks/test_doctor.py": "a script of benchmarks/, which is no part of the package",
    "benchmarks/test_experts.py": "a script of benchmarks/, which is no part of the package",
    "benchmarks/test_faults.py": "a script of benchmarks/, which is no part of the package",
    "benchmarks/test_gpu_loss.py": "a script of benchmarks/, which is no part of the package",
    "benchmarks/test_h200.py": "a script of benchmarks/, which is no part of the package",
    "benchmarks/test_rehearse.py": "a script of benchmarks/, which is no part of the package",
    "benchmarks/test_tune.py": "a script of benchmarks/, which is no part of the package",
    "cli/test_damaged_files.py": "every command that reads a file, each with damaged files",
    "cli/test_json.py": "the JSON of every command, against the published schema",
    "cli/test_one_answer.py": "plan and predict, which give one answer to one question",
    "describe/test_catalogue.py": "the data in describe/catalogue: every number has its source",
    "engines/test_on_lab.py": "jobs on a real Slurm and by real ssh, on the hosts of a lab",
    "plan/export/test_deepspeed_parser.py": "exported files, read by DeepSpeed itself",
    "plan/export/test_megatron_names.py": "exported files, against the options that Megatron's source has",
    "plan/export/test_torchtitan_parser.py": "exported files, read by torchtitan itself",
    "plan/stack/test_plans.py": "searches for a stack, whose plans the stack's rules, its exporter and the trainer let pass",
    "plan/test_profile.py": "a plan made with a hardware profile: its explanation, its trace and its file",
    "plan/test_trace_perfetto.py": "traces, read by Perfetto itself",
    "record/test_mllog_forms.py": "logs in the forms of many submitters, through mllog.py and mllog_lines.py",
    "simulator/test_agreement.py": "plan and simulation of days, which agree on long runs",
    "serve/test_browser.py": "the live page in a browser: the scripts of serve/static",
    "test_api.py": "the public names of the package, and that each gives what its command prints",
    "test_bad_input.py": "every public name, with any value in the place of any argument",
    "test_docs.py": "the documentation: links, commands, code blocks and the site",
    "test_examples.py": "the scripts and the notebook of examples/",
    "test_imports.py": "the imports of all modules, which point one way",
    "test_mirror.py": "the tests themselves",
    "test_shown.py": "the output of quick commands that pages show",
    "test_tutorial.py": "the commands of the tutorial, from the top",
    "train/checkpoint/test_crash.py": "checkpoints of processes that are killed at any moment",
    "train/test_adapters_parity.py": "adapters: the same loss for every layout, against one process",
    "train/test_tuning_parity.py": "samples of conversations: the same loss packed or not, and for every division of a batch",
    "train/test_end_to_end.py": "whole training runs, as a user starts them",
    "train/test_expert_parity.py": "the same loss and loads for every layout of a mixture of experts, against the serial definition",
    "train/test_prediction_parity.py": "multi-token prediction under every axis, against one process and transformers",
    "train/test_overlap.py": "communication that runs beside compute, on real ranks",
    "train/test_parity.py": "the same loss for every layout, against the serial definition",
    "train/test_ranks.py": "tests/train/ranks.py, by which tests run several ranks",
    "train/test_traffic.py": "the bytes that a trainer sends, against predict/traffic.py",
}

MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


def mirror(module: str) -> str:
    """Where the tests of a module stand: `A/b.py` in `A/test_b.py`."""
    path = Path(module)
    return (path.parent / f"test_{path.name}").as_posix()


def packages() -> set[str]:
    """Where the tests of what a package holds itself may stand: `A/b/__init__.py` in `A/b/test_b.py` or in `A/test_b.py`."""
    folders = [path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE]
    return {(where / f"test_{folder.name}.py").as_posix() for folder in folders for where in (folder, folder.parent)}


MIRRORED = {mirror(module) for module in MODULES} | packages()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_test_file(module: str) -> None:
    is_there = (TESTS / mirror(module)).is_file()
    assert is_there, f"write tests/{mirror(module)}"


@pytest.mark.parametrize("name", FILES)
def test_a_test_file_has_the_name_of_what_it_tests(name: str) -> None:
    mirrored = name in MIRRORED
    assert mirrored != (name in OF_A_WHOLE), f"tests/{name} has the name of no module: move its tests, or add it to OF_A_WHOLE"


def test_no_exception_outlives_its_file() -> None:
    assert set(OF_A_WHOLE) <= set(FILES)
    assert all(len(reason.split()) > 2 for reason in OF_A_WHOLE.values())


def test_every_test_file_tests_something() -> None:
    empty = [name for name in FILES if "def test_" not in (TESTS / name).read_text(encoding="utf-8")]
    assert empty == []
