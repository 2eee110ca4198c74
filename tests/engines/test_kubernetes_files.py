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


LAST = {"JOB_INDEX": "1", "JOB_COMPLETION_INDEX": "3"}
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
    assert "--meet first-nodes-0-0.first:29500" in script
    found = subprocess.run(["bash", "-c", script.replace("python3", "echo")], env=LAST, text=True, capture_output=True)
    assert "--nodes 32 --node 19 " in found.stdout
    *_, whole = objects(request_of(site=Site(**{**dict(SITES["jobset, exclusive"]), "restarts": 0})))
    script = whole["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    found = subprocess.run(["bash", "-c", script.replace("exec python3", "echo")], env=LAST, text=True, capture_output=True)
    assert "--node-rank=19 " in found.stdout and "--nnodes=32" in found.stdout and "first-nodes-0-0.first" in found.stdout


def test_a_pod_that_is_lost_is_replaced_alone_and_the_first_one_ends_the_job(request_of):
    *_, job = objects(request_of(site=SITES["job"]))
    spec = job["spec"]
    assert (
        spec["backoffLimitPerIndex"] == 3 and "backoffLimit" not in spec and spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    )
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore", "FailJob", "FailIndex"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # the policy of failed pods demands it
    *_, jobset = objects(request_of(site=SITES["jobset"]))
    child = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert child["podFailurePolicy"] == spec["podFailurePolicy"] and jobset["spec"]["successPolicy"]["operator"] == "Any"
    assert jobset["spec"]["failurePolicy"] == {
        "maxRestarts": 3, "rules": [{"name": "over", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }  # fmt: skip


def test_all_pods_start_again_where_replicas_cannot_come_and_go(request_of):
    *_, job = objects(request_of(site=Site(**{**dict(SITES["job"]), "restarts": 0})))
    assert job["spec"]["backoffLimit"] == 96 and not {"backoffLimitPerIndex", "podFailurePolicy", "successPolicy"} & set(job["spec"])
    text = kubernetes_files(request_of(site=Site(**{**dict(SITES["jobset"]), "restarts": 0})))[1].text
    assert "torch.distributed.run" in text and "# After a fault the job ends, because restarts = 0 in the site file." in text


def test_pods_wait_for_others_as_long_as_a_cluster_may_need_unless_the_user_says_otherwise(request_of):
    def script(*options: str) -> str:
        *_, job = objects(request_of(site=SITES["job"], options=options))
        return str(job["spec"]["template"]["spec"]["containers"][0]["command"][2])

    assert "--rendezvous-timeout 600 --keep-going" in script()
    assert "--rendezvous-timeout=5 --keep-going" in script("--rendezvous-timeout=5") and "600" not in script("--rendezvous-timeout=5")


@pytest.mark.parametrize(
    "node, ends, code", [(0, "exit 0", 0), (0, "exit 1", 3), (0, "exit 2", 3), (0, "kill -9 $$", 137), (5, "exit 1", 1), (5, "exit 2", 2)]
)
def test_only_the_supervisor_that_leads_says_how_the_job_ends(tmp_path, node, ends, code):
    (tmp_path / "supervisor").write_text(ends)
    script = made.SUPERVISED.format(node=node, command=f"bash {tmp_path}/supervisor", over=made.OVER)
    assert subprocess.run(["bash", "-c", script], capture_output=True).returncode == code


def test_a_pod_that_is_asked_to_stop_waits_until_its_supervisor_has_saved(tmp_path):
    (tmp_path / "supervisor").write_text("trap 'sleep 0.5; echo saved; exit 0' TERM\necho up\nwhile true; do sleep 0.1; done")
    script = made.SUPERVISED.format(node=0, command=f"bash {tmp_path}/supervisor", over=made.OVER)
    pod = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert pod.stdout is not None and pod.stdout.readline() == "up\n"
    pod.terminate()
    with pod.stdout:
        assert pod.wait(20) == 0 and pod.stdout.read() == "saved\n"


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
