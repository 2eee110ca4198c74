"""The manifests of a job on Kubernetes: an indexed Job, a JobSet or a Kubeflow TrainJob, as YAML.

A pod is a node. Where replicas may come and go, it runs the supervisor of that node: a pod that is lost is replaced alone, and joins again,
and the first pod decides how the job ends. Otherwise torchrun in it starts the ranks. The index of a pod is the node of the plan, so pods
must be in racks in the order of their indexes: Kueue's topology-aware scheduling does this by slices, a JobSet by one child for each rack
with exclusive placement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.engines.request import PLAN_FILE, SECRET_FILE, USUAL_PORT, JobFile, Request, comments, settings
from meshwright.engines.yaml_text import yaml_text
from meshwright.errors import InputError
from meshwright.plan.export.heading import origin
from meshwright.plan.plan import plan_bytes

JOB_FILE, PLAN_OBJECT_FILE = "job.yaml", "plan.yaml"
NODES, CONTAINER = "nodes", "trainer"  # the replicated job of a JobSet, and the container of a pod
RUNTIME_JOB, RUNTIME_CONTAINER = "node", "node"  # what Kubeflow's own runtimes call them
NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")  # room for what a JobSet and a Job add to the name of a pod, at most 63
MOST_PLAN_BYTES = 1_000_000  # a ConfigMap holds 1 MiB
PLAN_FOLDER, SECRET_FOLDER = "/etc/meshwright", "/run/meshwright"
GRACE_S = 90  # to save before a pod is ended
MEET_S = 600  # in which all pods are placed and have their image, and another one for a pod that was lost
OVER = 3  # how the first pod ends a run that failed: no pod is tried again then
REFUSED = 2  # wrong input stays wrong
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
KUEUE = "kueue.x-k8s.io"

Object = dict[str, Any]


def kubernetes_files(request: Request) -> list[JobFile]:
    """The manifests: the plan as a ConfigMap, and the job."""
    _check(request)
    kind = request.site.kubernetes.kind
    made = {"job": _job_objects, "jobset": _jobset_objects, "trainjob": _trainjob_objects}[kind](request)
    top = comments(["Made by meshwright launch.", *origin(request.plan), request.shape.words, request.after_a_fault])
    return [JobFile(PLAN_OBJECT_FILE, yaml_text(_plan_object(request))), JobFile(JOB_FILE, "\n".join([*top, yaml_text(*made)]))]


def _check(request: Request) -> None:
    """Raise an error for what pods cannot be."""
    site, shape = request.site, request.shape
    if not NAME.fullmatch(request.name):
        better = re.sub(r"[^a-z0-9]+", "-", request.name.lower()).strip("-")[:36].strip("-") or "run"
        better = better if better[0].isalpha() else f"run-{better}"
        raise InputError(
            f"Kubernetes cannot name an object {request.name!r}",
            where="--name",
            fix=f"use lower-case letters, digits and -, at most 40, a letter first: --name {better}",
        )
    if not site.container:
        raise InputError("a pod needs a container image", where="container of the site file", fix='add container = "IMAGE"')
    if not shape.is_even:
        raise InputError(
            "the plan uses some nodes in part, and all pods of a job are alike",
            where=f"plan {request.plan.name}",
            fix=f"plan for a multiple of {shape.ranks_per_node} accelerators in each rack",
        )
    targets = [mount.partition(":")[2] for mount in site.mounts]
    if isinstance(request.runs, Path) and not any(f"{request.runs}/".startswith(f"{target.rstrip('/')}/") for target in targets):
        raise InputError(
            f"the run folder {request.runs} is in no mounted folder: it would be lost with its pod",
            where="--runs",
            fix=f"name a folder in {' or '.join(targets)}" if targets else 'mount a volume in the site file: mounts = ["CLAIM:/runs"]',
        )
    if request.hosts:
        raise InputError("Kubernetes chooses the nodes itself", where="--nodes", fix="use kubernetes.node_selector of the site file")
    kubernetes = site.kubernetes
    if kubernetes.topology != "none" and not kubernetes.rack_label:
        raise InputError(
            "racks can only be kept if their label is known",
            where="kubernetes.rack_label of the site file",
            fix='add the label of your nodes, such as rack_label = "cloud.provider.com/topology-rack"',
        )
    if kubernetes.topology == "exclusive" and kubernetes.kind != "jobset":
        raise InputError(
            f"a {kubernetes.kind} has no exclusive placement",
            where="kubernetes.topology of the site file",
            fix='use kind = "jobset", or topology = "kueue"',
        )
    if kubernetes.topology == "kueue" and not kubernetes.queue:
        raise InputError("Kueue needs a queue", where="kubernetes.queue of the site file", fix='add queue = "NAME" of a local queue')


def _plan_object(request: Request) -> Object:
    data = plan_bytes(request.plan)
    if len(data) > MOST_PLAN_BYTES:
        raise InputError(
            f"the plan has {len(data):,} bytes, and a ConfigMap holds {MOST_PLAN_BYTES:,}",
            where=f"plan {request.plan.name}",
            fix="plan again without a hardware profile (--profile none)",
        )
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(request, f"{request.name}-plan"), "data": {PLAN_FILE: data.decode()}}


def _meta(request: Request, name: str, **more: Mapping[str, str]) -> Object:
    labels = {"app.kubernetes.io/name": "meshwright", "app.kubernetes.io/instance": request.name, **more.pop("labels", {})}
    return {
        "name": name,
        "namespace": request.site.kubernetes.namespace,
        "labels": labels,
        **{key: value for key, value in more.items() if value},
    }


def _queue_labels(request: Request) -> dict[str, str]:
    kubernetes = request.site.kubernetes
    found = {f"{KUEUE}/queue-name": kubernetes.queue, f"{KUEUE}/priority-class": kubernetes.priority if kubernetes.queue else ""}
    return {key: value for key, value in found.items() if value}


def _rack_annotations(request: Request) -> dict[str, str]:
    """What Kueue is told of racks: all pods in one rack, or each slice of neighbours in one."""
    kubernetes, shape = request.site.kubernetes, request.shape
    if kubernetes.topology != "kueue" or not shape.group:
        return {}
    if shape.num_groups == 1:
        return {f"{KUEUE}/podset-required-topology": kubernetes.rack_label}
    return {f"{KUEUE}/podset-slice-required-topology": kubernetes.rack_label, f"{KUEUE}/podset-slice-size": str(shape.group_nodes)}


def _job_objects(request: Request) -> list[Object]:
    """A headless service, by which pods find the first one, and an indexed Job."""
    name, count = request.name, request.shape.num_nodes
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(request, name),
        "spec": {"clusterIP": "None", "selector": {"batch.kubernetes.io/job-name": name}, "publishNotReadyAddresses": True},
    }
    pod = _pod(request, node="$JOB_COMPLETION_INDEX", address=f"{name}-0.{name}", subdomain=name)
    return [service, {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta(request, name, labels=_queue_labels(request)),
                      "spec": _job_spec(request, count, pod)}]  # fmt: skip


def _job_spec(request: Request, count: int, pod: Object) -> Object:
    spec: Object = {"completionMode": "Indexed", "completions": count, "parallelism": count}
    if request.keeps_going:
        return {**spec, **_alone(request), "template": pod}
    restarts = request.site.kubernetes.max_restarts if request.site.kubernetes.kind == "job" else 0
    return {**spec, "backoffLimit": restarts * count, "template": pod}


def _alone(request: Request) -> Object:
    """How pods are replaced one by one, as often as the site allows for each; those that were driven from their node do not count."""
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [OVER]}},
        {"action": "FailIndex", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [REFUSED]}},
    ]
    return {
        "backoffLimitPerIndex": request.site.restarts,
        "podFailurePolicy": {"rules": rules},
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    }


def _jobset_objects(request: Request) -> list[Object]:
    """A JobSet: with exclusive placement one child for each rack, otherwise one child with all pods."""
    name, shape, kubernetes = request.name, request.shape, request.site.kubernetes
    is_exclusive = kubernetes.topology == "exclusive" and bool(shape.group)
    replicas, pods = (shape.num_groups, shape.group_nodes) if is_exclusive else (1, shape.num_nodes)
    node = f"$((JOB_INDEX * {pods} + JOB_COMPLETION_INDEX))" if replicas > 1 else "$JOB_COMPLETION_INDEX"
    pod = _pod(request, node=node, address=f"{name}-{NODES}-0-0.{name}")
    if replicas > 1:
        source = {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/job-index']"}}
        pod["spec"]["containers"][0]["env"].insert(0, {"name": "JOB_INDEX", "valueFrom": source})
    annotations = {EXCLUSIVE: kubernetes.rack_label} if is_exclusive else {}
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
        **_ends_of_a_jobset(request),
        "replicatedJobs": [{"name": NODES, "replicas": replicas, "template": {"spec": _job_spec(request, pods, pod)}}],
    }
    metadata = _meta(request, name, labels=_queue_labels(request), annotations=annotations)
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}]


def _ends_of_a_jobset(request: Request) -> Object:
    """What ends a JobSet, and what starts all its pods again."""
    failure: Object = {"maxRestarts": request.site.kubernetes.max_restarts}
    if not request.keeps_going:
        return {"failurePolicy": failure}
    over = {"name": "over", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "successPolicy": {"operator": "Any", "targetReplicatedJobs": [NODES]},
        "failurePolicy": {**failure, "rules": [over]},
    }


def _trainjob_objects(request: Request) -> list[Object]:
    """A TrainJob. Its runtime gives the address of the first node and the number of each as PET_ variables, which torchrun reads."""
    pod = _pod(request, node="$PET_NODE_RANK", address="$PET_MASTER_ADDR")["spec"]
    container = pod["containers"][0]
    trainer = {
        "image": container["image"],
        "command": container["command"],
        "env": container["env"],
        "numNodes": request.shape.num_nodes,
        "numProcPerNode": request.shape.ranks_per_node,
        "resourcesPerNode": _resources(request),
    }
    patched = {key: pod[key] for key in ("nodeSelector", "affinity", "tolerations", "serviceAccountName", "volumes") if key in pod}
    patched |= {
        "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
        "containers": [{"name": RUNTIME_CONTAINER, "volumeMounts": container["volumeMounts"]}],
    }
    template: Object = {"metadata": {"annotations": _rack_annotations(request)}} if _rack_annotations(request) else {}
    job = {"name": RUNTIME_JOB, "template": {"spec": {"template": {**template, "spec": patched}}}}
    patch = {"manager": "meshwright.io/launch", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
    kubernetes = request.site.kubernetes
    spec = {
        "runtimeRef": {"name": kubernetes.runtime},
        "trainer": {key: value for key, value in trainer.items() if value},
        "runtimePatches": [patch],
    }
    metadata = _meta(request, request.name, labels=_queue_labels(request))
    return [{"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}]


def _pod(request: Request, *, node: str, address: str, subdomain: str = "") -> Object:
    """The template of a pod: a node of the plan."""
    site, kubernetes = request.site, request.site.kubernetes
    volumes, mounts = _volumes(request)
    container: Object = {
        "name": CONTAINER,
        "image": site.container,
        "command": ["bash", "-c", _script(request, node, address)],
        "env": [{"name": key, "value": value} for key, value in settings(site).items()],
        "resources": _resources(request),
        "volumeMounts": mounts,
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "subdomain": subdomain,
        "serviceAccountName": kubernetes.service_account,
        "nodeSelector": dict(kubernetes.node_selector),
        "affinity": _affinity(request),
        "tolerations": [{"key": key, "operator": "Exists"} for key in kubernetes.tolerate],
        "containers": [{key: value for key, value in container.items() if value or key == "env"}],
        "volumes": volumes,
    }
    metadata: Object = {"labels": {"app.kubernetes.io/instance": request.name}, "annotations": _rack_annotations(request)}
    return {
        "metadata": {key: value for key, value in metadata.items() if value},
        "spec": {key: value for key, value in spec.items() if value},
    }


# The first process of a container hears no signal that it does not ask for, so the shell hands them on.
SUPERVISED = """\
NODE={node} supervisor=
trap 'kill -TERM $supervisor' TERM
{command} &
supervisor=$!
until wait "$supervisor"; code=$?; ! kill -0 "$supervisor" 2> /dev/null; do :; done
if [ "$NODE" = 0 ] && [ "$code" -gt 0 ] && [ "$code" -lt 128 ]; then exit {over}; fi  # the run is over; after a signal it goes on
exit "$code"
"""


def _script(request: Request, node: str, address: str) -> str:
    """What a pod runs."""
    shape, port = request.shape, request.site.port or USUAL_PORT
    files = f"{PLAN_FOLDER}/{PLAN_FILE}", f"{SECRET_FOLDER}/{SECRET_FILE}"
    if request.keeps_going:
        command = _patient(request).supervised(*files, node='"$NODE"', address=address, port=port)
        return "\n".join([*request.site.setup, SUPERVISED.format(node=node, command=command, over=OVER)])
    command = request.torchrun(*files, num_nodes=shape.num_nodes, num_local=shape.ranks_per_node, node=node, address=address, port=port)
    return "\n".join([*request.site.setup, f"exec {command}", ""])


def _patient(request: Request) -> Request:
    """The request with time for pods to be placed and to fetch their image, unless the user gives one."""
    name = "--rendezvous-timeout"
    if any(word.partition("=")[0] == name for word in request.options):
        return request
    return replace(request, options=(*request.options, name, str(MEET_S)))


def _resources(request: Request) -> Object:
    kubernetes, shape = request.site.kubernetes, request.shape
    gpus = {kubernetes.gpu_resource: str(request.plan.cluster.accelerators_per_node)} if shape.needs_gpus else {}
    asked = {**gpus, **kubernetes.resources}
    return {"requests": asked, "limits": dict(asked)} if asked else {}


def _affinity(request: Request) -> Object:
    """Pods stay away from nodes on the list of bad ones, and a node has one pod of the job."""
    apart = {"labelSelector": {"matchLabels": {"app.kubernetes.io/instance": request.name}}, "topologyKey": "kubernetes.io/hostname"}
    found: Object = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    if request.excluded:
        away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(request.excluded)}
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [away]}]}}
    return found


def _volumes(request: Request) -> tuple[list[Object], list[Object]]:
    """The volumes of a pod, and where its container has them: plan, shared memory, and the site's mounts."""
    volumes: list[Object] = [
        {"name": "plan", "configMap": {"name": f"{request.name}-plan"}},
        {"name": "secret", "secret": {"secretName": f"{request.name}-secret", "defaultMode": 0o400}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": request.site.kubernetes.shared_memory}},
    ]
    mounts: list[Object] = [
        {"name": "plan", "mountPath": PLAN_FOLDER, "readOnly": True},
        {"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    for number, mount in enumerate(request.site.mounts):
        source, _, target = mount.partition(":")
        held = {"hostPath": {"path": source}} if source.startswith("/") else {"persistentVolumeClaim": {"claimName": source}}
        volumes.append({"name": f"mount-{number}", **held})
        mounts.append({"name": f"mount-{number}", "mountPath": target})
    return volumes, mounts
