"""Arguments and options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Model: a catalogue name, a TOML file or a Hugging Face config.json.")]
ClusterName = Annotated[str, typer.Argument(metavar="CLUSTER", help="Cluster: a catalogue name or a TOML file.")]
WorkloadName = Annotated[str, typer.Argument(metavar="WORKLOAD", help="Workload: a catalogue name or a TOML file.")]

Gpus = Annotated[
    int | None, typer.Option(metavar="N", help="Number of accelerators in use; default: the whole cluster.", show_default=False)
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one value of the cluster or the workload: fabric.planes=7, workload.global_batch=2048, workload.seq_len=8192, "
        "workload.precision=fp8. May be given several times.",
        show_default=False,
    ),
]
SoftwareName = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        help="How fast the software is: a release (v5.1, nemo-26.04), a class (megatron, fsdp), `unknown` for any other, or a profile made "
        "by `calibrate`. Default: the newest round for an MLPerf benchmark, otherwise megatron.",
    ),
]
StackName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Software that must be able to run the plan: megatron, bridge, torchtitan, deepspeed, meshwright or any. "
        "Default: one that can run the job.",
    ),
]
ProfileFile = Annotated[
    str,
    typer.Option(metavar="FILE", help="Hardware profile made by `measure`; `none` ignores this machine's own profile."),
]
Provider = Annotated[str, typer.Option(metavar="NAME", help="Cloud provider whose prices and data centre apply; default: the cluster's.")]
PriceKind = Annotated[str, typer.Option(metavar="KIND", help="Kind of price: on-demand, spot or reserved.")]
RegionName = Annotated[str, typer.Option(metavar="NAME", help="Region whose electricity grid applies; default: the cluster's.")]
Ideal = Annotated[
    bool, typer.Option("--ideal", help="Leave out the interruptions, restarts, checkpoints and spare nodes of runs of more than a day.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of text.")]
BaseModel = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The model beside which adapters were trained, if it was moved since.", show_default=False),
]
RunsDir = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run folders.")]
Budget = Annotated[
    str | None,
    typer.Option(metavar="USD", help="500USD: refuse to start if predicted to cost more, stop before more is spent.", show_default=False),
]
PriceGiven = Annotated[
    str | None, typer.Option(metavar="USD/H", help="2.5USD/h per accelerator, instead of the listed price.", show_default=False)
]
FixedLayout = Annotated[str, typer.Option(metavar="LAYOUT", help="tp=4,cp=2,...: fix these choices; the rest is searched.")]
