"""Jobs on a Kubernetes whose kubectl is a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING, WAITING, files_of
from meshwright.engines.job_folder import write_job
from meshwright.engines.kubernetes import Kubernetes
from meshwright.engines.site import Site
from meshwright.errors import InputError

KUBECTL = r"""
case "$*" in
  *can-i*) cat can;;
  *"get nodes"*) cat nodes;;
  *"get pods"*) cat pods;;
  *apply*|*create*) if [ -e refusal ] && [[ "$*" == *create\ --filename* ]]; then cat refusal >&2; exit 1; fi;;
  *" get "*) if [ -e job ]; then cat job; else echo 'Error from server (NotFound): x' >&2; exit 1; fi;;
  *exec*) tail -c +1 steps;;
esac"""


def node(name: str, gpus: int, **labels: str) -> dict:
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


def pod(index: int, phase: str, **status: object) -> dict:
    labels = {"batch.kubernetes.io/job-completion-index": str(index)}
    return {"metadata": {"name": f"p{index}", "labels": labels}, "spec": {"nodeName": f"n{index}"}, "status": {"phase": phase, **status}}


@pytest.fixture
def cluster(programs):
    programs.add("kubectl", KUBECTL)
    programs.write("can", "yes\n")
    programs.write("nodes", json.dumps({"items": [node(f"n{i}", 8) for i in range(4)]}))
    programs.write("pods", json.dumps({"items": []}))
    return programs


@pytest.fixture
def job(request_of):
    site = Site(container="a:1", mounts=["claim:/shared"], kubernetes={"namespace": "me"})
    request = request_of("replicas", site)
    write_job(request, files_of("kubernetes", request), "")
    return request


def engine(kind: str = "jobset") -> Kubernetes:
    return Kubernetes("first", kind, "me")


def test_a_job_is_checked_and_submitted(cluster, job):
    engine().check(job)
    assert engine().submit(job) == "first"
    assert [call.split()[2] for call in cluster.calls if "--filename" in call] == ["apply", "create"]
    assert f"create secret generic first-secret --from-file=secret={job.folder}/secret" in " ".join(cluster.calls)


@pytest.mark.parametrize(
    "name, text, what",
    [
        ("can", "no\n", "this user may not create jobsets.jobset.x-k8s.io in the namespace me"),
        ("can", "Warning: the server doesn't have a resource type 'jobsets'\nyes\n", "the cluster has no jobsets.jobset.x-k8s.io"),
        ("can", "", "Kubernetes does not answer: it ended with status 0"),
        (
            "can",
            "Warning: the server doesn't have a resource type 'jobsets'\n",
            "Kubernetes does not answer: Warning: the server doesn't have a resource type 'jobsets'",
        ),
        (
            "nodes",
            json.dumps({"items": [node("a", 8), node("b", 4), node("c", 8)]}),
            "2 of the cluster's 3 nodes have 8 nvidia.com/gpu, and the job asks for 4",
        ),
    ],
)
def test_a_cluster_that_could_never_run_the_job(cluster, job, name, text, what):
    cluster.write(name, text)
    with pytest.raises(InputError) as caught:
        engine().check(job)
    assert caught.value.what == what and not any("create --filename" in call for call in cluster.calls)


def test_no_kubectl(programs, job, monkeypatch):
    monkeypatch.setenv("PATH", str(programs.folder / "bin"))
    with pytest.raises(InputError, match="there is no Kubernetes here: the command kubectl is not found"):
        engine().check(job)


@pytest.mark.parametrize("text, fix, is_left", [("error: bad", "mend the site file", False), ("(AlreadyExists)", "delete it first", True)])
def test_what_is_refused_leaves_nothing_of_ours(cluster, job, text, fix, is_left):
    cluster.write("refusal", text)
    with pytest.raises(InputError) as caught:
        engine().submit(job)
    assert fix in caught.value.fix and any(" delete jobsets" in call for call in cluster.calls) is not is_left


def said(cluster, conditions=(), pods=()):
    status = [{"type": name, "status": "True", "message": message} for name, message in conditions]
    cluster.write("job", json.dumps({"status": {"conditions": status}}))
    cluster.write("pods", json.dumps({"items": list(pods)}))
    return engine().state("first")


def test_the_states_of_a_job(cluster):
    assert engine().state("first").phase == CANCELLED  # it is not there
    waits = said(cluster, pods=[pod(0, "Running"), pod(1, "Pending")])
    assert (waits.phase, waits.reason) == (WAITING, "1 of 2 pods run")
    runs = said(cluster, pods=[pod(0, "Running"), pod(1, "Running")])
    assert (runs.phase, runs.nodes) == (RUNNING, ("n0", "n1"))
    assert said(cluster, [("Suspended", "waits for quota")]).reason == "waits for quota"
    assert said(cluster, [("Completed", "all")]).phase == DONE
    failed = said(cluster, [("Failed", "too many restarts")])
    assert (failed.phase, failed.reason) == (FAILED, "too many restarts")


def test_a_job_goes_on_while_a_pod_of_it_is_replaced(cluster):
    one = engine()

    def now(*pods: dict):
        cluster.write("pods", json.dumps({"items": list(pods)}))
        return one.state("first")

    cluster.write("job", "{}")
    assert now(pod(0, "Running"), pod(1, "Running")).phase == RUNNING
    replaced = now(pod(0, "Running"), pod(1, "Failed"), pod(1, "Pending"))
    assert (replaced.phase, replaced.reason) == (RUNNING, "1 of 2 pods")
    assert now().phase == WAITING  # all were driven away: it waits to be admitted again


def test_why_a_pod_does_not_start_is_told(cluster):
    pulls = pod(0, "Pending", containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff"}}}])
    assert said(cluster, pods=[pulls]).reason == "0 of 1 pods run: ImagePullBackOff"
    waits = pod(0, "Pending", conditions=[{"reason": "Unschedulable", "message": "0/4 nodes are available"}])
    assert said(cluster, pods=[waits]).reason == "0 of 1 pods run: 0/4 nodes are available"


def test_files_are_read_in_the_first_pod(cluster):
    assert engine().read(Path("/runs/steps.jsonl"), 0) == b""
    cluster.write("pods", json.dumps({"items": [pod(1, "Running"), pod(0, "Running")]}))
    cluster.write("steps", "abc")
    assert engine().read(Path("/runs/steps.jsonl"), 5) == b"abc"
    assert 'exec p0 -- sh -c tail -c +6 "$0"' in cluster.calls[-1]


def test_everything_is_deleted(cluster):
    engine("job").cancel("first")
    assert [call.split()[3] for call in cluster.calls] == [
        "jobs.batch/first",
        "configmap/first-plan",
        "secret/first-secret",
        "service/first",
    ]
    assert engine().by_hand("first").startswith("kubectl --namespace=me delete jobsets.jobset.x-k8s.io/first")
