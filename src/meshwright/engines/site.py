"""A site: how a cluster wants its jobs written. One TOML file; its keys, their checks, their table and an example come from here.

`python -m meshwright.engines.site` prints the table that docs/launch.md contains.
"""

from __future__ import annotations

import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from meshwright.describe.form import Checked, checked
from meshwright.errors import UNSEEN, InputError
from meshwright.files import READABLE, read_text

ENGINES = ("slurm", "kubernetes", "ssh", "local")
MOST_SITE_BYTES = 1 << 20
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _refused(fix: str) -> ValueError:
    """The error for a value that is of the right type and still wrong; pydantic's own would put words before the text."""
    from pydantic_core import PydanticCustomError

    return PydanticCustomError("site", fix)


def _line(text: str) -> str:
    """A value that stands on one line of a script: it must not begin another one."""
    if UNSEEN.search(text) or "\n" in text or "\t" in text:
        raise _refused("write one line, without control characters")
    return text


def _word(text: str) -> str:
    """A value that stands on a line of `#SBATCH` options: a space would begin another option."""
    if re.search(r"\s", _line(text)):
        raise _refused("write one word, without spaces")
    return text


def _variables(values: dict[str, str]) -> dict[str, str]:
    for name in values:
        if not VARIABLE.fullmatch(name):
            raise _refused("name variables with letters, digits and _")
    return values


def _mount(text: str) -> str:
    source, _, target = text.partition(":")
    if not source or not target.startswith("/"):
        raise _refused("write SOURCE:TARGET, with a target that begins with /")
    return _word(text)


Line = Annotated[str, AfterValidator(_line)]
Word = Annotated[str, AfterValidator(_word)]
Mount = Annotated[str, AfterValidator(_mount)]
Variables = Annotated[dict[str, Line], AfterValidator(_variables)]


class Section(Checked):
    """A table of the file. It cannot be changed once it is read."""

    model_config = ConfigDict(frozen=True)


class SlurmSite(Section):
    """What `--on slurm` reads."""

    partition: Word = Field(default="", description="Partition to submit to; without it, Slurm's default.", examples=["gpu"])
    account: Word = Field(default="", description="Account that is charged.", examples=["team-llm"])
    qos: Word = Field(default="", description="Quality of service.", examples=["high"])
    reservation: Word = Field(default="", description="Reservation to run in.", examples=["maintenance-free"])
    constraint: Word = Field(default="", description="Features that the nodes must have.", examples=["h200"])
    gres: Word = Field(
        default="", description="GPUs of a node; without it, gpu:N with the plan's N. `none` for a plan on cores.", examples=["gpu:h200:8"]
    )
    topology: Literal["tree", "block", "none"] = Field(
        default="tree", description="How Slurm knows racks: switches (`tree`), blocks (`block`), or not at all (`none`).", examples=["tree"]
    )
    wait_for_racks: Word = Field(
        default="12:00:00",
        description="How long Slurm may wait for whole racks before it takes any nodes (`tree` only).",
        examples=["12:00:00"],
    )
    exclusive: bool = Field(default=True, description="Whether the job has its nodes alone.", examples=[True])
    options: list[Word] = Field(default_factory=list, description="Further options of sbatch, as they are.", examples=[["--mail-type=END"]])


class KubernetesSite(Section):
    """What `--on kubernetes` reads."""

    kind: Literal["job", "jobset", "trainjob"] = Field(
        default="jobset", description="Object to make: an indexed Job, a JobSet, or a Kubeflow TrainJob.", examples=["jobset"]
    )
    namespace: Word = Field(default="default", description="Namespace of all objects.", examples=["training"])
    queue: Word = Field(default="", description="Kueue's local queue; without it, Kueue is not used.", examples=["team-llm"])
    priority: Word = Field(default="", description="Kueue's workload priority class.", examples=["production"])
    topology: Literal["kueue", "exclusive", "none"] = Field(
        default="none",
        description="How racks are kept: by Kueue's topology-aware scheduling (`kueue`), by a rack for each child of a JobSet "
        "(`exclusive`), or not at all (`none`).",
        examples=["kueue"],
    )
    rack_label: Word = Field(default="", description="Label of a node that names its rack.", examples=["cloud.provider.com/topology-rack"])
    gpu_resource: Word = Field(default="nvidia.com/gpu", description="Name of the GPUs as a resource.", examples=["nvidia.com/gpu"])
    resources: dict[str, Line] = Field(
        default_factory=dict, description="Further resources of a pod, as requests and limits.", examples=[{"rdma/hca": "8"}]
    )
    node_selector: dict[str, Line] = Field(
        default_factory=dict, description="Labels that the nodes must have.", examples=[{"node.kubernetes.io/instance-type": "h200"}]
    )
    tolerate: list[Word] = Field(
        default_factory=lambda: ["nvidia.com/gpu"], description="Taints of nodes that pods tolerate.", examples=[["nvidia.com/gpu"]]
    )
    service_account: Word = Field(default="", description="Service account of the pods.", examples=["trainer"])
    runtime: Word = Field(
        default="torch-distributed", description="Cluster training runtime of a TrainJob.", examples=["torch-distributed"]
    )
    max_restarts: int = Field(default=3, ge=0, le=1000, description="How often a failed job is started again.", examples=[3])
    shared_memory: Word = Field(default="64Gi", description="Size of /dev/shm in a pod.", examples=["64Gi"])


class SshSite(Section):
    """What `--on ssh` reads."""

    hosts: list[Word] = Field(
        default_factory=list, description="Hosts in the order of the machine, rack by rack; `--nodes` replaces them.", examples=[["h[0-3]"]]
    )
    user: Word = Field(default="", description="User on the hosts.", examples=["trainer"])
    options: list[Word] = Field(default_factory=list, description="Further options of ssh, as they are.", examples=[["-p", "2222"]])


class Site(Section):
    """A site file: what is the same for every job there."""

    python: Word = Field(
        default="python3", description="Python with meshwright, as the nodes find it.", examples=["/shared/venv/bin/python"]
    )
    workdir: Line = Field(
        default="", description="Folder that all nodes share; without it, the one launch is called in.", examples=["/shared/llm"]
    )
    setup: list[Line] = Field(
        default_factory=list, description="Shell lines before the start, on each node.", examples=[["ulimit -l unlimited"]]
    )
    modules: list[Word] = Field(default_factory=list, description="Environment modules to load.", examples=[["cuda/13.0"]])
    environment: Variables = Field(
        default_factory=dict, description="Environment variables of every rank.", examples=[{"NCCL_IB_HCA": "mlx5_0,mlx5_1"}]
    )
    network_interface: Word = Field(
        default="", description="Network interface over which ranks find each other, and over which gloo sends.", examples=["eth0"]
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port at which ranks meet; 0: one made from the job's number (29500 elsewhere).",
        examples=[29500],
    )
    container: Word = Field(
        default="", description="Container image (Slurm: by pyxis; Kubernetes: needed).", examples=["ghcr.io/team/llm:1"]
    )
    mounts: list[Mount] = Field(
        default_factory=list,
        description="SOURCE:TARGET folders in the container; on Kubernetes a source without / is a volume claim.",
        examples=[["/shared:/shared"]],
    )
    time_limit: Word = Field(default="", description="Longest time of a job, as Slurm writes it.", examples=["2-00:00:00"])
    racks: dict[str, Line] = Field(
        default_factory=dict,
        description="Racks and their nodes, where the engine cannot tell; in the order of the machine.",
        examples=[{"rack0": "h[0-1]", "rack1": "h[2-3]"}],
    )
    examine: bool = Field(
        default=False, description="Whether `meshwright doctor` examines the nodes first, and bad ones are left out.", examples=[True]
    )
    restarts: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="How often ranks that crash or hang are started again within the job; with a supervisor on each node, how often "
        "each supervisor is.",
        examples=[10],
    )
    slurm: SlurmSite = Field(default=SlurmSite(), description="Slurm's own keys.")
    kubernetes: KubernetesSite = Field(default=KubernetesSite(), description="Kubernetes' own keys.")
    ssh: SshSite = Field(default=SshSite(), description="The keys of ssh.")


def read_site(path: Path | None) -> Site:
    """The site in a file; the defaults without one. An error names the key, and the nearest known one."""
    if path is None:
        return Site()
    try:
        table = tomllib.loads(read_text(path, MOST_SITE_BYTES))
    except OSError as error:
        raise InputError(f"cannot read the site file: {error.strerror or error}", where=str(path), fix=READABLE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"this is not TOML: {error}", where=str(path), fix="see `meshwright launch --example slurm`") from None
    return checked(Site, table, str(path))


def example(engine: str) -> str:
    """A site file for one engine, with every key that it reads, its description and an example."""
    lines = [f"# A site file for meshwright launch --on {engine}. Every key may be left out."]
    for key, field in Site.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            continue
        if _is_read_by(engine, key):
            lines += _commented(key, field)
    own = Site.model_fields.get(engine)
    if own is not None and isinstance(own.annotation, type) and issubclass(own.annotation, Section):
        lines += ["", f"[{engine}]"]
        for key, field in own.annotation.model_fields.items():
            lines += _commented(key, field)
    return "\n".join([*lines, ""])


# Keys that an engine has no use for: its example leaves them out, and a site file for several engines may have them.
UNREAD = {
    "local": {"container", "mounts", "racks", "time_limit", "network_interface", "port", "workdir", "modules", "setup", "examine"},
    "ssh": {"container", "mounts", "time_limit"},
    "kubernetes": {"modules", "workdir", "racks", "time_limit", "examine"},
    "slurm": set[str](),
}


def _is_read_by(engine: str, key: str) -> bool:
    return key not in UNREAD[engine]


def _commented(key: str, field: Any) -> list[str]:
    return ["", f"# {field.description}", f"{key} = {_toml(field.examples[0])}"]


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Key, kind, default and description of every value of a site file."""
    for key, field in Site.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from ((f"{key}.{name}", *_about(one)) for name, one in inner.model_fields.items())
        else:
            yield (key, *_about(field))


def _about(field: Any) -> tuple[str, str, str]:
    default = field.get_default(call_default_factory=True)
    shown = f"`{_toml(default)}`" if default not in ("", [], {}) else ""
    return _kind(field.annotation), shown, field.description


def _kind(annotation: Any) -> str:
    """The kind of a value in a word or two."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _kind(inner[-1])
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin is list:
        return "list of texts"
    return "table of texts" if origin is dict else {str: "text", bool: "true or false", int: "number"}[annotation]


def table() -> str:
    """All keys as a Markdown table, for the documentation."""
    lines = ["| table | key | kind | default | what it is |", "| --- | --- | --- | --- | --- |"]
    for path, kind, default, about in rows():
        section, _, key = path.rpartition(".")
        lines.append(f"| {f'`[{section}]`' if section else ''} | `{key}` | {kind} | {default} | {about} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(table(), end="")
