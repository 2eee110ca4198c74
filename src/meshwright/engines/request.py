"""What a launch asks of an engine: the plan, the site, and the run that it should become."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from meshwright.engines.shape import Shape
from meshwright.engines.site import Site
from meshwright.plan.plan import Plan
from meshwright.storage import Location

PLAN_FILE, PLACED_FILE, SITE_FILE, HOSTS_FILE, RANKS_FILE = "plan.json", "placed.json", "site.toml", "hosts", "ranks.csv"
ALLOCATED_FILE, TOPOLOGY_FILE, BAD_FILE, OUTPUT_FILE = "allocated", "topology", "bad-nodes.json", "output.log"
SECRET_FILE, PLACING_FILE = "secret", "placing.txt"
NODES_FILE = "nodes"  # each node once: those of the plan in its order, and spares
USUAL_PORT = 29500


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of a job. One that is not kept is only shown: it says what will be called."""

    name: str
    text: str
    is_kept: bool = True


@dataclass(frozen=True, kw_only=True)
class Request:
    """One job to be submitted."""

    plan: Plan
    site: Site
    name: str
    folder: Path  # of the job's files: absolute, and the same on all nodes
    runs: Location  # the folder of run folders, on the nodes or at a URL
    options: tuple[str, ...] = ()  # of `meshwright train`, as the user wrote them
    hosts: tuple[str, ...] = ()  # named by the user, in the order of the machine; none: the engine chooses
    excluded: tuple[str, ...] = ()  # nodes on the list of bad ones
    num_spares: int = 0  # nodes asked for beyond those of the plan

    @cached_property
    def shape(self) -> Shape:
        """The nodes that the plan needs."""
        return Shape.of(self.plan)

    @property
    def num_nodes(self) -> int:
        """Nodes to ask for, with spares."""
        return self.shape.num_nodes + self.num_spares

    @property
    def keeps_going(self) -> bool:
        """Whether each node has a supervisor, so that replicas are lost and join again while the others train."""
        layout = self.plan.layout
        return bool(self.site.restarts) and layout.dp > 1 and self.shape.num_nodes > 1 and self.plan.model.experts is None

    @property
    def after_a_fault(self) -> str:
        """What becomes of the run when a rank or a node fails, in a sentence."""
        if self.keeps_going:
            return "Each node has a supervisor: replicas that are lost do not end the others."
        why = (
            "restarts = 0 in the site file"
            if not self.site.restarts
            else "the plan has one replica"
            if self.plan.layout.dp == 1
            else "the plan has one node"
            if self.shape.num_nodes == 1
            else "ranks of several replicas share the experts of the model"
        )
        again = "all ranks are started again from the newest checkpoint" if self.site.restarts else "the job ends"
        return f"After a fault {again}, because {why}."

    def train(self, plan: str, secret: str = "") -> list[str]:
        """The words of the training command of every rank, after the name of Python; `secret` is the file of the job's secret."""
        given = ["--name", self.name, "--runs", str(self.runs), "--resume-if-exists", *(["--secret", secret] if secret else [])]
        return ["-m", "meshwright", "train", plan, *given, *self.options]

    def supervised(self, plan: str, secret: str, *, node: str, address: str, port: int | str, num_nodes: str = "") -> str:
        """The shell command that starts the supervisor of one node; `node`, `address`, `port` and `num_nodes` are in the shell's own words.

        `num_nodes` is given where the plan may be another one by then.
        """
        again = ["--keep-going"] if "--keep-going" not in self.options else []
        trained = [self.site.python, *self.train(plan, secret), *again]
        return f"{shlex.join(trained)} --nodes {num_nodes or self.shape.num_nodes} --node {node} --meet {address}:{port}"

    def torchrun(self, plan: str, secret: str, *, num_nodes: int, num_local: int | str, node: str, address: str, port: int | str) -> str:
        """The shell command that starts the ranks of one node; `node`, `address` and `port` are in the shell's own words."""
        words = [self.site.python, "-m", "torch.distributed.run", f"--nnodes={num_nodes}", f"--nproc-per-node={num_local}"]
        words += [f"--max-restarts={self.site.restarts}"] if self.site.restarts else []
        trained = shlex.join(self.train(plan, secret))
        return f"{shlex.join(words)} --node-rank={node} --master-addr={address} --master-port={port} \\\n  {trained}"


def settings(site: Site) -> dict[str, str]:
    """The environment variables of every rank."""
    interface = site.network_interface
    found = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
    return {**found, **site.environment}


def exports(site: Site) -> list[str]:
    """Shell lines that prepare a node: modules, the site's own lines, variables."""
    loaded = [shlex.join(["module", "load", *site.modules])] if site.modules else []
    return [*loaded, *site.setup, *(f"export {name}={shlex.quote(value)}" for name, value in settings(site).items())]


def comments(lines: Sequence[str]) -> list[str]:
    """Lines as comments of a script; a line break in a name must not end a comment."""
    return [f"# {' '.join(line.split())}" for line in lines]
