// One run, live.

import { ask, follow, runPath } from "./api.js";
import { makeEvents } from "./events.js";
import { makeLoss, makeStepTimes } from "./curves.js";
import { makeExperts } from "./experts.js";
import { makeParts } from "./parts.js";
import { makeRacks } from "./racks.js";
import { ago, clock, el, energyWord, loss, number, percent, roughly, say, seconds, si, status, statusWord, usd } from "./words.js";

const LIVE_MS = 1000;
const ENDED_MS = 5000;

// What the server has sent so far; each response adds what is new.
class Story {
  constructor() {
    Object.assign(this, { life: 0, rows: 0, bucket: 0, numEvents: 0, columns: {}, events: [] });
  }

  get query() {
    return `life=${this.life}&after=${this.rows}&bucket=${this.bucket}&events=${this.numEvents}`;
  }

  take(facts) {
    const { steps } = facts;
    if (!steps) return;
    if (facts.life !== this.life) Object.assign(this, { columns: {}, events: [], numEvents: 0 });
    const kept = steps.from;
    const fresh = steps.columns;
    const length = kept + fresh.step.length;
    for (const name of new Set([...Object.keys(this.columns), ...Object.keys(fresh)])) {
      const column = (this.columns[name] ?? new Array(kept).fill(null)).slice(0, kept);
      const added = fresh[name] ?? new Array(length - kept).fill(null);
      this.columns[name] = column.concat(added);
    }
    this.events = this.events.concat(facts.events).slice(-5000);
    Object.assign(this, { life: facts.life, rows: steps.rows, bucket: steps.bucket, numEvents: facts.num_events });
  }
}

export function showRun(content, name) {
  document.title = `${name} \u00b7 meshwright`;
  const story = new Story();
  const head = makeHead(name);
  const notices = el("div", { class: "live-notices", "aria-live": "polite" });
  const main = el("main", { hidden: true });
  content.append(head.element, el("div", { class: "live-column" }, notices), main);
  let parts = null;
  let now = null;
  let zoom = null;

  async function zoomTo(first, last) {
    const facts = await ask(`${runPath(name)}/steps?first=${Math.max(first, 0)}&last=${Math.max(last, 1)}`).catch(() => null);
    if (!facts?.steps || facts.steps.columns.step.length < 2) return;
    zoom = { columns: facts.steps.columns, bucket: facts.steps.bucket };
    draw();
  }

  function wholeRun() {
    zoom = null;
    draw();
  }

  function draw() {
    const seen = zoom ?? story;
    parts.zoomed.hidden = !zoom;
    parts.loss.update(now, seen.columns, story.events, seen.bucket);
    parts.stepTimes.update(now, seen.columns, story.events, seen.bucket);
    parts.parts.update(now, seen.columns);
    parts.experts.update(seen.columns);
  }

  async function look() {
    let facts;
    try {
      facts = await ask(`${runPath(name)}?${story.query}`);
    } catch (error) {
      if (!error.problem) throw error;
      head.gone(error.problem);
      return;
    }
    now = facts;
    story.take(facts);
    head.update(facts);
    notices.replaceChildren(...noticesOf(facts));
    if (facts.problem || facts.status === "reading") return;
    if (!parts) parts = makePage(main, name, facts, zoomTo, wholeRun);
    main.hidden = false;
    parts.tiles.update(facts);
    draw();
    parts.racks.update(facts);
    parts.events.update(story.events, facts);
    parts.details.update(facts);
  }

  const end = follow(look, () =>
    now?.share_read < 1 || now?.status === "reading" ? 150 : now?.status === "running" || now?.ledger === null ? LIVE_MS : ENDED_MS,
  );
  return () => {
    end();
    parts?.end();
  };
}

function makePage(main, name, facts, zoomTo, wholeRun) {
  const tiles = makeTiles();
  const zoomed = el(
    "p",
    { class: "zoomed", hidden: true },
    "Part of the run is shown. ",
    el("button", { type: "button", onclick: wholeRun }, "Show the whole run"),
  );
  const lossChart = makeLoss(zoomTo);
  const stepTimes = makeStepTimes(zoomTo);
  const parts = makeParts();
  const experts = makeExperts(zoomTo);
  const racks = makeRacks(name);
  const events = makeEvents();
  const details = makeDetails();
  main.replaceChildren(
    el("section", { class: "live-first", "aria-label": "In short" }, tiles.element),
    el(
      "section",
      { "aria-label": "Curves" },
      zoomed,
      el("div", { class: facts.loss === null && facts.kind === "simulated" ? "live-one" : "two" }, lossChart.element, stepTimes.element),
    ),
    el("section", { "aria-label": "Parts of the step" }, parts.element),
    experts.element,
    el("section", { "aria-label": "Ranks" }, racks.element),
    el("section", { "aria-label": "Events and details" }, el("div", { class: "two live-uneven" }, events.element, details.element)),
  );
  return {
    tiles,
    zoomed,
    loss: lossChart,
    stepTimes,
    parts,
    experts,
    racks,
    events,
    details,
    end: () => [lossChart, stepTimes, parts, experts, racks].forEach((part) => part.end()),
  };
}

function makeHead(name) {
  const chips = el("div", { class: "chips" });
  const element = el("header", {}, el("p", { class: "eyebrow" }, el("a", { href: "#/" }, "\u2190 All runs")), el("h1", {}, name), chips);
  let shown = "";

  function update(facts) {
    const summary = [facts.status, facts.kind, facts.model, facts.num_ranks, facts.cluster, facts.layout, facts.precision].join("|");
    if (summary !== shown) {
      shown = summary;
      const chip = (text) => (text ? el("span", { class: "chip" }, text) : "");
      chips.replaceChildren(
        el("span", { class: "chip" }, status(facts.status)),
        facts.kind === "simulated" ? chip("simulated") : "",
        chip(facts.model),
        chip(
          facts.cluster
            ? `${number(facts.num_ranks)} \u00d7 ${facts.accelerator ?? "ranks"} \u00b7 ${facts.cluster}`
            : facts.num_ranks
              ? `${number(facts.num_ranks)} ranks`
              : "",
        ),
        chip(facts.precision),
        ...axes(facts.layout),
        el("span", { class: "soft small live-written" }),
      );
    }
    const written = chips.querySelector(".live-written");
    if (written) say(written, facts.status === "running" ? "live" : `written ${ago(facts.written)}`);
    written?.classList.toggle("live", facts.status === "running");
    document.title = `${facts.status === "running" && facts.progress ? `${percent(facts.progress)} ` : ""}${name} \u00b7 meshwright`;
  }

  function gone(problem) {
    chips.replaceChildren(el("span", { class: "chip" }, status("damaged")));
    element.append(notice("warn", problem.what, problem.fix));
    gone = () => {};
  }
  return { element, update, gone: (problem) => gone(problem) };
}

function axes(layout) {
  return (layout ?? "")
    .split(",")
    .map((part) => part.split("="))
    .filter(([axis, degree]) => ["tp", "cp", "pp", "dp", "ep"].includes(axis) && Number(degree) > 1)
    .map(([axis, degree]) => {
      const chip = el("span", { class: "chip axis" }, `${axis} ${degree}`);
      chip.style.background = `var(--${axis})`;
      return chip;
    });
}

function notice(kind, what, more = "", lines = []) {
  return el(
    "div",
    { class: `live-notice ${kind}` },
    el("p", {}, el("strong", {}, what)),
    more ? el("p", {}, more) : null,
    lines.length
      ? el(
          "details",
          {},
          el("summary", {}, "Which lines"),
          el(
            "ul",
            {},
            lines.map((line) => el("li", {}, line)),
          ),
        )
      : null,
  );
}

function noticesOf(facts) {
  const found = [];
  if (facts.problem)
    found.push(
      notice(
        "warn",
        `This run cannot be shown: ${facts.problem.what}`,
        [facts.problem.where, facts.problem.fix].filter(Boolean).join(" \u2014 "),
      ),
    );
  if (facts.share_read < 1) found.push(notice("calm", `Reading a long run: ${percent(facts.share_read)} so far.`));
  if (facts.num_damaged) {
    found.push(
      notice(
        "warn",
        `${number(facts.num_damaged)} line${facts.num_damaged > 1 ? "s" : ""} of this run cannot be read and ${facts.num_damaged > 1 ? "are" : "is"} left out.`,
        "",
        facts.damage,
      ),
    );
  }
  if (facts.status === "quiet") {
    found.push(
      notice(
        "warn",
        `Nothing was written for ${roughly(facts.quiet_s)}.`,
        "The header still says that it runs: its process may have been killed. Resume it with meshwright train --resume.",
      ),
    );
  }
  if (facts.num_recorded)
    found.push(
      notice(
        "calm",
        `Of ${number(facts.step)} simulated steps ${number(facts.num_recorded)} are recorded: step times and parts are those of that sample.`,
      ),
    );
  if (facts.plan_problem) found.push(notice("warn", `What was predicted is not shown: ${facts.plan_problem}.`));
  if (facts.status === "running" && !facts.step && !facts.problem) found.push(notice("calm", "The run has started and has no step yet."));
  return found;
}

function makeTile(label) {
  const [value, remark, meter] = [
    el("p", { class: "value" }),
    el("p", { class: "remark" }),
    el("progress", { max: 1, hidden: true, "aria-label": label }),
  ];
  const name = el("p", { class: "label" }, label);
  return { element: el("div", { class: "tile" }, name, value, meter, remark), name, value, remark, meter };
}

function makeTiles() {
  const tiles = Object.fromEntries(
    [
      ["progress", "Progress"],
      ["loss", "Loss"],
      ["pace", "Median step"],
      ["finish", "Predicted finish"],
      ["cost", "Cost"],
      ["energy", "Energy"],
    ].map(([key, label]) => [key, makeTile(label)]),
  );
  const element = el(
    "div",
    { class: "tiles six" },
    Object.values(tiles).map((tile) => tile.element),
  );

  function update(facts) {
    const { progress, loss: lossTile, pace, finish, cost, energy } = tiles;
    say(progress.value, facts.progress === null ? `step ${number(facts.step)}` : percent(facts.progress, facts.progress < 0.1 ? 1 : 0));
    progress.meter.hidden = facts.progress === null;
    progress.meter.value = facts.progress ?? 0;
    const of = facts.num_steps && facts.progress < 1 ? ` of ${number(facts.num_steps)}${endWords(facts)}` : "";
    say(progress.remark, `${facts.progress === null ? "" : `step ${number(facts.step)}${of} \u00b7 `}${number(facts.samples)} samples`);
    say(lossTile.value, loss(facts.loss));
    say(
      lossTile.remark,
      facts.kind === "simulated" && facts.loss === null
        ? "a simulated run has none"
        : [facts.evaluation === null ? "" : `evaluation ${loss(facts.evaluation)}`, facts.target ? `target ${loss(facts.target)}` : ""]
            .filter(Boolean)
            .join(" \u00b7 ") || "no evaluation yet",
    );
    say(pace.value, seconds(facts.step_s));
    const off = facts.predicted && facts.step_s ? facts.step_s / facts.predicted.step_s - 1 : null;
    say(
      pace.remark,
      [
        off === null
          ? ""
          : `predicted ${seconds(facts.predicted.step_s)} (${off >= 0 ? "+" : "\u2212"}${Math.abs(100 * off).toFixed(0)} %)`,
        facts.tokens_per_s ? si(facts.tokens_per_s, " tokens/s") : "",
        facts.num_recent < facts.step && !facts.num_recorded ? `last ${number(facts.num_recent)} steps` : "",
      ]
        .filter(Boolean)
        .join(" \u00b7 "),
    );
    sayFinish(finish, facts);
    say(cost.value, `${facts.is_estimate && facts.usd !== null ? "\u2248 " : ""}${usd(facts.usd)}`);
    say(
      cost.remark,
      facts.usd === null
        ? facts.price_note
        : [
            facts.paced_usd !== null ? `${usd(facts.paced_usd)} at the end by this pace` : "",
            facts.predicted_usd !== null ? `${usd(facts.predicted_usd)} predicted` : "",
          ]
            .filter(Boolean)
            .join(" \u00b7 "),
    );
    cost.element.title = facts.price_note ?? "";
    const joules = facts.ledger?.energy_j ?? null;
    say(energy.value, joules === null ? "\u2013" : energyWord(joules));
    say(
      energy.remark,
      joules === null ? (facts.ledger ? "the power is not known" : "being added up") : `${facts.ledger.energy_source}, at the wall`,
    );
  }
  return { element, update };
}

function sayFinish(tile, facts) {
  if (facts.status === "running" && facts.left_s !== null) {
    say(tile.name, "Predicted finish");
    say(tile.value, facts.finish_at ? clock(facts.finish_at) : `in ${roughly(facts.left_s)}`);
    say(
      tile.remark,
      [
        facts.finish_at ? `in ${roughly(facts.left_s)}` : "",
        facts.predicted_s ? `${seconds(facts.predicted_s)} in all predicted, ${seconds(facts.paced_s)} by this pace` : "",
      ]
        .filter(Boolean)
        .join(" \u00b7 "),
    );
  } else {
    say(tile.name, facts.status === "running" ? "Predicted finish" : facts.kind === "simulated" ? "Simulated time" : "Time");
    say(tile.value, facts.status === "running" ? "not known" : seconds(facts.busy_s));
    say(
      tile.remark,
      [
        facts.status === "running" ? beyondWords(facts) : statusWord(facts.status),
        facts.predicted_s ? `${seconds(facts.predicted_s)} predicted` : "",
      ]
        .filter(Boolean)
        .join(" \u00b7 "),
    );
  }
}

// What ends the run first, as text after its number of steps.
function endWords(facts) {
  const words = { target: " to the target", workload: "", "steps asked for": " asked for", budget: " that the budget pays for" };
  return words[facts.ends_by] ?? "";
}

function beyondWords(facts) {
  if (!facts.step) return "no step yet";
  return facts.expected_steps ? `past the ${number(facts.expected_steps)} steps expected` : "its length is not known";
}

function makeDetails() {
  const body = el("tbody");
  const element = el("div", {}, el("h2", {}, "The run"), el("table", { class: "live-facts", "aria-label": "Facts of the run" }, body));
  let shown = "";
  function update(facts) {
    const gpu = facts.ledger?.gpu_seconds ?? {};
    const total = Object.values(gpu).reduce((sum, value) => sum + value, 0);
    const rows = [
      ["Started", facts.kind === "simulated" ? "simulated" : `${clock(facts.created)}`],
      ["Machine", facts.machine],
      ["Workload", facts.workload],
      ["Layout", facts.layout],
      ["Tokens per step", facts.tokens_per_step ? number(facts.tokens_per_step) : null],
      ["Seed", number(facts.seed)],
      ["Price", facts.price_note],
      ["Accelerator-hours", total ? number(total / 3600, 3) : null],
      [
        "Spent on",
        total
          ? Object.entries(gpu)
              .filter(([, value]) => value / total >= 0.005)
              .map(([state, value]) => `${state} ${percent(value / total)}`)
              .join(", ")
          : null,
      ],
      [
        "Versions",
        Object.entries(facts.versions ?? {})
          .filter(([, version]) => version)
          .map(([what, version]) => `${what} ${version}`)
          .join(", "),
      ],
    ].filter(([, value]) => value);
    const key = JSON.stringify(rows);
    if (key === shown) return;
    shown = key;
    body.replaceChildren(...rows.map(([what, value]) => el("tr", {}, el("th", { scope: "row" }, what), el("td", {}, value))));
  }
  return { element, update };
}
