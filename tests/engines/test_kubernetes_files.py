"""Manifests, checked with the published schemas: kubernetes-validate, and Kubeflow's models of JobSet and TrainJob.

Kubeflow's models drop fields that they do not know: an object that comes back as it went in has none.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from meshwright.engines import kubernetes_files as made
from meshwright.engines.kubernetes_files import kubernetes_files
from meshwright.engines.site import Site
from meshwright.errors import InputError

KUBERNETES = ("1.31.0", "1.37.0")
BASE = {"container": "ghcr.io/a/b:1", "mounts": ["claim:/shared", "/scratch:/scratch"], "environment": {"A": "b"}}
RACK = "cloud.provider.com/topology-rack"


def site(**kubernetes) -> Site:
    return Site(**BASE, network_interface="eth0", kubernetes=kubernetes)


def objects(request) -> list[dict]:
    return [one for file in kubernetes_files(request) for one in yaml.safe_load_all(file.text)]


def check_core(value: dict, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    validate(value, version, strict=True)


def model_of(kind: str):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    return {"JobSet": models.JobsetV1alpha2JobSet, "TrainJob": models.TrainerV1alpha1TrainJob}[kind]


def is_known(value: dict) -> bool:
    """Whether a custom resource has only known fields, of the right types."""
    return model_of(value["kind"]).from_dict(value).to_dict() == value


KUEUE = {"queue": "q", "priority": "p", "topology": "kueue", "rack_label": RACK}
SITES = {
    "job": site(kind="job", node_selector={"x": "y"}, service_account="me", resources={"rdma/hca": "8"}),
    "job by kueue": site(kind="job", **KUEUE),
    "jobset": site(),
    "jobset by kueue": site(**KUEUE),
    "jobset, exclusive": site(topology="exclusive", rack_label=RACK),
    "trainjob": site(kind="trainjob", node_selector={"x": "y"}, service_account="me"),
    "trainjob by kueue": site(kind="trainjob", **KUEUE),
}


@pytest.mark.parametrize("plan", ["racks", "replicas", "cores"])
@pytest.mark.parametrize("name", SITES)
def test_every_manifest_has_known_fields_only(request_of, name, plan):
    for value in objects(request_of(plan, SITES[name], excluded=("bad0",), options=("--steps", "3"))):
        if value["kind"] in ("JobSet", "TrainJob"):
            assert is_known(value)
        else:
            for version in KUBERNETES:
                check_core(value, version)
        if value["kind"] == "JobSet":  # its child must also be a valid Job
            child = value["spec"]["replicatedJobs"][0]["template"]["spec"]
            check_core({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": child}, KUBERNETES[-1])


def test_the_check_finds_a_misspelt_field(request_of):
    *_, jobset = objects(request_of(site=SITES["jobset"]))
    jobset["spec"]["replicatedJobs"][0]["replicaz"] = 2
    assert not is_known(jobset)
    *_, job = objects(request_of(site=SITES["job"]))
    job["spec"]["parallelizm"] = 2
    pytest.importorskip("kubernetes_validate")
    with pytest.raises(Exception, match="parallelizm"):
        check_core(job, KUBERNETES[-1])


def test_kueue_keeps_each_group_of_pods_in_a_rack(request_of):
    *_, job = objects(request_of(site=SITES["job by kueue"]))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert job["spec"]["template"]["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-slice-required-topology": RACK,
        "kueue.x-k8s.io/podset-slice-size": "16",
    }
    *_, trainjob = objects(request_of(site=SITES["trainjob by kueue"]))
    patch = trainjob["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    assert patch["template"]["spec"]["template"]["metadata"]["annotations"]["kueue.x-k8s.io/podset-slice-size"] == "16"
    assert trainjob["spec"]["trainer"]["numNodes"] == 32


def test_one_group_is_one_rack(plans, request_of, monkeypatch):
    from meshwright.engines.shape import Shape

    request = request_of("replicas", SITES["jobset by kueue"])
    whole = Shape(plan=plans["replicas"], sizes=(8, 8, 8, 8), group="replica", group_nodes=4, spares_per_group=0)
    monkeypatch.setitem(request.__dict__, "shape", whole)
    *_, jobset = objects(request)
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-required-topology": RACK}


def test_exclusive_placement_has_a_child_for_each_rack_and_numbers_pods_through(request_of):
    *_, jobset = objects(request_of(site=SITES["jobset, exclusive"]))
    assert jobset["metadata"]["annotations"] == {made.EXCLUSIVE: RACK}
    nodes = jobset["spec"]["replicatedJobs"][0]
    assert nodes["replicas"] == 2 and nodes["template"]["spec"]["completions"] == 16
    container = nodes["template"]["spec"]["template"]["spec"]["containers"][0]
    assert container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['jobset.sigs.k8s.io/job-index']"
    script = container["command"][2]
    assert "--master-addr=first-nodes-0-0.first" in script
    shell = script.replace("exec python3", "echo")
    found = subprocess.run(["bash", "-c", shell], env={"JOB_INDEX": "1", "JOB_COMPLETION_INDEX": "3"}, text=True, capture_output=True)
    assert "--node-rank=19 " in found.stdout and "--nnodes=32" in found.stdout


def test_a_pod_has_its_plan_its_gpus_and_its_mounts(request_of):
    plan, _, job = objects(request_of(site=SITES["job"], excluded=("bad0",)))
    assert plan["kind"] == "ConfigMap" and '"model"' in plan["data"]["plan.json"]
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "rdma/hca": "8"}
    assert {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"} in container["env"] and {"name": "A", "value": "b"} in container["env"]
    assert {one["mountPath"] for one in container["volumeMounts"]} == {
        "/etc/meshwright",
        "/run/meshwright",
        "/dev/shm",
        "/shared",
        "/scratch",
    }
    assert {"name": "mount-0", "persistentVolumeClaim": {"claimName": "claim"}} in pod["volumes"]
    assert pod["subdomain"] == "first"
    away = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
    assert away["matchExpressions"][0] == {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["bad0"]}
    *_, on_cores = objects(request_of("cores", SITES["jobset"]))
    assert "resources" not in on_cores["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    "site_, more, what, fix",
    [
        (Site(), {}, "a pod needs a container image", 'add container = "IMAGE"'),
        (site(), {"name": "My Run"}, "Kubernetes cannot name an object 'My Run'", "--name my-run"),
        (site(), {"name": "8b"}, "Kubernetes cannot name an object '8b'", "--name run-8b"),
        (site(), {"runs": Path("/home/me/runs")}, "the run folder /home/me/runs is in no mounted folder", "/shared or /scratch"),
        (site(), {"runs": Path("/sharedx")}, "the run folder /sharedx is in no mounted folder", "/shared or /scratch"),
        (site(), {"hosts": ("a",)}, "Kubernetes chooses the nodes itself", "kubernetes.node_selector"),
        (site(topology="exclusive"), {}, "racks can only be kept if their label is known", "rack_label"),
        (site(topology="exclusive", rack_label="a", kind="job"), {}, "a job has no exclusive placement", 'kind = "jobset"'),
        (site(topology="kueue", rack_label="a"), {}, "Kueue needs a queue", "queue"),
    ],
)
def test_what_pods_cannot_be_is_refused(request_of, site_, more, what, fix):
    with pytest.raises(InputError) as caught:
        kubernetes_files(request_of("racks", site_, **more))
    assert caught.value.what.startswith(what) and fix in caught.value.fix


def test_nodes_used_in_part_and_plans_that_are_too_large_are_refused(plans, request_of, monkeypatch):
    from meshwright.engines.shape import Shape

    request = request_of("racks", site())
    uneven = Shape(plan=plans["racks"], sizes=(4, 2), group="", group_nodes=1, spares_per_group=0)
    monkeypatch.setitem(request.__dict__, "shape", uneven)
    with pytest.raises(InputError, match="uses some nodes in part"):
        kubernetes_files(request)
    monkeypatch.setattr(made, "MOST_PLAN_BYTES", 100)
    with pytest.raises(InputError, match="a ConfigMap holds 100"):
        kubernetes_files(request_of("racks", site()))
