"""Classes of software, and how releases run a mixture of experts."""

from dataclasses import replace

import pytest

from meshwright.describe.load import accelerator
from meshwright.predict.practice import Effects, ExpertConstants, ExpertPractice, class_of, expert_practice
from meshwright.predict.software import fitted_values, software


@pytest.mark.parametrize(
    ("release", "kind"),
    [
        ("v5.1", "mlperf"),
        ("nemo-26.04", "nemo"),
        ("torchtitan-2025.06", "torchtitan"),
        ("megatron-deepspeed-2023", "megatron"),
        ("primus-2025", "megatron"),
        ("fsdp", "fsdp"),
        ("meshwright", "meshwright"),
        ("vllm", ""),
    ],
)
def test_a_release_belongs_to_a_class(release: str, kind: str) -> None:
    assert class_of(release) == kind


def test_a_class_by_its_name_is_its_newest_release_or_has_effects_of_its_own() -> None:
    assert software("mlperf").release == "v6.0" and software("nemo").release == max(n for n in fitted_values().releases if "nemo" in n)
    ordinary = software("fsdp")
    assert ordinary.known and ordinary.kind == "fsdp" and ordinary.effects == fitted_values().classes["fsdp"]
    assert ordinary.effects.log_attention > 0.3  # kernels of an earlier generation than those of the record holders
    ours = software("meshwright")
    assert ours.known and ours.is_own and ours.effects == fitted_values().classes["meshwright"] and not ordinary.is_own


def test_a_class_without_runs_is_taken_as_its_relative() -> None:
    values = fitted_values()
    without = replace(values, classes={kind: one for kind, one in values.classes.items() if kind != "meshwright"})
    ours = without.software("meshwright")
    assert not ours.known and "taken as torchtitan" in ours.note and ours.effects == software("torchtitan").effects


def test_effects_of_software_and_chip_add_up_and_the_slower_host_counts() -> None:
    both = Effects(log_factor=0.1, log_attention=0.2, host_s=1e-3) + Effects(log_factor=0.2, log_memory=0.3, host_s=2e-3, tp_hidden=0.5)
    assert (both.log_factor, both.log_attention, both.log_memory) == pytest.approx((0.3, 0.2, 0.3))
    assert (both.host_s, both.tp_hidden) == (2e-3, 0.5)


@pytest.mark.parametrize(
    ("release", "chip", "precision", "graphs", "overlaps"),
    [
        ("nemo-26.06", "gb200", "mxfp8", "whole", True),
        ("nemo-26.06", "b300", "mxfp8", "attention", False),
        ("nemo-26.06.01", "b300", "mxfp8", "whole", True),
        ("nemo-26.06", "gb200", "bf16", "attention", False),
        ("nemo-26.02", "gb300", "mxfp8", "attention", False),
        ("nemo-25.11", "gb200", "bf16", "router", False),
        ("nemo-26.06", "h100", "fp8", "none", False),
        ("v6.0", "gb300", "mxfp8", "whole", True),
        ("v5.1", "gb300", "mxfp8", "router", False),
        ("fsdp", "h100", "bf16", "none", False),
    ],
)
def test_what_releases_do_with_experts(release: str, chip: str, precision: str, graphs: str, overlaps: bool) -> None:
    found = expert_practice(release, accelerator(chip), precision)
    assert (found.graphs, found.overlaps) == (graphs, overlaps)


def test_graphs_and_single_sending_take_waiting_away() -> None:
    constants = ExpertConstants(sync_s=1e-3, router_share=0.5, attention_share=0.1, all_to_all_s=2e-3, hidden=0.9, bias_bytes=60.0)

    def waits_s(practice: ExpertPractice) -> float:
        return constants.inputs(practice, has_biases=False)["expert_sync_s"]

    assert waits_s(ExpertPractice()) == pytest.approx(3e-3)
    assert waits_s(ExpertPractice(sends_once=True)) == pytest.approx(1e-3)
    assert waits_s(ExpertPractice("router", sends_once=True)) == pytest.approx(5e-4)
    assert waits_s(ExpertPractice("attention", sends_once=True)) == pytest.approx(1e-4)
    overlapped = ExpertPractice("whole", sends_once=True, overlaps=True, is_fused=True)
    priced = constants.inputs(overlapped, has_biases=True)
    assert priced["expert_hidden"] == 0.9 and priced["expert_mlp_bytes"] == 0.0
    assert constants.inputs(replace(overlapped, is_fused=False), has_biases=True)["expert_mlp_bytes"] == 60.0
