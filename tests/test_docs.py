"""The documents are true: what they name exists, their links lead somewhere, their commands parse, the cheap ones run, the site builds."""

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

import meshwright
from meshwright.cli.main import app, main
from meshwright.predict.software import Constants

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "meshwright"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
FOREIGN = ("np", "torch")  # packages whose names a document may give
# Of MLPerf's checker, pip, benchmarks/h200.py, torchrun, sbatch, kubernetes-validate.
FOREIGN_OPTIONS = {"--config", "--no-deps", "--floor", "--case", "--max-restarts", "--no-kill", "--switches", "--segment", "--strict"}
CHEAP = ("describe", "predict")  # verbs that are run; of the others only the arguments are parsed

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)  # and the output shown below
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAME = re.compile(r"`([a-z_]\w*(?:\.[A-Za-z_]\w*)+)`")
CODE = re.compile(r"`([^`\n]+)`")
FILE_ENDINGS = (".csv", ".json", ".jsonl", ".log", ".md", ".py", ".toml", ".yml")
LOCAL_PATH = re.compile(r"(?<![\w.])/(work|tmp|home|root|Users)\b")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def names_in(path: Path) -> list[str]:
    """Dotted names of the package that a document gives in backquotes."""
    found = {name for name in NAME.findall(text_of(path)) if not name.endswith(FILE_ENDINGS)}
    return sorted(name for name in found if name.split(".")[0] not in FOREIGN)


def code_in(path: Path) -> list[str]:
    """What a document has in backquotes within its sentences and tables."""
    return CODE.findall(FENCE.sub("", text_of(path)))


def blocks_of(language: str) -> list[tuple[Path, str]]:
    """All blocks of a language, each with its document."""
    return [(path, block) for path in DOCUMENTS for found, block in FENCE.findall(text_of(path)) if found == language]


@dataclass(frozen=True)
class Command:
    """A `meshwright` command as a document shows it, and whether it is shown to be refused."""

    arguments: list[str]
    is_refused: bool

    @property
    def is_cheap(self) -> bool:
        """Whether a test can run it: not where it needs what an earlier command of the document writes."""
        return self.arguments[0] in CHEAP and not any(argument.endswith(".json") for argument in self.arguments)


def commands_in(path: Path) -> list[Command]:
    """Every `meshwright` command in a document's shell blocks."""
    blocks = [block for language, block in FENCE.findall(text_of(path)) if language in ("", "console", "sh")]
    lines = [line.removeprefix("$ ") for line in "\n".join(blocks).replace("\\\n", " ").splitlines()]
    return [
        Command(shlex.split(line, comments=True)[1:], is_refused=after.startswith("meshwright: "))
        for line, after in pairwise([*lines, ""])
        if line.startswith("meshwright ")
    ]


def write_files_of(path: Path, folder: Path) -> None:
    """Write the TOML files that a document asks its reader to write: blocks that start with the file's name as a comment."""
    for language, block in FENCE.findall(text_of(path)):
        first = block.partition("\n")[0]
        if language == "toml" and re.fullmatch(r"# [\w-]+\.toml", first):
            (folder / first.removeprefix("# ")).write_text(block, encoding="utf-8")


def anchors_in(path: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def resolve(name: str) -> object:
    """What a dotted name below the package stands for."""
    parts = name.removeprefix("mw.").split(".")
    if name.startswith("mw."):
        return getattr(meshwright, parts[0])
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(["meshwright", *parts[:split]]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


@pytest.mark.parametrize(("path", "name"), [(relative(path), name) for path in DOCUMENTS for name in names_in(path)])
def test_every_function_a_document_names_exists(path, name):
    assert resolve(name) is not None


def test_a_name_that_is_gone_is_noticed():
    with pytest.raises(AttributeError):
        resolve("cost.compute.matmul_minutes")


def test_every_formula_names_its_function():
    rows = [line for line in text_of(ROOT / "docs/equations.md").partition("## Fitted constants")[0].splitlines() if line.startswith("| ")]
    without = [row for row in rows if not row.startswith("| ---") and not row.endswith(" function |") and not NAME.search(row)]
    assert len(rows) > 60
    assert without == []


def test_every_fitted_constant_is_explained():
    text = text_of(ROOT / "docs/equations.md")
    assert [field.name for field in fields(Constants) if f"`{field.name}`" not in text] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_every_link_leads_somewhere(path):
    broken = []
    for link in LINK.findall(FENCE.sub("", text_of(path))):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors_in(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_no_document_knows_the_machine_it_was_written_on(path):
    assert LOCAL_PATH.search(text_of(path)) is None


COMMANDS = [(path, command) for path in DOCUMENTS for command in commands_in(path)]


def command_id(case: tuple[Path, Command]) -> str:
    return f"{relative(case[0])}: {shlex.join(case[1].arguments)}"


def leaf(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that the arguments name, also below a group such as `audit`, and what is left of them."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command, arguments


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def leaves(command: Any) -> Iterator[Any]:
    """Every command of the command line that is not a group."""
    if hasattr(command, "commands"):
        for below in command.commands.values():
            yield from leaves(below)
    else:
        yield command


def stale_options(path: Path) -> list[str]:
    """Commands and options in a document's sentences and tables that the command line does not have."""
    known = set.union(*(options_of(command) for command in leaves(typer.main.get_command(app)))) | FOREIGN_OPTIONS
    stale = []
    for code in code_in(path):
        options = {word.partition("=")[0] for word in code.split() if word.startswith("--")}
        try:
            allowed = options_of(leaf(code.split()[1:])[0]) if re.match(r"meshwright [a-z]", code) else known
        except (KeyError, IndexError):
            stale += [] if code.split()[1:] in (["audit"], ["corpus"]) else [code]
            continue
        stale += sorted(options - allowed) if code.startswith(("--", "meshwright ")) else []
    return stale


@pytest.mark.parametrize("case", COMMANDS, ids=command_id)
def test_every_command_parses(case):
    command, arguments = leaf(case[1].arguments)
    assert command.make_context(command.name, arguments).command is command


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_options_in_sentences_and_tables_exist(path):
    assert stale_options(path) == []


def test_stale_commands_and_options_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`meshwright plan A B C --fastest`, `meshwright guess X`, `--no-such-option 3`, `meshwright audit log F --json`\n", encoding="utf-8"
    )
    assert stale_options(page) == ["--fastest", "meshwright guess X", "--no-such-option"]


def test_the_page_of_commands_has_them_all():
    shown = [code.split()[1:] for code in code_in(ROOT / "docs/commands.md") if re.match(r"meshwright [a-z]", code)]
    missing = {command.name for command in leaves(typer.main.get_command(app))} - {leaf(words)[0].name for words in shown}
    assert missing == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_make_targets_and_scripts_exist(path):
    targets = re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE)
    asked = re.findall(r"(?:`|^)make (?:[A-Z]+=\S+ )*([a-z-]+)", text_of(path), re.MULTILINE)
    scripts = re.findall(r"\b(benchmarks/\w+\.py)\b", text_of(path))
    assert [target for target in asked if target not in targets] == []
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


@pytest.mark.parametrize("case", [case for case in COMMANDS if case[1].is_cheap], ids=command_id)
def test_every_cheap_command_does_what_the_document_shows(case, capsys, monkeypatch, tmp_path):
    path, command = case
    write_files_of(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(command.arguments) == (2 if command.is_refused else 0)
    captured = capsys.readouterr()
    assert (bool(captured.out), bool(captured.err)) == (not command.is_refused, command.is_refused)


def held_by_the_tests(name: str):
    """The value of a constant of tests/test_imports.py."""
    tree = ast.parse(text_of(ROOT / "tests/test_imports.py"))
    return ast.literal_eval(
        next(node.value for node in tree.body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name)
    )


def arrow_shown(after: str) -> tuple[tuple[str, ...], ...]:
    """The arrow that ARCHITECTURE.md shows in the first block after some words."""
    shown = text_of(ROOT / "ARCHITECTURE.md").partition(after)[2].partition("```\n")[2].partition("```")[0]
    return tuple(tuple(line.partition("  ")[0].split(" | ")) for line in shown.splitlines())


def test_the_architecture_shows_the_arrow_that_the_tests_hold():
    assert arrow_shown("## Imports point one way") == held_by_the_tests("ARROW")


def test_the_architecture_shows_the_arrow_of_the_trainers_rooms():
    assert arrow_shown("Inside `train`") == held_by_the_tests("ROOMS")


def test_the_architecture_names_files_that_exist():
    tree = text_of(ROOT / "ARCHITECTURE.md").partition("```\n")[2].partition("```")[0]
    names = re.findall(r"(?<!\*)\b(\w+\.(?:py|toml|json))\b", tree)
    there = {path.name for path in PACKAGE.rglob("*")} | {"run.json"}
    assert len(names) > 50
    assert [name for name in names if name not in there] == []


@pytest.mark.parametrize("case", blocks_of("toml"), ids=lambda case: f"{relative(case[0])}: {case[1][:30]!r}")
def test_every_toml_block_parses(case):
    assert tomllib.loads(case[1])


@pytest.mark.parametrize("path", list(dict.fromkeys(path for path, _ in blocks_of("python"))), ids=relative)
def test_python_blocks_of_a_page_run_from_the_top_and_print_what_it_shows(path, monkeypatch, tmp_path, capsys):
    (tmp_path / "h200.json").write_text(text_of(ROOT / "tests/fixtures/profile_of_a_card.json"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block, shown in PYTHON.findall(text_of(path)):
        exec(compile(block, relative(path), "exec"), names)
        assert not shown or capsys.readouterr().out == shown
        capsys.readouterr()


def test_the_glossary_has_each_word_once():
    rows = re.findall(r"^\| ([^|]+?) \|", text_of(ROOT / "docs/glossary.md").partition("## Words we do not use")[0], re.MULTILINE)
    words = [row for row in rows if row not in ("word", "---")]
    assert len(words) > 60
    assert [word for word, count in Counter(words).items() if count > 1] == []


def built_site(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the documentation of `root` as `make docs` does: with --quiet, warnings would not count and broken links would pass."""
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)


def test_the_site_builds_and_asks_no_other_host(tmp_path):
    done = built_site(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")]
    fetched = [found for page in pages for found in re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://[^\" >]+", page)]
    assert fetched == []
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert [name for name in getattr(meshwright, "__all__", ()) if f'id="meshwright.{name}"' not in api and f'.{name}"' not in api] == []


@pytest.mark.long
def test_a_broken_link_or_anchor_stops_the_site(tmp_path):
    root = tmp_path / "repository"
    for folder in ("docs", "benchmarks"):
        shutil.copytree(ROOT / folder, root / folder)
    for path in [*ROOT.glob("*.md"), ROOT / "mkdocs.yml"]:
        shutil.copy(path, root)
    page = root / "docs/serve.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[a](nowhere.md) [b](records.md#no-such-heading)\n", encoding="utf-8")
    done = built_site(root, tmp_path / "site")
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr and "#no-such-heading" in done.stderr
