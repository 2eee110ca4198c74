"""Breaks the nodes of a run on purpose, and checks that the others go on and that the run ends with the bits of one without faults.

    python benchmarks/fault_nodes.py --faults 12 --seed 1 --layout dp=3,zero=1,mbs=1 --nodes 3

Each node is a supervisor with its ranks on this machine (`meshwright train --keep-going --nodes N --node I`). Faults strike one after the
other, once all replicas are back: a node is killed with all its processes, its supervisor is stopped and continued later, or one of its
ranks is killed. A node that ended is started again with the same command. Node 0 leads, and only loses ranks. Afterwards a run on one
machine follows the recorded memberships. The exit status is 1 if a run does not end, or if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "train"))  # last: it has a module `faults` of its own

KINDS = ("node killed", "node stopped", "rank killed")
WEIGHTS = (3, 1, 2)
STALL_S = 3.0  # --stall-timeout
STEPS_APART, SLOW_S = 12, 0.1  # steps between two faults, and the least seconds of a step
PATIENCE_S = 240.0


class Cluster:
    """The supervisors of a run, each with a number of its own."""

    def __init__(self, folder: Path, plan: Path, num_nodes: int, num_steps: int) -> None:
        from small_run import free_port

        self.folder, self.run, self.num_starts = folder, folder / "runs" / "broken", 0
        secret = folder / "secret"
        secret.write_text(os.urandom(16).hex())
        secret.chmod(0o600)
        self.common = ["--steps", str(num_steps), "--checkpoint-every", "1000000", "--keep-going", "--profile", "none"]
        self.words = ["train", plan, "--name", "broken", "--runs", folder / "runs", "--stall-timeout", str(STALL_S), *self.common]
        self.words += ["--nodes", str(num_nodes), "--meet", f"127.0.0.1:{free_port()}", "--secret", secret]
        self.nodes = [self.started(node) for node in range(num_nodes)]

    def started(self, node: int) -> Any:
        """The supervisor of a node, in a session of its own."""
        from small_run import start

        self.num_starts += 1
        one_thread = {"OMP_NUM_THREADS": "1"}
        return start(self.folder / f"start{self.num_starts}", [*self.words, "--node", str(node)], environment=one_thread, before=slow)

    def ranks(self, node: int) -> list[int]:
        """The processes of a node beside its supervisor, and beside the store, which node 0 has first."""
        found = sorted(self.nodes[node].others())
        return found[1:] if node == 0 else found


def slow() -> None:
    """Make steps take a while, so that faults strike in them."""
    from meshwright.train.parallel.pipeline import Stage

    run = Stage.run

    def slower(self: Any, *arguments: Any, **named: Any) -> Any:
        time.sleep(SLOW_S)
        return run(self, *arguments, **named)

    Stage.run = slower  # type: ignore[method-assign]


def struck(cluster: Cluster, kind: str, node: int, rng: random.Random) -> dict[str, Any]:
    """Strike once, and wait until all replicas are back; what it cost."""
    from small_run import events_of, session, until

    leader, count = cluster.nodes[0], len(events_of(cluster.run, "incident"))
    pids, begun_s = session(cluster.nodes[node].pid), time.time()
    if kind == "node killed":
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    elif kind == "node stopped":
        os.kill(cluster.nodes[node].pid, signal.SIGSTOP)
    else:
        os.kill(rng.choice(cluster.ranks(node)), signal.SIGKILL)
    until(lambda: len(events_of(cluster.run, "incident")) > count, lambda: leader.err, leader, PATIENCE_S)
    if kind == "node killed":
        cluster.nodes[node] = cluster.started(node)
    elif kind == "node stopped":
        os.kill(cluster.nodes[node].pid, signal.SIGCONT)
    event = events_of(cluster.run, "incident")[-1]
    until(lambda: events_of(cluster.run, "membership")[-1]["reason"] == "joined", lambda: leader.err, leader, PATIENCE_S)
    both_s = time.time() - begun_s
    return {"kind": kind, "node": node, "noticed_s": event["noticed_after_s"], "down_s": event["down_s"], "back_s": both_s} | {
        "lost": event["num_lost_steps"],
        "action": event["action"],
    }


def broken(folder: Path, layout: str, num_nodes: int, num_faults: int, seed: int) -> tuple[list[dict[str, Any]], str]:
    """One run with its faults, and the one it is compared with; what the faults cost, and what is wrong."""
    from fault_plan import batch_of
    from faults import compared, said
    from small_run import Small, last_step, make_corpus, train, until

    rng, num_steps = random.Random(seed), STEPS_APART * (num_faults + 2)
    small = Small(corpus=make_corpus(folder / "made"))
    plan = small.plan_file(folder / "plan.json", layout, global_batch=batch_of(layout), training={"most_samples": 10**6})
    cluster, found = Cluster(folder, plan, num_nodes, num_steps), list[dict[str, Any]]()
    for number in range(num_faults):
        at_least = STEPS_APART * (number + 1)
        until(lambda at_least=at_least: last_step(cluster.run) >= at_least, lambda: cluster.nodes[0].err, cluster.nodes[0], PATIENCE_S)
        kind = rng.choices(KINDS, WEIGHTS)[0]
        node = rng.randrange(num_nodes) if kind == "rank killed" else rng.randrange(1, num_nodes)
        found.append(struck(cluster, kind, node, rng))
        print(json.dumps(found[-1]), flush=True)
    codes = [node.wait(PATIENCE_S) for node in cluster.nodes]
    if any(codes):
        return found, f"exit statuses {codes}: {said(cluster.nodes[0].err)}"
    os.environ["OMP_NUM_THREADS"] = "1"
    clean = train(folder / "clean", plan, "--name", "clean", "--memberships", cluster.run, *cluster.common)
    if code := clean.wait(PATIENCE_S):
        return found, f"the run without faults ended with {code}: {said(clean.err)}"
    return found, compared(cluster.run, folder / "clean" / "runs" / "clean", num_steps)


def main() -> int:
    """Strike, and print what it cost by kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", default="dp=3,zero=1,mbs=1")
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, problem = broken(Path(folder), given.layout, given.nodes, given.faults, given.seed)
    for kind in sorted({one["kind"] for one in found}):
        rows = [one for one in found if one["kind"] == kind]
        noticed, down = ([one[key] for one in rows] for key in ("noticed_s", "down_s"))
        words = [f"{statistics.median(times):.2f}, {max(times):.2f}" for times in (noticed, down)]
        lost = sum(one["lost"] for one in rows)
        print(f"{kind}: {len(rows)} struck; noticed after (s, median and worst) {words[0]}; down {words[1]}; {lost} steps lost")
    print(problem or "the bits are those of a run without faults, and every sample was counted once")
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main())
