"""The documents are true: what they name exists, their links lead somewhere, their commands parse, the cheap ones run."""

import ast
import importlib
import re
import shlex
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from meshwright.cli.main import app, main
from meshwright.predict.software import Constants

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PARTS = {path.stem for path in (ROOT / "src" / "meshwright").iterdir()}
CHEAP = ("describe", "predict")  # verbs that are run; of the others only the arguments are parsed

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAME = re.compile(r"`([a-z_]\w*(?:\.[A-Za-z_]\w*)+)`")
FILE_ENDINGS = (".csv", ".json", ".md", ".py", ".toml")
LOCAL_PATH = re.compile(r"(?<![\w.])/(work|tmp|home|root|Users)\b")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def names_in(path: Path) -> list[str]:
    """Dotted names of the package that a document gives in backquotes."""
    found = {name for name in NAME.findall(text_of(path)) if not name.endswith(FILE_ENDINGS)}
    return sorted(name for name in found if name.split(".")[0] in PARTS)


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
    blocks = [block for language, block in FENCE.findall(text_of(path)) if language in ("", "console")]
    lines = [line.removeprefix("$ ") for line in "\n".join(blocks).replace("\\\n", " ").splitlines()]
    return [
        Command(shlex.split(line, comments=True)[1:], is_refused=after.startswith("meshwright: "))
        for line, after in pairwise([*lines, ""])
        if line.startswith("meshwright ")
    ]


def write_files_of(path: Path, folder: Path) -> None:
    """Write the TOML files that a document tells its reader to write: blocks that start with the file's name as a comment."""
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
    parts = name.split(".")
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


def said(case: tuple[Path, Command]) -> str:
    return f"{relative(case[0])}: {shlex.join(case[1].arguments)}"


@pytest.mark.parametrize("case", COMMANDS, ids=said)
def test_every_command_parses(case):
    verb, *arguments = case[1].arguments
    assert typer.main.get_command(app).commands[verb].make_context(verb, arguments).info_name == verb


@pytest.mark.parametrize("case", [case for case in COMMANDS if case[1].is_cheap], ids=said)
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
    assert arrow_shown("Inside `train`") == held_by_the_tests("ROOMS")["train"]
