"""`meshwright predict`: the record machine, all it prints for people and for programs, and what bad input gets."""

import io
import json
import re
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.describe.load import load_cluster
from meshwright.describe.recipe import recipes
from meshwright.job import Job
from meshwright.layout import Layouts, parse_layout
from meshwright.predict.footprint import PARTS as MEMORY_PARTS
from meshwright.predict.prediction import predict
from meshwright.predict.step import PARTS
from meshwright.units import seconds

NOUNS = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
FIXTURES = Path(__file__).parents[1] / "fixtures"
CORES_PROFILE, CALIBRATED = FIXTURES / "profile_of_cores.json", str(FIXTURES / "timer_every_step.log")
LAYOUT = "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1"
SMALL = ("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b", "--gpus", "64", "--layout", "tp=2")


@pytest.fixture
def verb():
    return "predict"


def test_the_record_machine_is_met(answer):
    document = answer(*NOUNS, "--layout", LAYOUT)
    assert document["step_s"] == pytest.approx(1.2704, rel=0.02)
    assert document["time_to_train_s"] / 60 == pytest.approx(7.07, rel=0.03)
    assert document["low_s"] < 1.2704 < document["high_s"]
    job = Job(*NOUNS)
    closed_form = predict(job, Layouts.of([job.layout(LAYOUT)]))
    assert document["step_s"] == pytest.approx(float(closed_form.step_s[0]), rel=0.005)


def test_json_holds_every_key_and_its_parts_add_up(answer):
    document = answer(*NOUNS, "--layout", LAYOUT)
    assert list(document["parts_s"]) == list(PARTS)
    assert sum(document["parts_s"].values()) == pytest.approx(document["step_s"])
    assert len(document["memory"]) == 8
    for stage in document["memory"]:
        assert sum(stage[f"{part}_bytes"] for part in MEMORY_PARTS) == pytest.approx(stage["peak_bytes"])
    assert document["tokens_per_s"] == pytest.approx(1024 * 8192 / document["step_s"])
    assert document["tokens_per_s_per_gpu"] == pytest.approx(document["tokens_per_s"] / 8192)
    assert (document["num_steps"], document["num_evaluations"]) == (324, 4)
    assert document["time_to_train_s"] == pytest.approx(324 * document["step_s"] + 4 * document["evaluation_s"])
    assert document["cost_usd"] == pytest.approx(8192 * document["time_to_train_s"] / 3600 * document["price"]["usd_per_accelerator_hour"])
    assert document["price"].items() >= {"provider": "azure", "kind": "on-demand", "date": "2025"}.items() and document["price"]["source"]
    assert document["facility_kwh"] == pytest.approx(1.17 * document["energy_kwh"])
    for low, middle, high in (
        ("low_s", "step_s", "high_s"),
        ("time_to_train_low_s", "time_to_train_s", "time_to_train_high_s"),
        ("cost_low_usd", "cost_usd", "cost_high_usd"),
        ("energy_low_kwh", "energy_kwh", "energy_high_kwh"),
        ("carbon_low_kg", "carbon_kg", "carbon_high_kg"),
        ("water_low_l", "water_l", "water_high_l"),
    ):
        assert document[low] < document[middle] < document[high]
    assert 0 < document["mfu"] <= document["hfu"] < 1 and "causal attention counted once" in document["mfu_formula"]
    assert document["placement"] == {"tp": ["rack"], "cp": ["rack"], "pp": ["rack"], "dp": ["fabric"]}
    assert set(document["evidence"]) == {"distance", "compared_with", "num_runs", "note"} and document["evidence"]["distance"] == "measured"
    assert (document["model"], document["cluster"], document["workload"]) == NOUNS
    assert (document["software"], document["layout"]["dp"], document["layout"]["mbs"]) == ("v6.0", 128, 1)
    assert str(parse_layout(document["layout"]["text"])) == document["layout"]["text"]


def test_software_of_no_class_may_be_asked_for(answer):
    known, unknown = (answer(*SMALL, "--software", name) for name in ("v5.1", "unknown"))
    assert unknown["software"] == "unknown" and unknown["evidence"]["distance"] == "far"
    assert unknown["high_s"] / unknown["step_s"] > known["high_s"] / known["step_s"]
    assert unknown["notes"][0].startswith("the software is of no class that was fitted: taken as the mean of ")


def test_dp_left_out_fills_the_machine(answer):
    whole, filled = answer(*NOUNS, "--layout", LAYOUT), answer(*NOUNS, "--layout", LAYOUT.replace("dp=128,", ""))
    assert filled == whole
    half = answer(*NOUNS, "--layout", "tp=4,cp=2,pp=8,vp=8", "--gpus", "4096")
    assert (half["layout"]["dp"], half["num_accelerators"]) == (64, 4096)


def test_options_change_the_job(answer):
    document = answer(
        *NOUNS,
        "--layout",
        LAYOUT,
        "--set",
        "workload.global_batch=2048",
        "--set",
        "workload.seq_len=4096",
        "--set",
        "workload.precision=mxfp8",
        "--software",
        "v5.1",
    )
    assert (document["workload"], document["seq_len"], document["global_batch"], document["precision"]) == (NOUNS[2], 4096, 2048, "mxfp8")
    assert document["software"] == "v5.1"
    document = answer(*NOUNS, "--layout", LAYOUT, "--provider", "coreweave", "--price-kind", "reserved", "--region", "norway")
    assert (document["price"]["usd_per_accelerator_hour"], document["region"]) == (4.2, "norway")
    assert document["water_l"] is None and document["unknown"] == {"water": "coreweave publishes no litres per kWh"}


@pytest.mark.parametrize("joined", [False, True], ids=["--batch 2048", "--batch=2048"])
def test_options_by_their_old_names_work_and_say_their_new_ones(run, answer, joined):
    asked = (*NOUNS, "--layout", LAYOUT, "--json")
    old = {"--batch": "2048", "--seq": "4096", "--precision": "mxfp8"}
    given = [f"{option}={value}" for option, value in old.items()] if joined else [word for pair in old.items() for word in pair]
    code, out, err = run(*asked, *given)
    keys = dict(zip(old, ("global_batch", "seq_len", "precision"), strict=True))
    new = [f"workload.{keys[option]}={value}" for option, value in old.items()]
    assert code == 0 and err == "".join(f"meshwright: {option} is now --set {key}\n" for option, key in zip(old, new, strict=True))
    assert json.loads(out) == answer(*asked[:-1], *(word for key in new for word in ("--set", key)))


def test_an_expert_degree_counts_the_replicas_that_fill_the_machine(answer):
    document = answer(
        "qwen3-30b-a3b",
        "hgx-b200-ndr",
        "pretrain-1t",
        "--layout",
        "ep=8,recompute=full",
        "--gpus",
        "64",
        "--set",
        "workload.global_batch=256",
    )
    assert (document["layout"]["dp"], document["layout"]["ep"]) == (64, 8)


def test_a_model_the_workload_was_not_made_for_is_remarked_on(answer):
    document = answer("llama-3.1-70b", *NOUNS[1:], "--layout", "tp=4,pp=4,vp=4,mbs=1", "--gpus", "512")
    assert document["notes"][-1] == f"{NOUNS[2]} is defined for llama-3.1-405b: its samples to the target are used for llama-3.1-70b too"


def test_a_batch_that_nobody_trained_with_gives_a_lower_bound(run, answer):
    arguments = (*NOUNS, "--layout", LAYOUT, "--set", "workload.global_batch=16384")
    document = answer(*arguments)
    assert (document["is_lower_bound"], document["batch_beyond_measured"], document["measured_batches"]) == (True, "above", [896, 1152])
    assert document["time_to_train_s"] > document["time_to_train_low_s"] and document["time_to_train_high_s"] is None
    assert document["cost_high_usd"] is None and "they are unknown" in document["notes"][-1]
    out = run(*arguments)[1]
    found = re.search(r"time to train +at least (.+?)  +no upper end, (.+?) at the predicted step time; at least 21 steps", out)
    assert found and found.groups() == (seconds(document["time_to_train_low_s"]), seconds(document["time_to_train_s"]))
    assert "measured at batches from 896 to 1,152 only" in out


SLOW_CORES = """\
accelerators_per_node = 1
[accelerator]
name = "slow cores"
vendor = "me"
architecture = "cpu"
memory_GB = 16
memory_GB_per_s = 10
dense_TFLOP_per_s = { bf16 = 0.001, tf32 = 0.001 }
power_cap_W = 20
[[tiers]]
name = "node"
link = "pcie-4"
num_accelerators = 1
"""


def test_an_mfu_above_its_peak_is_remarked_on(run, tmp_path):
    (tmp_path / "slow.toml").write_text(SLOW_CORES)
    code, out, err = run("llama-2m", str(tmp_path / "slow.toml"), "python-stdlib", "--layout", "mbs=4", "--profile", str(CORES_PROFILE))
    assert code == 0, err
    assert re.search(r"MFU +[\d.]+ % of a peak described too low", out)
    assert "is impossible: the peak described for slow cores" in " ".join(out.split())


TPUS = """\
accelerator = "tpu-v5p"
accelerators_per_node = 4
[[tiers]]
name = "pod"
link = "ici-v5p"
num_accelerators = 256
"""


def test_what_nobody_states_is_null_and_said_in_words(run, answer, tmp_path):
    (tmp_path / "pod.toml").write_text(TPUS)
    arguments = ("llama-3.1-8b", str(tmp_path / "pod.toml"), "pretrain-1t", "--layout", "tp=4", "--set", "workload.global_batch=256")
    document = answer(*arguments)
    assert [document[key] for key in ("energy_kwh", "facility_kwh", "carbon_kg", "water_l", "node_w")] == [None] * 5
    assert document["evidence"]["distance"] == "far"
    out = run(*arguments)[1]
    assert re.search(r"energy +unknown +power of tpu-v5p not stated by the vendor\n", out)
    assert "nan" not in out and "this job is far from the evidence" in " ".join(out.split())


def test_a_release_that_nobody_measured_is_reported_once_and_hides_nothing(answer):
    notes = answer(*NOUNS, "--layout", LAYOUT, "--software", "v9.9", "--set", "workload.precision=mxfp8")["notes"]
    assert notes == [
        "no run of v9.9 was fitted: taken as v6.0, its nearest relative",
        "large dense models in MLPerf rounds were measured, but not with gb200 mxfp8 v6.0",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", *NOUNS, "--set", "workload.precision=other"),
        ("predict", *NOUNS, "--layout", LAYOUT, "--set", "workload.precision=other"),
        ("sweep", *NOUNS, "--gpus", "8192", "--set", "workload.precision=other"),
        ("calibrate", CALIBRATED, "--model", NOUNS[0], "--cluster", NOUNS[1], "--layout", "tp=4", "--precision", "other"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_wrong_precision_names_every_one_and_help_says_how_to_choose(arguments, capsys):
    assert main(list(arguments)) == 2
    printed = capsys.readouterr().err
    assert all(re.search(rf"(?<![\w-]){name}(?![\w-])", printed) for name in recipes())
    assert main([arguments[0], "--help"]) == 0
    option = "--precision" if arguments[0] == "calibrate" else "workload.precision=fp8"
    assert option in capsys.readouterr().out


TEXT = """\
llama-3.1-405b on azure-gb200-128 (8,192 gb200), mlperf-llama31-405b
layout tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1 8 micro-batches, order tp-cp-pp-dp
interleaved schedule, ring context, TP overlap off, CUDA graphs on
step 1,024 x 8,192 tokens nvfp4, software v6.0 (submissions to a round of MLPerf Training, tuned for the record)
runs on megatron, bridge

answer
step time # s 80 % interval # s to # s
throughput # M tokens/s # tokens/s per accelerator
MFU # % HFU # %; causal attention counted once
time to train # min # min to # min; 324 steps, 4 evaluations of # s
cost $# $# to $#; azure on-demand, $27.04 per accelerator-hour (2025)
or $# coreweave reserved, $# coreweave on-demand
energy # kWh # kWh to # kWh; at the wall; hosts: 1,867 W per node, stated for azure-gb200-128
facility # kWh # kWh to # kWh; with PUE 1.17 (azure, 2025)
carbon # kg CO2e # kg CO2e to # kg CO2e; 369.473 g CO2e/kWh, grid of usa (2023, lifecycle)
water # l # l to # l; on site, 0.27 l/kWh (azure, 2025)

step
part seconds share
compute # ms # % #
exposed tp # ms # % #
exposed pp # us # %
exposed dp # ms # % #
bubble # ms # % #
optimizer # ms # % #
overhead # ms # % #
step # s 100.0 %

axes
axis ranks crosses exposed
tp 4 rack # ms
cp 2 rack 0 s
pp 8 rack # us
dp x cp 128 x 2 rack + fabric # ms

memory of gb200: 185.0 GiB, 3.7 GiB of it reserved
stage layers weights gradients optimizer activations loss buffers peak full peak at
0 (first) 15 # GiB # GiB # GiB # GiB # GiB # GiB # GiB # % backward of the embedding
1 (fullest) 16 # GiB # GiB # GiB # GiB # GiB # GiB # GiB # % first backward, warm-up over
7 (last) 15 # GiB # GiB # GiB # GiB # GiB # GiB # GiB # % loss

evidence: compared with # runs (#); this job is inside the evidence
"""


def test_the_record_machine_for_people(run):
    code, out, err = run(*NOUNS, "--layout", LAYOUT)
    assert (code, err) == (0, "")
    assert not re.search(r"\x1b|nan|inf\b", out)
    lines = (re.sub(" +", " ", line).strip() for line in out.split("\n"))
    for line, form in zip(lines, TEXT.split("\n"), strict=True):  # a fit changes the numbers: # stands for those
        assert re.fullmatch(re.escape(form).replace(r"\#", r"[^ ]+" if "runs" not in form else r".+"), line), (line, form)


def test_bars_are_plain_where_the_output_is(monkeypatch):
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", plain)
    assert main(["predict", *NOUNS, "--layout", LAYOUT]) == 0
    plain.flush()
    assert re.search(rb"compute .*%  #{20,}\n", plain.buffer.getvalue())


def test_help_names_every_option(run):
    code, out, _ = run("--help")
    assert code == 0
    for option in (
        "--layout",
        "--gpus",
        "workload.global_batch=",
        "workload.seq_len=",
        "workload.precision=",
        "--software",
        "--provider",
        "--price-kind",
        "--region",
        "--json",
    ):
        assert option in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-3.1-404b", *NOUNS[1:], "--layout", LAYOUT), "no model named 'llama-3.1-404b'.*did you mean llama-3.1-405b"),
        ((NOUNS[0], "azure-gb200", "mlperf-lama31", "--layout", LAYOUT), "no workload named 'mlperf-lama31'.*did you mean mlperf-llama31"),
        (("missing.toml", *NOUNS[1:], "--layout", LAYOUT), "cannot read missing.toml: No such file.*fix: +check the path"),
        ((*NOUNS, "--layout", "tp=4,cp=2,pp=8,dp=100"), "= 6400 accelerators, but .* has 8192 in use.*use dp=128, or --gpus 6400"),
        ((*NOUNS, "--layout", "tp=3,cp=2,pp=8"), "tp x cp x pp = 48 does not divide the 8192 accelerators.*--gpus 8160"),
        ((*NOUNS, "--layout", "tp=6,cp=2,pp=8,vp=8", "--gpus", "6144"), "tensor degree 6 does not divide 128 attention heads.*1, 2, 4"),
        ((*NOUNS, "--layout", "tp=4,cp=2,pp=8,vp=5"), "126 layers do not divide.*layout.*vp"),
        ((*NOUNS, "--layout", "tp=4,cp=2,pp=8,vp=8,mbs=3"), "= 384 does not divide the global batch 1024.*256, 512"),
        ((*NOUNS, "--layout", "tp=4,cp=2,pp=8,vp=8,mbs=-1"), "mbs is -1.*layout.micro_batch.*give 1 or more"),
        ((*NOUNS, "--layout", "tp=4,cq=2"), "cannot read 'cq=2' in the layout.*did you mean cp"),
        ((*NOUNS, "--layout", "tp=four"), "tp is 'four', not a whole number"),
        ((*NOUNS, "--layout", "tp=4,tp=2"), "tp is given twice"),
        ((*NOUNS, "--layout", "tp=4,dp"), "dp has no value in the layout.*write dp=2"),
        ((*NOUNS, "--layout", LAYOUT, "--gpu", "8"), "no option --gpu.*did you mean --gpus"),
        ((*NOUNS, "--layout", LAYOUT, "--gpus", "0"), "gpus is 0, not a whole number from 1"),
        ((*NOUNS, "--layout", LAYOUT, "--set", "workload.global_batch=-4"), "workload.global_batch is -4, not a whole number from 1 "),
        ((*NOUNS, "--layout", LAYOUT, "--set", "workload.global_batch=many"), "workload.global_batch is 'many', not a number"),
        (NOUNS, "--layout is missing"),
        ((*NOUNS[:2], "--layout", LAYOUT), "WORKLOAD is missing"),
        ((*NOUNS, "--layout", LAYOUT, "--set", "workload.precision=fp6"), "no precision named 'fp6'.*did you mean fp8"),
        ((*SMALL, "--set", "workload.precision=nvfp4"), "h100 has no fp4 tensor cores.*choose another precision"),
        ((*NOUNS, "--layout", LAYOUT, "--software", "profile.json"), "cannot read the software profile.*where: profile.json"),
        ((*NOUNS, "--layout", LAYOUT, "--software", "tensorflow"), "release 'tensorflow'.*unknown for software of no known class"),
        ((*NOUNS, "--layout", LAYOUT, "--provider", "azur"), "no provider named 'azur'.*did you mean azure"),
        ((*NOUNS, "--layout", LAYOUT, "--price-kind", "lease"), "no price kind named 'lease'.*on-demand, spot, reserved"),
        ((*NOUNS, "--layout", LAYOUT, "--region", "virgina"), "no region named 'virgina'.*did you mean virginia"),
        ((*NOUNS, "--layout", LAYOUT, "--cooling", "ice"), "no cooling by 'ice'.*air, liquid"),
    ],
    ids=lambda value: " ".join(value[3:]) if isinstance(value, tuple) else "",
)  # fmt: skip
@pytest.mark.parametrize("form", [(), ("--json",)], ids=("text", "json"))
def test_bad_input_is_one_message(run, arguments, message, form):
    code, out, err = run(*arguments, *form)
    assert (code, out) == (2, "")
    assert err.startswith("meshwright: ") and len(err.rstrip("\n").split("\n")) <= 3
    assert re.search(message, err, re.DOTALL), err


def test_a_layout_that_does_not_fit_says_by_how_much_and_where(run, answer):
    arguments = (*NOUNS, "--layout", "tp=4,cp=2,pp=1", "--gpus", "1024")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    found = re.match(r"meshwright: the layout needs ([\d,]+) bytes \([\d.]+ GiB\) more memory than gb200 has, on stage 0: ", err)
    assert found
    document = answer(*arguments, "--ignore-memory")  # it can be priced all the same
    room_bytes = load_cluster("azure-gb200-128").accelerator.room_bytes - 4e9  # what is reserved
    assert document["memory"][0]["peak_bytes"] - room_bytes == pytest.approx(float(found[1].replace(",", "")), abs=1)


def test_more_than_described_and_tensor_groups_over_the_fabric_are_remarked_on(answer):
    nouns = ("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t")
    document = answer(
        *nouns,
        "--gpus",
        "2048",
        "--set",
        "workload.global_batch=2048",
        "--layout",
        "tp=2,order=cp-pp-dp-tp,recompute=full",
        "--ignore-memory",
    )
    assert any("2,048 accelerators are more than the 1,024 described" in note for note in document["notes"])
    assert any("tp crosses the fabric, where its traffic is not overlapped" in note for note in document["notes"])
    document = answer(*nouns, "--gpus", "1024", "--set", "workload.global_batch=1024", "--layout", "tp=2,recompute=full", "--ignore-memory")
    assert not any("described" in note or "crosses" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("gpus", "layout", "message"),
    [
        ("9", "tp=1", "9 accelerators do not spread evenly over nodes of 8.*use 8 or 10"),
        ("16", "tp=3", "tp x cp x pp = 3 does not divide the 16 accelerators.*--gpus 15 or --gpus 18|--gpus 12 or --gpus 18"),
        ("16", "tp=1,dp=9", "= 9 accelerators, but .* has 16 in use.*use dp=16$"),
    ],
)
def test_a_fix_names_only_numbers_that_work(run, gpus, layout, message):
    code, _, err = run("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", "--gpus", gpus, "--layout", layout)
    assert code == 2 and re.search(message, err.rstrip("\n"), re.DOTALL), err


def test_a_precision_that_the_chip_lacks_can_be_replaced(answer):
    nouns = ("llama-3.1-405b", "dgx-h100-superpod", "mlperf-llama31-405b", "--gpus", "1024", "--layout", "tp=8,pp=32,mbs=1")
    assert answer(*nouns, "--set", "workload.precision=fp8")["precision"] == "fp8"
