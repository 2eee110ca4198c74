"""`meshwright plan`: what it prints for people and programs, the files it writes, and what bad input gets."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.cli.progress import progress_bar
from meshwright.layout import parse_layout
from meshwright.plan.plan import read_plan
from meshwright.predict.step import PARTS

SMALL_BATCHES = str(Path(__file__).parents[1] / "fixtures" / "small_batches.toml")
SMALL = ("llama-3.2-1b", "dgx-h100-superpod", SMALL_BATCHES, "--gpus", "16")
RECORD = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
STACK = "tp=4,cp=2,pp=8,zero=1,recompute=none,schedule=interleaved,cp_kind=ring"


@pytest.fixture
def verb():
    return "plan"


def test_json_holds_the_best_first_and_its_parts_add_up(answer):
    document = answer(*SMALL, "--keep", "3")
    plans = document["plans"]
    assert len(plans) == 3 and [p["step_s"] for p in plans] == sorted(p["step_s"] for p in plans)
    for plan in plans:
        assert {"tp", "cp", "pp", "vp", "dp", "ep", "mbs", "zero", "recompute", "schedule", "cp_kind", "order"} <= set(plan["layout"])
        assert list(plan["parts_s"]) == list(PARTS) and sum(plan["parts_s"].values()) == pytest.approx(plan["step_s"])
        assert plan["low_s"] <= plan["step_s"] <= plan["high_s"]
        assert plan["tokens_per_s"] == pytest.approx(32 * 2048 / plan["step_s"])
        assert 0 < plan["mfu"] < 1 and 0 < plan["peak_memory_bytes"] < 80e9
        assert min(plan["time_to_train_s"], plan["cost_usd"], plan["energy_kwh"], plan["carbon_kg"]) > 0
    assert min(document["num_layouts"], document["num_pruned"]) > 0 and document["num_unfit"] >= 0 and document["search_s"] > 0
    assert {"axes", "limit", "reasons", "changes"} == set(document["explanation"]) == set(plans[2]["explanation"])
    assert document["spares"] == {"domain": "node", "per_domain": 0, "num_installed": 8, "num_domains": 2, "total": 0}


def test_a_layout_in_json_is_one_that_predict_takes(answer, capsys):
    plan = answer(*SMALL, "--keep", "1")["plans"][0]
    layout = parse_layout(plan["layout"]["text"])
    assert (layout.tp, layout.dp, layout.micro_batch) == (plan["layout"]["tp"], plan["layout"]["dp"], plan["layout"]["mbs"])
    assert main(["predict", *SMALL, "--layout", plan["layout"]["text"], "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert predicted["step_s"] == plan["step_s"]


def test_the_record_machine_is_planned_as_it_was_run(answer):
    document = answer(*RECORD, "--layout", STACK, "--keep", "1")
    best = document["plans"][0]
    assert best["layout"]["dp"] == 128 and best["placement"] == {"tp": ["rack"], "cp": ["rack"], "pp": ["rack"], "dp": ["fabric"]}
    assert any("A replica is a rack" in reason for reason in document["explanation"]["reasons"])
    assert document["spares"] == {"domain": "rack", "per_domain": 8, "num_installed": 72, "num_domains": 128, "total": 1024}


def test_what_if_on_one_line_shows_the_change(answer):
    document = answer(
        *RECORD, "--layout", STACK, "--keep", "1", "--set", "fabric.planes=7", "--set", "gpus=7168", "--set", "workload.global_batch=896"
    )
    assert document["num_accelerators"] == 7168 and document["plans"][0]["layout"]["dp"] == 112
    slower = answer(*RECORD, "--layout", STACK, "--keep", "1", "--set", "fabric.planes=4")
    assert slower["plans"][0]["step_s"] > slower["without_set"]["step_s"]


def test_a_whole_domain_is_used_where_that_is_faster(answer):
    document = answer(
        *RECORD, "--gpus", "576", "--keep", "1", "--set", "workload.global_batch=72", "--no-explain", "--layout", "tp=4,cp=2,mbs=1"
    )
    assert document["spares"]["per_domain"] in (0, 8) and document["explanation"] is None
    assert document["num_machines"] >= 1


def test_the_size_is_chosen_and_the_front_shown(answer):
    cheap = answer(*SMALL[:3], "--max-gpus", "16", "--objective", "cost", "--pareto", "--keep", "1")
    front = cheap["pareto"]
    assert [p["cost_usd"] for p in front] == sorted((p["cost_usd"] for p in front), reverse=True)
    assert cheap["plans"][0]["cost_usd"] == pytest.approx(min(p["cost_usd"] for p in front))
    assert cheap["num_accelerators"] < front[0]["num_accelerators"] <= 16


def test_the_answer_comes_first_and_everything_has_its_unit(run):
    code, out, err = run(*SMALL, "--keep", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "llama-3.2-1b on dgx-h100-superpod (16 h100), small_batches" and lines[1].startswith("layout ")
    assert all(name in out for name in ("step time", "throughput", "memory", "time to train", "cost", "energy", "carbon", "spares"))
    for title in ("the 2 best by time", "why: what each axis carries", "what one change would gain", "ranks (the first 6 of 16)"):
        assert title in out
    last = next(i for i, line in enumerate(lines) if line.startswith("evidence: compared with "))
    assert "#2 against #1: " in out and "layouts priced" in lines[last - 1]
    assert "\x1b" not in out and max(map(len, lines)) <= 160


def test_no_explanation_where_none_is_wanted(run):
    _, out, _ = run(*SMALL, "--no-explain")
    assert "why:" not in out and "the 5 best by time" in out


def test_whole_layouts_are_printed_also_of_the_front(run, capsys):
    _, out, _ = run(*SMALL[:3], "--max-gpus", "16", "--pareto", "--no-explain", "--keep", "1")
    rows = [line.split() for line in out.splitlines() if re.match(r" *\d+  tp=\S+,schedule|  +\d+  tp=\S+,order=", line)]
    assert "time against cost" in out and len(rows) > 2
    assert all(parse_layout(text).num_ranks == int(size) and "order=" in text and "cuda_graphs=" in text for size, text in rows)
    assert main(["plan", *SMALL[:3], "--gpus", rows[0][0], "--layout", rows[0][1], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [plan["layout"]["text"] for plan in again["plans"]] == [rows[0][1]]


def test_a_front_on_racks_gives_all_that_predict_needs(run, capsys):
    racks = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
    options = ("--max-gpus", "1152", "--pareto", "--no-explain", "--keep", "1", "--stack", "any", "--layout", "tp=4,cp=2,mbs=1")
    _, out, _ = run(*racks, *options)
    rows = out[out.index("for --layout, whole") :].split("\n\n")[0].splitlines()[1:]
    told = [line.replace(",", "", line.split()[0].count(",")).split() for line in rows]
    assert any("rack.num_accelerators=72" in line for line in told)
    capsys.readouterr()
    assert main(["plan", *racks, *options, "--json"]) == 0
    front = json.loads(capsys.readouterr().out)["pareto"]
    for (size, text, *sets), point in zip(told, front, strict=True):
        assert sets[1:] == point["domain_sets"]
        assert main(["predict", *racks, "--gpus", size, "--layout", text, *sets, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step_s"] == point["step_s"]


AMD = """\
accelerator = "mi300x"
accelerators_per_node = 8
[[tiers]]
name = "node"
link = "xgmi-mi300x"
num_accelerators = 8
[[tiers]]
name = "fabric"
link = "roce-400"
num_accelerators = 64
"""


def test_limits_on_other_chips_say_how_far_the_interval_reaches(run, answer, tmp_path):
    (tmp_path / "amd.toml").write_text(AMD)
    asked = ("llama-3.1-8b", str(tmp_path / "amd.toml"), "pretrain-1t", "--gpus", "64", "--keep", "1", "--no-explain")
    free = answer(*asked)
    best = free["plans"][0]
    assert free["limits"] == [] and best["low_s"] < best["step_s"] < best["high_s"]  # never the low end of its interval
    assert best["high_s"] / best["step_s"] == pytest.approx(best["step_s"] / best["low_s"])
    days = best["time_to_train_s"] / 86400
    code, _, err = run(*asked, "--deadline", f"{0.9 * days:.4f}d")
    assert code != 0 and "past the deadline" in err
    kept = 1.01 * days
    (limit,) = answer(*asked, "--deadline", f"{kept:.4f}d")["limits"]
    assert limit["what"] == "deadline" and limit["predicted_s"] <= limit["allowed_s"] < limit["high_s"]
    assert not limit["is_sure"] and "holds at" in limit["text"] and "the interval reaches" in limit["text"]
    out = run(*asked, "--deadline", f"{kept:.4f}d")[1]
    assert f"deadline       {limit['text']}\n" in out


def test_every_file_is_written_whole(run, tmp_path):
    names = {"--out": "plan.json", "--rank-map": "ranks.csv", "--html": "page.html", "--trace": "trace.json", "--plot": "slide.svg"}
    files = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    code, out, _ = run(*SMALL, *files, "--export", f"megatron={tmp_path / 'args.sh'}", "--export", f"hostfile={tmp_path / 'hosts'}")
    assert code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names.values(), "args.sh", "hosts"])
    plan = read_plan(tmp_path / "plan.json")
    assert plan.layout.num_ranks == 16 and plan.step_s > 0
    with (tmp_path / "ranks.csv").open() as file:
        assert len(list(csv.reader(file))) == 17
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "weak scaling" in (tmp_path / "page.html").read_text() and (tmp_path / "slide.svg").read_text().startswith("<svg")
    assert "--tensor-model-parallel-size" in (tmp_path / "args.sh").read_text()
    assert f"wrote the plan: {tmp_path / 'plan.json'}" in out.replace("\n", "")


def test_an_interrupt_leaves_no_half_written_file(run, tmp_path, monkeypatch):
    def broken_off(fd):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", broken_off)
    assert run(*SMALL, "--trace", str(tmp_path / "trace.json")) == (130, "", "meshwright: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_search_writes_nothing(run, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.plan.search.price", interrupted)
    assert run(*SMALL, "--out", str(tmp_path / "plan.json"))[0] == 130
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_long_search_shows_its_progress_on_a_terminal_only(monkeypatch):
    monkeypatch.setattr("meshwright.cli.progress.PATIENCE_S", 0.0)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar() as report:
            report("8,192 accelerators", 3, 10)
        assert ("8,192 accelerators" in stream.getvalue()) == shown


def test_an_export_narrows_the_search_to_what_its_stack_runs_and_says_so(run, tmp_path):
    record = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", "--keep", "1", "--no-explain")
    code, out, _ = run(*record, "--export", f"megatron={tmp_path / 'args.sh'}")
    assert code == 0 and "interleaved" in out.splitlines()[1]
    assert "stack" in out and "megatron" in out.splitlines()[2]
    assert "--num-virtual-stages-per-pipeline-rank" in (tmp_path / "args.sh").read_text()


def test_all_exports_go_into_one_folder_and_what_a_stack_cannot_run_is_named(run, answer, tmp_path):
    folder = tmp_path / "launch"
    code, out, _ = run(*SMALL, "--export-dir", str(folder), "--layout", "tp=2,pp=2,schedule=interleaved,vp=2")
    written = sorted(path.name for path in folder.iterdir())
    assert code == 0 and {"megatron-args.sh", "hostfile", "rankfile", "environment.sh"} <= set(written)
    assert "not written, deepspeed: DeepSpeed has no interleaved schedule" in out and "deepspeed.json" not in written
    document = answer(*SMALL, "--export-dir", str(folder), "--layout", "tp=2,pp=2,schedule=interleaved,vp=2", "--keep", "1")
    assert sorted(entry["path"].rsplit("/", 1)[1] for entry in document["files"]) == written and "deepspeed" in document["not_exported"]


def test_nothing_is_written_where_a_stack_cannot_run_the_plan(run, tmp_path):
    files = ("--out", str(tmp_path / "plan.json"), "--export", f"megatron={tmp_path / 'args.sh'}")
    code, _, err = run(*SMALL, "--layout", "schedule=zero-bubble,pp=2", *files)
    assert code == 2 and "no zero-bubble schedule" in err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, what",
    [
        (("--set", "fabric.plans=7"), "did you mean fabric.planes"),
        (("--set", "fabric.GB_per_s=0"), "not a number from 1e-24 to 1e+24"),
        (("--layout", "tp=3"), "choose tp from 1, 2, 4, 8"),
        (("--layout", "tpp=2"), "cannot read 'tpp=2'"),
        (("--layout", "recompute=some"), "no recompute named 'some'"),
        (("--layout", "order=tp-cp"), "must name each of"),
        (("--objective", "speed"), "no objective named 'speed'"),
        (("--deadline", "soon"), "cannot read a duration"),
        (("--budget", "much"), "cannot read an amount of USD in 'much'"),
        (("--budget", "1USD"), "over the budget"),
        (("--deadline", "1s"), "no plan meets the limits"),
        (("--max-gpus", "8"), "given twice"),
        (("--headroom", "75"), "no layout fits"),
        (("--headroom", "76"), "leaves nothing of h100's"),
        (("--layout", "schedule=1f1b,vp=2"), "exclude each other with schedule=1f1b, vp=2"),
        (("--set", "workload.global_batch=99999999"), "more than the 10,000,000 that a step may have"),
        (("--set", "workload.global_batch=999999999999"), "not a whole number from 1 to 100,000,000"),
        (("--layout", "mbs=3"), "choose mbs from 1, 2, 4"),
        (("--layout", "first_stage_layers=99"), "leave first_stage_layers out"),
        (("--set", "fabric.GB_per_s=10", "--set", "fabric.GB_per_s=20"), "set twice"),
        (("--out", "same.json", "--trace", "same.json"), "named for both the plan and the trace"),
        (("--export-dir", "no-such-folder/files"), "cannot be a folder"),
        (("--export", "megatron=a.sh", "--export", "deepspeed=a.json", "--layout", "schedule=zero-bubble,pp=2"), "no zero-bubble"),
        (("--set", "workload.precision=nvfp4"), "no fp4 tensor cores"),
        (("--provider", "nobody"), "no provider named 'nobody'"),
        (("--region", "atlantis"), "no region named 'atlantis'"),
        (("--software", "v99x"), "cannot read a version"),
        (("--out", "no-such-folder/plan.json"), "no folder no-such-folder"),
        (("--rank-map", "ranks.txt"), ".csv or .json"),
        (("--plot", "slide.png"), ".svg"),
        (("--export", "slurm=x"), "no export named 'slurm'"),
        (("--export", "megatron"), "names no file"),
        (("--keep", "0"), "--keep is '0'"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(run, arguments, what):
    code, out, err = run(*SMALL, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("meshwright: ") and what in err and "Traceback" not in err
