"""Finds what a name or a path describes: an entry of the catalogue, or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from meshwright.describe import economics, load
from meshwright.describe.config_json import CONFIG
from meshwright.describe.recipe import recipe, recipe_of_spelling, recipes
from meshwright.errors import InputError, close_names, nearest


def finders() -> Mapping[str, tuple[Callable[[], Iterable[str]], Callable[[str], object]]]:
    """For each kind of entry: its names, and how one is loaded."""
    kinds: dict[str, tuple[Callable[[], Iterable[str]], Callable[[str], object]]] = {}
    for kind, loader in load.LOADERS.items():
        kinds[kind] = (partial(load.names, kind), loader)
    kinds["regions"] = (economics.regions, economics.region)
    kinds["facilities"] = (economics.facilities, economics.facility)
    kinds["recipes"] = (recipes, recipe)
    kinds["providers"] = (economics.providers, economics.provider)
    return kinds


def find(name: str) -> tuple[object, str]:
    """The entry of that name, and its note. A path is read as the kind of file that it is."""
    if load.looks_like_path(name):
        return _from_path(Path(name)), ""
    wanted = load.plain(name)
    for kind, (names, loader) in finders().items():
        if wanted in names():
            return loader(wanted), load.note(kind, wanted)
    known: list[str] = [name for names, _ in finders().values() for name in names()]
    for kind in load.LOADERS:
        known += load.aliases(kind)
        if wanted in load.aliases(kind):
            found = load.aliases(kind)[wanted]
            return load.LOADERS[kind](found), load.note(kind, found)
    for kind, spellings, get in (
        ("regions", economics.spellings("regions"), economics.region),
        ("facilities", economics.spellings("facilities"), economics.facility),
        ("recipes", _recipe_spellings(), lambda spelling: recipe(_recipe_spellings()[spelling])),
    ):
        if wanted in spellings:
            return get(wanted), load.note(kind, wanted)
    if _is_folder(name):
        raise _no_entry(name)
    if wanted in load.left_out():
        raise InputError(f"{name!r} is left out of the catalogue: {load.left_out()[wanted]}", fix="describe it in a TOML file of your own")
    is_close = bool(close_names(wanted, known))
    fix = f"{nearest(wanted, known)} meshwright describe lists all" if is_close else "meshwright describe lists all names"
    raise InputError(f"nothing named {name!r} is in the catalogue", fix=fix)


def _recipe_spellings() -> Mapping[str, str]:
    """Names of recipes by how files of measured runs write them, spelled as the catalogue spells names."""
    return {load.plain(spelling): name for spelling, name in recipe_of_spelling().items()}


def _is_folder(name: str) -> bool:
    """Whether a folder of that name is there; no name is no folder, though it would be the current one as a path."""
    try:
        return bool(name) and Path(name).is_dir()
    except (OSError, ValueError):  # longer than a path may be, or with a zero byte in it
        return False


def _no_entry(folder: str) -> InputError:
    return InputError("a folder without a config.json describes nothing", where=folder, fix="give a TOML file or a config.json in it")


def _from_path(path: Path) -> object:
    """What a file describes: clusters have tiers, models have layers, workloads have sequences."""
    if path.is_dir() and not (path / CONFIG).is_file():
        raise _no_entry(str(path))
    if path.suffix != ".toml":
        return load.load_model(path)
    table = load.read_toml(path)
    for key, loader in (("tiers", load.load_cluster), ("num_layers", load.load_model), ("seq_len", load.load_workload)):
        if key in table:
            return loader(path)
    raise InputError(
        "cannot tell what this file describes",
        where=str(path),
        fix="a cluster has tiers, a model num_layers, a workload seq_len",
    )
