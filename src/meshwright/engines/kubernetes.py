"""Jobs on Kubernetes, through kubectl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING, WAITING, State
from meshwright.engines.kubernetes_files import JOB_FILE, PLAN_OBJECT_FILE
from meshwright.engines.programs import Answer, call
from meshwright.engines.request import SECRET_FILE, Request
from meshwright.errors import InputError

KUBERNETES = "Kubernetes"
RESOURCES = {"job": "jobs.batch", "jobset": "jobsets.jobset.x-k8s.io", "trainjob": "trainjobs.trainer.kubeflow.org"}
ENDS = {"Complete": DONE, "Completed": DONE, "SuccessCriteriaMet": DONE, "Failed": FAILED}  # conditions that end a job
INDEX = "batch.kubernetes.io/job-completion-index"
MOST_BYTES = 1 << 22


class Kubernetes:
    """The cluster of kubectl's present context."""

    outlives = True

    def __init__(self, name: str, kind: str, namespace: str) -> None:
        self.name, self.kind, self.namespace = name, kind, namespace
        self._has_run = False  # since then a pod that is replaced does not make it a job that waits

    def _call(self, *words: str) -> Answer:
        return call(["kubectl", f"--namespace={self.namespace}", *words], KUBERNETES)

    def check(self, request: Request) -> None:
        """Raise an error if the cluster does not answer, does not let this user in, or has too few nodes of the right kind."""
        resource = RESOURCES[self.kind]
        answer = self._call("auth", "can-i", "create", resource)
        said = f"{answer.out}\n{answer.err}"
        if not {"yes", "no"} & {line.split(" ")[0] for line in answer.out.splitlines()}:  # it says so of a kind that it cannot look up too
            why = next((line for line in reversed(answer.err.strip().splitlines()) if line), answer.reason)
            raise InputError(f"Kubernetes does not answer: {why}", where="kubectl", fix="check it with `kubectl cluster-info`")
        if "doesn't have a resource type" in said:
            raise InputError(
                f"the cluster has no {resource}",
                where="kubernetes.kind of the site file",
                fix='install its controller, or use kind = "job"',
            )
        if answer.out.strip().startswith("no"):
            raise InputError(
                f"this user may not create {resource} in the namespace {self.namespace}",
                where="kubernetes.namespace of the site file",
                fix="name a namespace of yours, or ask the operators of the cluster for access",
            )
        self._check_nodes(request)

    def _check_nodes(self, request: Request) -> None:
        """Compare with the nodes, where this user may see them."""
        answer = call(["kubectl", "get", "nodes", "--output=json"], KUBERNETES)
        if answer.code:
            return
        kubernetes, cluster = request.site.kubernetes, request.plan.cluster
        nodes = [one for one in _items(answer.out) if one.get("metadata", {}).get("name") not in request.excluded]
        selected = [one for one in nodes if kubernetes.node_selector.items() <= one.get("metadata", {}).get("labels", {}).items()]
        alike = [
            one
            for one in selected
            if not request.shape.needs_gpus or _amount(one, kubernetes.gpu_resource) >= cluster.accelerators_per_node
        ]
        if len(alike) >= request.num_nodes:
            return
        wanted = f"{cluster.accelerators_per_node} {kubernetes.gpu_resource}" if request.shape.needs_gpus else "the labels of node_selector"
        raise InputError(
            f"{len(alike)} of the cluster's {len(nodes)} nodes have {wanted}, and the job asks for {request.num_nodes}",
            where="kubectl get nodes",
            fix="plan for the nodes that there are, or correct kubernetes.gpu_resource and kubernetes.node_selector of the site file",
        )

    def submit(self, request: Request) -> str:
        """Create the objects; if one is refused, none is left."""
        folder = request.folder
        self._call("delete", "secret", f"{self.name}-secret", "--ignore-not-found")  # of an earlier start
        for words in (
            ("create", "secret", "generic", f"{self.name}-secret", f"--from-file={SECRET_FILE}={folder / SECRET_FILE}"),
            ("apply", f"--filename={folder / PLAN_OBJECT_FILE}"),
            ("create", f"--filename={folder / JOB_FILE}"),
        ):
            answer = self._call(*words)
            if answer.code:
                is_there = "AlreadyExists" in answer.err
                if not is_there:
                    self.cancel(self.name)
                fix = (
                    "delete it first, or choose another --name" if is_there else "mend the site file, and see the manifests with --dry-run"
                )
                raise InputError("Kubernetes refused the job", where=answer.reason, fix=fix)
        return self.name

    def state(self, job: str) -> State:
        """The conditions of the job, and where its pods are."""
        answer = self._call("get", RESOURCES[self.kind], job, "--output=json")
        if answer.code:
            gone = "NotFound" in answer.err or "not found" in answer.err
            return State(phase=CANCELLED if gone else WAITING, reason="it was deleted" if gone else answer.reason)
        conditions = {
            one["type"]: one for one in _object(answer.out).get("status", {}).get("conditions", []) if one.get("status") == "True"
        }
        pods = self._pods(job)
        nodes = tuple(sorted({node for pod in pods if (node := pod.get("spec", {}).get("nodeName"))}))
        for name, phase in ENDS.items():
            if name in conditions:
                return State(phase=phase, reason=conditions[name].get("message", name), nodes=nodes)
        living = [pod for pod in pods if _phase(pod) != "Failed"]  # one that has failed is kept beside the pod that replaces it
        num_up = sum(_phase(pod) in ("Running", "Succeeded") for pod in living)
        self._has_run = bool(living) and (self._has_run or num_up == len(living))
        if self._has_run and num_up:
            nodes = tuple(sorted({node for pod in living if (node := pod.get("spec", {}).get("nodeName"))}))
            return State(phase=RUNNING, reason=f"{num_up} of {len(living)} pods", nodes=nodes)
        if "Suspended" in conditions:
            return State(phase=WAITING, reason=conditions["Suspended"].get("message") or "suspended: it waits to be admitted")
        return State(phase=WAITING, reason=f"{num_up} of {len(living)} pods run{_trouble(living)}", nodes=nodes)

    def _pods(self, job: str) -> list[dict[str, Any]]:
        answer = self._call("get", "pods", f"--selector=app.kubernetes.io/instance={job}", "--output=json")
        return _items(answer.out) if answer.code == 0 else []

    def cancel(self, job: str) -> None:
        """Delete the objects of the job."""
        names = [
            f"{RESOURCES[self.kind]}/{job}",
            f"configmap/{job}-plan",
            f"secret/{job}-secret",
            *([f"service/{job}"] if self.kind == "job" else []),
        ]
        for name in names:
            self._call("delete", name, "--ignore-not-found", "--wait=false")

    def read(self, path: Path, offset: int) -> bytes:
        """The file, as the first pod sees it."""
        first = next((pod["metadata"]["name"] for pod in self._pods(self.name) if _is_first(pod) and _phase(pod) == "Running"), "")
        if not first:
            return b""
        answer = self._call("exec", first, "--", "sh", "-c", f'tail -c +{offset + 1} "$0" | head -c {MOST_BYTES}', str(path))
        return answer.out.encode() if answer.code == 0 else b""

    def by_hand(self, job: str) -> str:
        """The command with which a user ends the job."""
        return f"kubectl --namespace={self.namespace} delete {RESOURCES[self.kind]}/{job} configmap/{job}-plan secret/{job}-secret"


def _phase(pod: dict[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _is_first(pod: dict[str, Any]) -> bool:
    labels = pod.get("metadata", {}).get("labels", {})
    return bool(labels.get(INDEX) == "0") and bool(labels.get("jobset.sigs.k8s.io/job-index", "0") == "0")


def _trouble(pods: list[dict[str, Any]]) -> str:
    """Why a pod does not start, if one says so."""
    for pod in pods:
        status = pod.get("status", {})
        for one in status.get("containerStatuses", []):
            reason = one.get("state", {}).get("waiting", {}).get("reason", "")
            if reason not in ("", "ContainerCreating", "PodInitializing"):
                return f": {reason}"
        for one in status.get("conditions", []):
            if one.get("reason") == "Unschedulable":
                return f": {one.get('message', 'unschedulable')}"
    return ""


def _amount(node: dict[str, Any], resource: str) -> int:
    text = str(node.get("status", {}).get("allocatable", {}).get(resource, "0"))
    return int(text) if text.isdigit() else 0


def _items(text: str) -> list[dict[str, Any]]:
    found = _object(text).get("items", [])
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
