"""The batch script of a job on Slurm.

The script first puts the ranks on the nodes that Slurm has allocated (`meshwright launch --place`): their names are known only then. It
starts one supervisor a node where replicas may come and go (`slurm_supervisors`), and otherwise one task a rank, with the arbitrary
distribution of a host file, so that every rank is where the plan has it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from meshwright.engines.hostlist import folded
from meshwright.engines.request import (
    ALLOCATED_FILE,
    BAD_FILE,
    HOSTS_FILE,
    OUTPUT_FILE,
    PLACED_FILE,
    PLACING_FILE,
    PLAN_FILE,
    SECRET_FILE,
    TOPOLOGY_FILE,
    JobFile,
    Request,
    comments,
    exports,
)
from meshwright.engines.slurm_supervisors import (
    SPARE_FILE,
    SUPERVISOR_FILE,
    WATCH_FILE,
    spare_script,
    supervised,
    supervisor_script,
    watch_script,
)
from meshwright.errors import InputError
from meshwright.plan.export.heading import origin

SCRIPT_FILE, REFUSED_FILE = "job.sbatch", "refused"
SAVE_S = 60  # Slurm asks the ranks to save and stop so long before the time limit
FIRST_PORT, NUM_PORTS = 20000, 10000

# One task a rank. Slurm's names become those that torch reads; how many ranks share a node is counted in the host file.
RANKS = """\
start() {  # HOSTS COMMAND: one process for each line of the file HOSTS
  local hosts=$1 first; shift
  first=$(head -n 1 "$hosts")
  export SLURM_HOSTFILE=$hosts MASTER_PORT=$PORT MASTER_ADDR=ADDRESS
  srun --distribution=arbitrary --ntasks="$(wc -l < "$hosts")" --nodes="$(sort -u "$hosts" | wc -l)"OPTIONS \\
    --kill-on-bad-exit=1 --export=ALL bash -c '
      RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
      LOCAL_WORLD_SIZE=$(grep -cx "$SLURMD_NODENAME" "$SLURM_HOSTFILE")
      export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
      trap : TERM  # the rank gets it too, and saves
      code=0; "$@" || code=$?
      if [ "$code" = 2 ]; then touch "$REFUSED"; fi  # wrong input stays wrong
      exit "$code"' rank "$@"
}"""


def slurm_files(request: Request) -> list[JobFile]:
    """The batch script, and what it starts on each node."""
    script = JobFile(SCRIPT_FILE, batch_script(request))
    if not request.keeps_going:
        return [script]
    return [
        script,
        JobFile(SUPERVISOR_FILE, supervisor_script(request)),
        JobFile(WATCH_FILE, watch_script(request)),
        JobFile(SPARE_FILE, spare_script(request, spare_options(request), _step_options(request))),
    ]


def batch_script(request: Request) -> str:
    """The script that sbatch is given."""
    site, folder = request.site, request.folder
    python, where = (
        shlex.quote(site.python),
        {name: shlex.quote(str(folder / name)) for name in (ALLOCATED_FILE, TOPOLOGY_FILE, HOSTS_FILE)},
    )
    port = str(site.port) if site.port else f"$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))"
    lines = [
        "#!/bin/bash",
        *comments(["Made by meshwright launch.", *origin(request.plan), request.shape.words, request.after_a_fault]),
        *(f"#SBATCH {option}" for option in sbatch_options(request)),
        "",
        "set -euo pipefail",
        *exports(site),
        f"PORT={port}",
        *(_start(request) if site.examine or not request.keeps_going else []),
        "",
        f"rm -f {shlex.quote(str(folder / PLACING_FILE))}  # of an earlier start, on other nodes",
        f'scontrol show hostnames "$SLURM_JOB_NODELIST" > {where[ALLOCATED_FILE]}',
        f"scontrol show topology > {where[TOPOLOGY_FILE]} 2>/dev/null || true",
        *(_examination(request) if site.examine else []),
        f"{python} -m meshwright launch --on slurm --place {shlex.quote(str(folder))}",
        *(supervised(request, _step_options(request), _address(request)) if request.keeps_going else _trained(request)),
    ]
    return "\n".join([*lines, ""])


def _trained(request: Request) -> list[str]:
    """Lines that train with one task a rank."""
    folder = request.folder
    words = [request.site.python, *request.train(str(folder / PLACED_FILE), str(folder / SECRET_FILE))]
    return _attempts(request.site.restarts, f"start {shlex.quote(str(folder / HOSTS_FILE))} {shlex.join(words)}")


def _attempts(restarts: int, command: str) -> list[str]:
    """Lines that train, and start the ranks again after a crash or a hang: they go on from the newest checkpoint."""
    return [
        'rm -f "$REFUSED"',
        "attempt=0",
        f"until {command}; do",
        f'  if [ -e "$REFUSED" ] || [ "$attempt" -ge {restarts} ]; then exit 1; fi',
        "  attempt=$((attempt + 1))",
        f'  echo "meshwright: the ranks ended early, and are started again: $attempt of {restarts}"',
        "done",
    ]


def _start(request: Request) -> list[str]:
    """Lines that define how ranks are started."""
    refused = shlex.quote(str(request.folder / REFUSED_FILE))
    return [f"export REFUSED={refused}", "", RANKS.replace("ADDRESS", _address(request)).replace("OPTIONS", _step_options(request))]


def _step_options(request: Request) -> str:
    """Options of srun for what computes, after a space."""
    site = request.site
    options = " --gpu-bind=none" if request.shape.needs_gpus else ""
    if site.container:
        mounts = f" --container-mounts={shlex.quote(','.join(site.mounts))}" if site.mounts else ""
        options += f" --container-image={shlex.quote(site.container)}{mounts}"
    return options


def _address(request: Request) -> str:
    """The address of the node `$first`, in the shell's words: its name may lead to another network than the site's."""
    if not request.site.network_interface:
        return "$first"
    shown = f"ip -4 -o addr show dev {shlex.quote(request.site.network_interface)}"
    return f'$(srun --nodes=1 --ntasks=1 --nodelist="$first" {shown} | awk \'{{sub("/.*", "", $4); print $4; exit}}\')'


def _examination(request: Request) -> list[str]:
    """Lines that examine all nodes; what fails is put on the list of bad nodes, and left out by the placing that follows."""
    folder, per_node = request.folder, request.shape.ranks_per_node
    every = shlex.quote(str(folder / "examined"))
    words = [request.site.python, "-m", "meshwright", "doctor", str(folder / PLAN_FILE), "--bad-nodes", str(folder / BAD_FILE)]
    runs = request.runs if isinstance(request.runs, Path) else folder  # the doctor writes into a folder
    words += ["--secret", str(folder / SECRET_FILE), "--runs", str(runs)]
    return [
        f"awk '{{for (i = 0; i < {per_node}; i++) print}}' {shlex.quote(str(folder / ALLOCATED_FILE))} > {every}",
        f"start {every} {shlex.join(words)} || true  # bad nodes are left out below",
    ]


def sbatch_options(request: Request) -> list[str]:
    """The options of sbatch, one a line of the script."""
    site, slurm, shape = request.site, request.site.slurm, request.shape
    named = {
        "job-name": re.sub(r"\s", "-", request.name),
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "reservation": slurm.reservation,
        "constraint": slurm.constraint,
        "nodes": str(request.num_nodes),
        "ntasks-per-node": str(shape.ranks_per_node),
        "gres": _gres(request),
        "time": site.time_limit,
        "nodelist": folded(request.hosts),
        "exclude": folded([host for host in request.excluded if host not in request.hosts]),
        "chdir": site.workdir,
        "output": str(request.folder / OUTPUT_FILE).replace("%", "%%"),  # sbatch has patterns such as %j
        "open-mode": "append",
        "signal": f"TERM@{SAVE_S}" if site.time_limit else "",
    }
    options = [f"--{name}={shlex.quote(value)}" for name, value in named.items() if value]
    again = ["--requeue", *(["--no-kill"] if request.keeps_going else [])]  # a node that is lost takes only its replicas along
    return [*options, *_racks(request), *again, *(["--exclusive"] if slurm.exclusive else []), *slurm.options]


def spare_options(request: Request) -> list[str]:
    """The options of sbatch for one more node."""
    left_out = ("nodes", "nodelist", "switches", "segment", "requeue", "no-kill", "job-name", "signal")  # a signal would stop the run
    kept = [option for option in sbatch_options(request) if option.removeprefix("--").partition("=")[0] not in left_out]
    name = re.sub(r"\s", "-", request.name)
    return [f"--job-name={shlex.quote(f'{name}-spare')}", "--nodes=1", "--no-requeue", *kept]


def _gres(request: Request) -> str:
    given = request.site.slurm.gres
    if given == "none" or (not given and not request.shape.needs_gpus):
        return ""
    return given or f"gpu:{request.plan.cluster.accelerators_per_node}"


def _racks(request: Request) -> list[str]:
    """How Slurm is asked for whole racks."""
    slurm, shape = request.site.slurm, request.shape
    if not shape.group or slurm.topology == "none" or request.hosts:
        return []
    if slurm.topology == "block":
        if request.num_nodes % shape.num_groups:
            raise InputError(
                f"{request.num_spares} spare nodes cannot be spread over {shape.num_groups} blocks",
                where="--spares",
                fix=f"give a multiple of {shape.num_groups}: Slurm allocates blocks of one size",
            )
        return [f"--segment={request.num_nodes // shape.num_groups}"]
    return [f"--switches={shape.num_groups}@{slurm.wait_for_racks}"]
