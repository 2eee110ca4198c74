"""Ranks agree before they train, or an error says which rank differs in what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch.distributed as dist
from small_run import Small, free_port, launched, make_corpus

from meshwright.errors import MeshwrightError
from meshwright.train.agreement import agree, check_shared, disagreement, facts_of, in_words, needs_shared_folder, ranks_in_words
from meshwright.train.job import TrainingJob
from meshwright.train.launch import Place, ReportedElsewhere


def on_ranks(num_ranks: int, body: Callable[[Place], None]) -> list[str]:
    """What every rank raised, as threads on one store; "" where it raised nothing."""
    store, raised = dist.HashStore(), [""] * num_ranks

    def run(rank: int) -> None:
        place = Place(rank=rank, num_ranks=num_ranks, local_rank=rank, num_local_ranks=num_ranks, store=store, secret=b"s" * 16, name="a")
        try:
            body(place)
        except MeshwrightError as error:
            raised[rank] = f"{type(error).__name__} {error.what}"

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def compared(*facts: Mapping[str, str]) -> list[str]:
    return on_ranks(len(facts), lambda place: agree(place, facts[place.rank]))


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_ranks_with_the_same_facts_agree(num_ranks: int) -> None:
    assert compared(*[{"a": "1"}] * num_ranks) == [""] * num_ranks


def test_a_rank_that_differs_is_named_with_what_differs() -> None:
    rate = "workload.training.learning_rate"
    raised = compared({rate: "0.0003"}, {rate: "0.0003"}, {rate: "0.0003"}, {rate: "0.001"})
    what = "the ranks would not train the same run: rank 3 has learning_rate 0.001, rank 0 has 0.0003"
    assert raised[0] == f"InputError {what}"
    assert raised[3] == f"ReportedElsewhere {what}" and all(one.startswith("ReportedElsewhere") for one in raised[1:3])


def test_what_one_rank_alone_finds_wrong_is_reported_by_rank_0() -> None:
    raised = on_ranks(3, lambda place: agree(place, {}, trouble="no corpus (/data)" if place.rank == 2 else ""))
    assert raised[0] == "InputError rank 2 cannot start, and rank 0 can: no corpus (/data)"


def test_many_differences_are_counted_and_choices_come_before_files() -> None:
    others = {1: {f"code of {i}.py": "x" for i in range(9)} | {"option seed": "1", "version of torch": "2.11"}}
    own = {f"code of {i}.py": "y" for i in range(9)} | {"option seed": "0", "version of torch": "2.13"}
    what = disagreement(own, others).what
    assert what.startswith("the ranks would not train the same run: rank 1 has seed 1, rank 0 has 0; rank 1 has version of torch 2.11")
    assert what.endswith("; and 6 more differences")


def test_words() -> None:
    assert ranks_in_words([3]) == "rank 3" and ranks_in_words([1, 2, 3]) == "ranks 1, 2 and 3"
    assert ranks_in_words(list(range(20))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"
    assert [in_words(key) for key in ("workload.global_batch", "layout.tp", "model.hidden", "option seed")] == [
        "global_batch", "layout tp", "model hidden", "seed",
    ]  # fmt: skip


def test_the_facts_of_a_job_are_those_that_decide_what_it_computes(small: Small) -> None:
    def facts(layout: str = "dp=2", **job: object) -> dict[str, str]:
        given = {"plan": small.plan(layout), "runs": Path("a"), "name": "n", "corpus": small.corpus, **job}
        return facts_of(TrainingJob(**given), "f" * 64)  # type: ignore[arg-type]

    def differs(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
        return {key for key in {*one, *other} if one.get(key) != other.get(key)}

    assert {"version of torch", "corpus", "code of train/loop.py", "workload.training.learning_rate", "option seed"} <= set(facts())
    assert differs(facts(), facts(seed=1)) == {"option seed"}
    assert differs(facts(), facts(runs=Path("/b"), corpus=Path("/c"))) == set()  # a node may have them elsewhere
    assert "workload.training.learning_rate" in differs(facts(), facts(plan=small.plan("dp=2", training={"learning_rate": 1.0})))
    assert "layout.dp" in differs(facts(), facts("tp=2"))


def test_a_shared_folder_is_proven_shared_and_nothing_is_left(tmp_path: Path) -> None:
    assert on_ranks(3, lambda place: check_shared(place, tmp_path / "runs")) == ["", "", ""]
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_that_is_not_shared_is_an_error(tmp_path: Path) -> None:
    raised = on_ranks(3, lambda place: check_shared(place, tmp_path / ("here" if place.rank < 2 else "there"), seen_s=0.1))
    assert raised[0] == "InputError the folder of runs is not shared: rank 2 does not see what rank 0 writes there"
    assert raised[1] == raised[2] == "ReportedElsewhere the folder of runs is not shared"
    assert list((tmp_path / "here").iterdir()) == []


def test_only_runs_that_save_or_continue_need_a_shared_folder(small: Small) -> None:
    job = TrainingJob(plan=small.plan("dp=2"), runs=Path("a"), name="n", corpus=small.corpus, saves_at_end=False)
    assert not needs_shared_folder(job)
    assert needs_shared_folder(TrainingJob(plan=small.plan("dp=2"), runs=Path("a"), name="n", corpus=small.corpus))


def test_reported_elsewhere_is_no_message_of_its_own() -> None:
    assert issubclass(ReportedElsewhere, MeshwrightError)


def both(tmp_path: Path, *arguments: list[str | Path]) -> tuple[list[int], list[str]]:
    """Exit statuses and errors of two ranks, each with arguments of its own."""
    port = free_port()
    given = ("--steps", "2", "--no-save", "--rendezvous-timeout", "60")
    commands = [launched(tmp_path, rank, port, *given, *arguments[rank]) for rank in (0, 1)]
    return [command.wait(120.0) for command in commands], [command.err for command in commands]


def test_a_node_with_another_learning_rate_does_not_join(small: Small, plan_of_two: Path, tmp_path: Path) -> None:
    other = small.plan_file(tmp_path / "other.json", "dp=2", training={"learning_rate": 1e-3})
    codes, errors = both(tmp_path, [plan_of_two], [other])
    assert codes == [2, 2] and errors[1] == ""
    assert errors[0].startswith("meshwright: the ranks would not train the same run: rank 1 has learning_rate 0.001, rank 0 has 0.003\n")


def test_a_node_with_another_corpus_does_not_join(plan_of_two: Path, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "made", seed=2)
    codes, errors = both(tmp_path, [plan_of_two], [plan_of_two, "--corpus", corpus])
    assert codes == [2, 2] and "rank 1 has corpus " in errors[0] and errors[1] == ""


def test_a_node_without_the_corpus_is_named(plan_of_two: Path, tmp_path: Path) -> None:
    codes, errors = both(tmp_path, [plan_of_two], [plan_of_two, "--corpus", tmp_path / "none"])
    assert codes == [2, 2] and errors[0].startswith("meshwright: rank 1 cannot start, and rank 0 can: ")


def test_ranks_with_one_secret_train_and_one_without_it_is_kept_out(plan_of_two: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name * 10)
        (tmp_path / name).chmod(0o600)
    codes, errors = both(tmp_path / "a", [plan_of_two, "--secret", tmp_path / "one"], [plan_of_two, "--secret", tmp_path / "one"])
    assert codes == [0, 0], errors
    codes, errors = both(
        tmp_path / "b",
        [plan_of_two, "--secret", tmp_path / "one", "--rendezvous-timeout", "3"],
        [plan_of_two, "--secret", tmp_path / "two", "--rendezvous-timeout", "3"],
    )
    assert codes == [2, 2] and "does not fit the secret of this job" in errors[0]
