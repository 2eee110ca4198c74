"""A judged claim as a memo that can be forwarded: verdict, checks, forecast beside the claim, assumptions, sources, questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshwright.audit.judge import Judgement
from meshwright.audit.own_forecast import Compared
from meshwright.audit.printable import one_line
from meshwright.audit.rules import benchmarks
from meshwright.audit.submissions import submissions
from meshwright.audit.verdict import CONSISTENT, IMPLAUSIBLE, IMPOSSIBLE, MEANING, MISLEADING, UNKNOWN, UNSUPPORTED
from meshwright.describe.load import accelerator
from meshwright.say.document import Finding
from meshwright.say.memo import FAIL, OPEN, PASS, Memo, Part, Range

OUTCOMES = {CONSISTENT: PASS, UNKNOWN: OPEN, UNSUPPORTED: OPEN, MISLEADING: FAIL, IMPLAUSIBLE: FAIL, IMPOSSIBLE: FAIL}

# What to ask next about a statement that does not hold or is open, by what it is about.
QUESTIONS = {
    "compute": "How many samples or tokens were trained on, in which precision, and between which two moments was the time taken?",
    "memory": "How were weights, gradients and optimizer states split, and how many bytes per accelerator were in use?",
    "samples": "How many samples did each run need to the target, and with which seeds?",
    "submission": "Under which round, division and system name is the result published?",
    "step time": "Where is the log of the run, with the time of every step?",
    "log": "Where is the whole log as the run wrote it?",
    "time by its own numbers": "What filled the time outside the steps: evaluations, checkpoints, restarts?",
    "price": "Which price per accelerator-hour was paid, under which contract, and what else is in the cost?",
    "efficiency": "What were step time, batch and accelerators of both runs, and where are their logs?",
    "difference": "How far apart are runs of one machine?",
    "speed-up": "What were time, samples to the target and accelerators of both runs?",
    "throughput": "How much of the gain is samples per second, and how much is fewer samples to the target?",
    "age": "Why is the baseline not from the same round?",
    "exposed": "Where is a profile of a step that shows computing and communication of a rank?",
    "profile": "Where is a profile of a step that shows computing and communication of a rank?",
    "traffic": "How many bytes does a rank send in a step, and over which links?",
    "bytes": "How many bytes does a rank send in a step, and over which links?",
    "work of a step": "How many sequences does a step have in each of the two runs?",
    "kind of scaling": "Which batch did each size have?",
    "variation": "Is it the variation of steps in a run, of medians between runs, or a standard error, and of how many?",
    "share": "Which two counts is the share made of?",
    "largest": "Among which machines, and as of which day?",
    "record": "Which earlier results was it compared with, and where is its log?",
    "TFLOP/s": "Which FLOPs are counted: is attention in them, and what is recomputed?",
    "MFU": "Which FLOPs are counted, and which peak are they divided by?",
}


def claim_memo(judgement: Judgement) -> Memo:
    """The memo on one judged claim."""
    claim, own = judgement.claim, judgement.forecast
    has_forecast = own is not None and own.forecast is not None
    return Memo(
        kind="audit of a claim",
        title=one_line(claim.text) or "A claim",
        outcome=OUTCOMES[judgement.verdict],
        verdict=judgement.verdict,
        headline=one_line(f"The claim is {judgement.verdict} ({MEANING[judgement.verdict]}): {judgement.why}."),
        second=f"{_capital(own.sentence)}." if own and has_forecast else "",
        findings=tuple(
            Finding(one.verdict, one.about, one_line(one.why), tuple(map(one_line, one.arithmetic))) for one in judgement.statements
        ),
        ranges=tuple(map(_range, own.compared)) if own else (),
        ranges_remark=_remark(judgement),
        parts=(
            Part(title="What the forecast assumes", lines=_assumed(judgement)),
            Part(title="What to ask next", lines=tuple(questions(judgement))),
            Part(title="Sources", lines=tuple(_sources(judgement))),
        ),
        footer="Verdicts, from the best: " + "; ".join(f"{name}: {meaning}" for name, meaning in MEANING.items()) + ".",
    )


def _range(one: Compared) -> Range:
    return Range(
        name=one.quantity,
        claimed=one.claimed.value,
        value=one.value,
        low=one.low,
        high=one.high,
        claimed_text=one.shown(one.claimed.value),
        value_text=one.shown(one.value),
        interval_text=one.interval,
        words=one.words,
    )


def _remark(judgement: Judgement) -> str:
    own = judgement.forecast
    if own is None:
        return ""
    return one_line(f"Forecast of {own.made_for}." if own.forecast else f"No forecast of meshwright's own: {own.missing}.")


def _assumed(judgement: Judgement) -> tuple[str, ...]:
    own = judgement.forecast
    if own is None or own.forecast is None:
        return ()
    return tuple(map(_capital, map(one_line, (*own.assumed, *own.forecast.notes))))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def questions(judgement: Judgement) -> Iterator[str]:
    """What to ask whoever makes the claim: about what does not hold or is open, and about what the forecast had to assume."""
    doubtful = [one.about for one in judgement.statements if one.verdict != CONSISTENT]
    asked = [question for about in doubtful for start, question in QUESTIONS.items() if about.startswith(start)]
    own = judgement.forecast
    asked += [f"What is {item}?" for item in (own.to_ask if own else ())]
    if not judgement.claim.run.log:
        asked.append("Where is the log of the run, so that the result can be computed again with meshwright audit log?")
    yield from dict.fromkeys(asked)


def _sources(judgement: Judgement) -> Iterator[str]:
    claim = judgement.claim
    if claim.source:
        yield one_line(f"The claim: {claim.source}")
    yield one_line(f"Its facts as they were judged: {Path(claim.where).name}")
    rounds = sorted({row.round for row in submissions()})
    yield f"Results on record: {len(submissions())} submissions of MLPerf Training {rounds[0]} to {rounds[-1]}, the table in this package"
    if claim.run.benchmark:
        rules = benchmarks()[claim.run.benchmark]
        yield f"Rules of {rules.name}: {rules.num_runs} runs, reference convergence points of mlperf-logging"
    if claim.run.accelerator:
        for source in dict.fromkeys(source.text for source in accelerator(claim.run.accelerator).sources.values()):
            yield one_line(f"{claim.run.accelerator}: {source}")
    if judgement.forecast and judgement.forecast.forecast:
        yield "The forecast: constants fitted on measured runs; meshwright accuracy shows how far it was off on each"
