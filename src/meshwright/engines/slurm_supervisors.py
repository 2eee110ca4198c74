"""A supervisor on each node of a job on Slurm, so that a node that is lost takes only its replicas along.

Slurm neither ends the job nor the step when a node dies (`--no-kill`), and takes the node out of the job. The other supervisors go on. If
it was the node of the leading supervisor, or the one that runs the batch script, there is nobody left to go on with: then one of the other
nodes asks Slurm to queue the job again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from meshwright.engines.request import PLACED_FILE, SECRET_FILE, Request, comments, exports
from meshwright.errors import TooFewNodesError

SUPERVISOR_FILE, WATCH_FILE, SPARE_FILE = "supervisor.sh", "watch.sh", "spare.sbatch"
MEETING_FILE = "meeting"  # where the supervisors of this start of the job meet
SPARES_FILE = "spares"  # the numbers that Slurm gave the jobs of spares that have started
OVER_FILE = "over"  # the exit status of the leading supervisor, once the run is over
PAUSE_S = 5  # before a supervisor is started again
WATCH_S = 15  # between two questions to Slurm; of later nodes longer, so that thousands ask no more than once in two seconds together
LEAVE_S = 20  # in which the other supervisors end after the leading one
FIRST_SPARE, MOST_SPARES = 100_000, 900_000  # numbers of spares: more than a plan has nodes, and six digits
REQUEUE_S = 120  # in which Slurm ends what it queues again

# The jobs of spares are known by their numbers: another job of this user may have the same name. One that has ended is no error.
END_SPARES = """if [ -e "$JOB/spares" ]; then xargs -n 1 scancel --quiet < "$JOB/spares" || true; rm -f "$JOB/spares"; fi"""

SUPERVISORS = """\
export JOB=FOLDER
unset MESHWRIGHT_NODE  # only spare.sbatch sets it
first=$(head -n 1 "$JOB/nodes")
printf 'NODES=%q\\nADDRESS=%q\\nPORT=%q\\n' "$(sort -u "$JOB/hosts" | wc -l)" "MEETING_ADDRESS" "$PORT" > "$JOB/meeting"
export SLURM_HOSTFILE="$JOB/nodes" KEPT="$first $SLURMD_NODENAME"
step() {  # OPTIONS COMMAND: one task on each node; a node that is lost does not end the others
  srun --distribution=arbitrary --ntasks="$(wc -l < "$SLURM_HOSTFILE")" --nodes="$(wc -l < "$SLURM_HOSTFILE")" --ntasks-per-node=1 \\
    --cpu-bind=none --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL "$@"
}
step --overlap bash "$JOB/watch.sh" &
step --overlapSTEP_OPTIONS bash "$JOB/supervisor.sh" &
supervisors=$! asked= code=1
trap 'asked=yes; kill -TERM "$supervisors" 2> /dev/null || true' TERM
until [ -e "$JOB/over" ] || ! kill -0 "$supervisors" 2> /dev/null; do sleep 1 || true; done
for _ in {1..LEAVE}; do kill -0 "$supervisors" 2> /dev/null && sleep 1; done || true  # on a lost node a task never ends
if [ -e "$JOB/over" ]; then code=$(cat "$JOB/over"); fi
END_SPARES
num_left=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%D || echo "$SLURM_JOB_NUM_NODES")
silent=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format=%T | grep -c '[*]' || true)
why=
if [ ! -e "$JOB/over" ]; then why="all supervisors ended, and the leading one did not say how the run ended"; fi
if [ "$code" = TOO_FEW_NODES ]; then why="the run cannot go on without the nodes that were lost"; fi
if [ -n "$why" ] && [ -z "$asked" ] && [ $((num_left - silent)) -lt "$SLURM_JOB_NUM_NODES" ]; then
  echo "meshwright: $why; the job is queued again"
  scontrol requeue "$SLURM_JOB_ID" && sleep REQUEUE
fi
exit "$code\""""

# It is started again where the run is not over: the leading one if a signal ended it, the others after any failure but wrong input.
SUPERVISOR = """\
JOB=FOLDER
NODE=${MESHWRIGHT_NODE:-$SLURM_PROCID}  # 0 leads
asked= again=0 code=1
trap 'asked=yes' TERM  # the supervisor gets it too, and saves
while [ -z "$asked" ]; do
  if [ "$NODE" != 0 ] && [ -e "$JOB/over" ]; then exit 0; fi
  . "$JOB/meeting"
  code=0; COMMAND || code=$?
  if [ "$NODE" = 0 ]; then was_lost=$((code > 128 && code != 130)); else was_lost=$((code != 0 && code != 2)); fi
  if [ "$was_lost" = 0 ] || [ -n "$asked" ] || [ "$again" -ge RESTARTS ]; then break; fi
  if [ "$NODE" = 0 ] || [ ! -e "$JOB/over" ]; then
    again=$((again + 1))
    echo "meshwright: the supervisor of node $NODE ended with status $code, and is started again: $again of RESTARTS"
    sleep PAUSE
  fi
done
if [ "$NODE" = 0 ]; then echo "$code" > "$JOB/over.new" && mv "$JOB/over.new" "$JOB/over"; fi
exit "$code\""""

WATCH = """\
trap 'exit 0' TERM
while true; do
  sleep $((EVERY * (SLURM_PROCID + 1))) & wait $!
  held=$(squeue --noheader --states=RUNNING --jobs="$SLURM_JOB_ID" --format=%N) || continue
  if [ -z "$held" ]; then continue; fi
  for host in $KEPT; do
    if ! scontrol show hostnames "$held" | grep -qx "$host"; then
      echo "meshwright: node $host, which the others cannot do without, is lost; the job is queued again"
      END_SPARES  # what was lent to this start of the job
      scontrol requeue "$SLURM_JOB_ID" && exit 0
    fi
  done
done"""


def supervised(request: Request, step_options: str, address: str) -> list[str]:
    """Lines of the batch script that start the supervisors, and end with the leading one. `address` is that of the node `$first`."""
    again = [f"rm -f {_in(request, OVER_FILE)}"]
    return [*again, _filled(SUPERVISORS, request, STEP_OPTIONS=step_options, MEETING_ADDRESS=address)]


def supervisor_script(request: Request) -> str:
    """What a node runs: its supervisor, which is started again when it is lost."""
    files = str(request.folder / PLACED_FILE), str(request.folder / SECRET_FILE)
    command = request.supervised(*files, num_nodes='"$NODES"', node='"$NODE"', address='"$ADDRESS"', port='"$PORT"')
    about = "The supervisor of a node. Made by meshwright launch, and started by job.sbatch."
    body = _filled(SUPERVISOR, request, COMMAND=command, RESTARTS=str(request.site.restarts))
    return "\n".join(["#!/bin/bash", *comments([about]), body, ""])


def watch_script(request: Request) -> str:
    """What looks whether the job still has the nodes that it cannot do without."""
    about = "Asks Slurm whether the node of the leading supervisor and that of job.sbatch are lost. Made by meshwright launch."
    return "\n".join(["#!/bin/bash", *comments([about]), _filled(WATCH, request), ""])


def spare_script(request: Request, options: Sequence[str], step_options: str) -> str:
    """The batch script of one more node, which takes the place of one that was lost."""
    about = f"One more node for the running job {request.name}: sbatch {request.folder / SPARE_FILE}"
    return "\n".join(
        [
            "#!/bin/bash",
            *comments(["Made by meshwright launch.", about]),
            *(f"#SBATCH {option}" for option in options),
            "",
            "set -euo pipefail",
            *exports(request.site),
            f"export MESHWRIGHT_NODE=$(({FIRST_SPARE} + SLURM_JOB_ID % {MOST_SPARES}))  # not a number of the plan: a spare",
            f'echo "$SLURM_JOB_ID" >> {_in(request, SPARES_FILE)}  # it ends with the job',
            f"exec srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none{step_options} bash {_in(request, SUPERVISOR_FILE)}",
            "",
        ]
    )


def _in(request: Request, name: str) -> str:
    return shlex.quote(str(request.folder / name))


def _filled(template: str, request: Request, **more: str) -> str:
    """The template with the job's folder, this module's times, and `more`.

    What is filled in may hold words of the template, and keeps them.
    """
    times_s = {"LEAVE": LEAVE_S, "REQUEUE": REQUEUE_S, "PAUSE": PAUSE_S, "EVERY": WATCH_S}
    values = {"FOLDER": shlex.quote(str(request.folder)), **{word: str(value_s) for word, value_s in times_s.items()}, **more}
    values |= {"END_SPARES": END_SPARES, "TOO_FEW_NODES": str(TooFewNodesError.EXIT_STATUS)}
    return re.sub(rf"(?<![A-Z_])({'|'.join(values)})(?![A-Z_])", lambda found: values[found[0]], template)
