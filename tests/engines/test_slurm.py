"""Jobs on a Slurm whose commands are scripts."""

from __future__ import annotations

import pytest

from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING, WAITING, State, files_of
from meshwright.engines.job_folder import write_job
from meshwright.engines.site import Site
from meshwright.engines.slurm import Slurm, has_gres
from meshwright.errors import InputError


def on(partition: str = "low", **more) -> Site:
    return Site(slurm={"partition": partition, **more})


def test_a_job_that_could_run_is_let_through_and_submitted(slurm, request_of):
    request = request_of("replicas", on())
    write_job(request, files_of("slurm", request), "")
    engine = Slurm()
    engine.check(request)
    assert engine.submit(request) == "17" and engine.by_hand("17") == "scancel 17"
    assert (slurm.folder / "script").read_text().startswith("#!/bin/bash\n# Made by meshwright launch.")


@pytest.mark.parametrize(
    "site, more, what, fix",
    [
        (on("lwo"), {}, "Slurm has no partition 'lwo'", "did you mean low?"),
        (on(), {"num_spares": 1}, "partition low has 4 nodes, and the job asks for 5 (4 and 1 to spare)", "ask for fewer spares"),
        (on(), {"excluded": ("n2",)}, "partition low has 3 nodes, and the job asks for 4", "plan for fewer"),
        (
            on(gres="gpu:h100:8"),
            {},
            "0 of the 4 nodes of partition low have gpu:h100:8, and the job asks for 4",
            "the nodes have gpu:h200:8",
        ),
        (on(), {"hosts": ("n0", "n1", "n2", "n9")}, "Slurm has no node 'n9' there", "did you mean"),
    ],
)
def test_a_job_that_could_never_run_is_not_submitted(slurm, request_of, site, more, what, fix):
    with pytest.raises(InputError) as caught:
        Slurm().check(request_of("replicas", site, **more))
    assert caught.value.what == what and fix in caught.value.fix
    assert not any(call.startswith("sbatch") for call in slurm.calls)


def test_a_partition_that_slurm_hides_from_this_user_is_said_to_be_closed_to_it(programs, request_of):
    programs.add("sinfo", '[ "$1" = --all ] && echo low || true')
    for site, what in ((on(), "this user may not use Slurm's partition 'low'"), (Site(), "Slurm has no partition that this user may use")):
        with pytest.raises(InputError) as caught:
            Slurm().check(request_of("replicas", site))
        assert caught.value.what == what and "ask the operators" in caught.value.fix


def test_a_slurm_that_is_not_there_or_does_not_answer(programs, request_of, monkeypatch):
    with monkeypatch.context() as nowhere, pytest.raises(InputError, match="there is no Slurm here"):
        nowhere.setenv("PATH", str(programs.folder / "bin"))  # the machine may have a Slurm of its own
        Slurm().check(request_of("replicas"))
    programs.add("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(InputError, match="Slurm does not answer: slurm_load_partitions: Unable to contact"):
        Slurm().check(request_of("replicas"))


@pytest.mark.parametrize(
    "text, what",
    [
        ("sbatch: error: invalid partition specified: x", "Slurm refused the job: the partition does not exist"),
        (
            "sbatch: error: Batch job submission failed: Access/permission denied",
            "Slurm refused the job: Slurm does not let this user submit",
        ),
        (
            "sbatch: error: Invalid account or account/partition combination",
            "Slurm refused the job: this user may not use the account, or the account not the partition",
        ),
        (
            "sbatch: error: Requested node configuration is not available",
            "Slurm refused the job: no nodes are as the job asks",
        ),
        ("sbatch: error: something new", "Slurm refused the job"),
    ],
)
def test_what_sbatch_refuses_is_told_in_plain_words(slurm, request_of, text, what):
    slurm.write("refusal", text)
    with pytest.raises(InputError) as caught:
        Slurm().submit(request_of("replicas"))
    assert caught.value.what == what and caught.value.where == text


def test_the_place_in_the_queue_is_told(slurm):
    slurm.write("states", "PENDING|Priority|low|\n")
    slurm.write("pending", "9\n12\n17\n20\n")
    assert Slurm().state("17") == State(phase=WAITING, reason="PENDING (Priority)", position=(3, 4))


@pytest.mark.parametrize(
    "text, phase", [("RUNNING", RUNNING), ("COMPLETED", DONE), ("CANCELLED", CANCELLED), ("TIMEOUT", FAILED), ("NODE_FAIL", FAILED)]
)
def test_the_states_of_slurm(slurm, text, phase):
    slurm.write("states", f"{text}|None|low|n[0-1]\n")
    assert Slurm().state("17") == State(phase=phase, reason=text, nodes=("n0", "n1"))


def test_a_job_that_the_queue_forgot_is_looked_up(slurm):
    slurm.write("states", "\n")
    assert Slurm().state("17") == State(phase=FAILED, reason="Slurm no longer knows the job")
    slurm.add("scontrol", "echo 'JobId=17 JobState=TIMEOUT Reason=x'")
    assert Slurm().state("17") == State(phase=FAILED, reason="TIMEOUT")
    slurm.write("account", "CANCELLED by 0\n")
    assert Slurm().state("17").phase == CANCELLED


def test_a_job_is_cancelled(slurm):
    Slurm().cancel("17")
    assert slurm.calls == ["scancel 17"] and Slurm().state("17").phase == CANCELLED


@pytest.mark.parametrize(
    "text, wanted, has",
    [
        ("gpu:h200:8(S:0-1)", "gpu:8", True),
        ("gpu:h200:8", "gpu:h200:4", True),
        ("gpu:h200:4", "gpu:8", False),
        ("gpu:h100:8", "gpu:h200:8", False),
        ("gpu:4,gpu:4", "gpu:8", True),
        ("(null)", "gpu", False),
        ("gpu:1", "gpu", True),
        ("(null)", "none", True),
    ],
)
def test_what_a_node_has(text, wanted, has):
    assert has_gres(text, wanted) is has
