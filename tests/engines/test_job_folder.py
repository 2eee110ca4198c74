"""A job's folder: what it holds, and how ranks are placed in it once nodes are allocated."""

from __future__ import annotations

import pytest

from meshwright.engines.engine import files_of
from meshwright.engines.job_folder import Submitted, place, read_submitted, write_job
from meshwright.errors import InputError
from meshwright.plan.plan import read_plan
from meshwright.record.bad_nodes import BadNode, write_bad_nodes

TREE = "SwitchName=rack0 Level=0 Nodes=n0,n2\nSwitchName=rack1 Level=0 Nodes=n1,n[3-4]\n"


@pytest.fixture
def job(request_of):
    request = request_of("replicas")
    write_job(request, files_of("slurm", request), "port = 1\n")
    (request.folder / "allocated").write_text("n0\nn1\nn2\nn3\nn4\n")
    (request.folder / "topology").write_text(TREE)
    return request


def test_the_folder_has_all_that_a_job_needs_for_its_user_alone(job):
    assert {path.name for path in job.folder.iterdir()} == {
        "plan.json",
        "site.toml",
        "job.sbatch",
        "supervisor.sh",
        "watch.sh",
        "spare.sbatch",
        "secret",
        "allocated",
        "topology",
    }
    assert len((job.folder / "secret").read_text().strip()) == 64 and (job.folder / "secret").stat().st_mode & 0o777 == 0o600
    assert job.folder.stat().st_mode & 0o777 == 0o700
    assert read_plan(job.folder / "plan.json") == job.plan


def test_ranks_are_placed_on_what_was_allocated(job):
    found = place(job.folder)
    assert found.seating.hosts == ("n0", "n2", "n1", "n3") and found.seating.spares == ("n4",)
    assert found.plan == job.plan and found.change == ""
    assert (job.folder / "nodes").read_text().split() == ["n0", "n2", "n1", "n3", "n4"]
    assert (job.folder / "hosts").read_text().splitlines()[::8] == ["n0", "n2", "n1", "n3"]
    assert read_plan(job.folder / "placed.json") == job.plan
    assert (job.folder / "ranks.csv").read_text().startswith("rank,host,rack,slot")
    assert (job.folder / "placing.txt").read_text() == f"{found.seating.words}\n"


def test_a_node_that_the_doctor_found_bad_is_left_out(job):
    write_bad_nodes(job.folder / "bad-nodes.json", [BadNode(node="n3", date="", reasons=())])
    assert place(job.folder).seating.hosts == ("n0", "n2", "n1", "n4")


def test_the_racks_of_the_site_file_count_before_slurms(job):
    (job.folder / "site.toml").write_text('racks = { a = "n[0-1]", b = "n[2-3]" }')
    assert place(job.folder).seating.hosts == ("n0", "n1", "n2", "n3")


def test_without_a_topology_the_order_counts(job):
    (job.folder / "topology").unlink()
    assert place(job.folder).seating.hosts == ("n0", "n1", "n2", "n3")


def test_outside_of_a_job_the_error_says_so(job):
    (job.folder / "allocated").unlink()
    with pytest.raises(InputError, match="allocated is missing"):
        place(job.folder)


def test_what_was_submitted_is_kept(job):
    assert read_submitted(job.folder) is None
    Submitted(engine="slurm", job="17").write(job.folder)
    assert read_submitted(job.folder) == Submitted(engine="slurm", job="17")
    (job.folder / "job.json").write_text("[]")
    assert read_submitted(job.folder) is None
