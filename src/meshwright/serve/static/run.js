// One run, live.

import { ask, follow, runPath } from "./api.js";
import { makeEvents } from "./events.js";
import { makeLoss, makeStepTimes } from "./curves.js";
import { makeParts } from "./parts.js";
import { makeRacks } from "./racks.js";
import { ago, clock, el, energyWord, loss, number, percent, roughly, say, seconds, si, status, statusWord, usd } from "./words.js";

const LIVE_MS = 1000;
const ENDED_MS = 5000;

// What has been told so far; each answer brings what is new.
class Story {
  constructor() {
    Object.assign(this, { life: 0, rows: 0, bucket: 0, numEvents: 0, columns: {}, events: [] });
  }

  get query() {
    return `life=${this.life}&after=${this.rows}&bucket=${this.bucket}&events=${this.numEvents}`;
  }

  take(told) {
    const { steps } = told;
    if (!steps) return;
    if (told.life !== this.life) Object.assign(this, { columns: {}, events: [], numEvents: 0 });
    const kept = steps.from;
    const fresh = steps.columns;
    const length = kept + fresh.step.length;
    for (const name of new Set([...Object.keys(this.columns), ...Object.keys(fresh)])) {
      const column = (this.columns[name] ?? new Array(kept).fill(null)).slice(0, kept);
      const added = fresh[name] ?? new Array(length - kept).fill(null);
      this.columns[name] = column.concat(added);
    }
    this.events = this.events.concat(told.events).slice(-5000);
    Object.assign(this, { life: told.life, rows: steps.rows, bucket: steps.bucket, numEvents: told.num_events });
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
    const told = await ask(`${runPath(name)}/steps?first=${Math.max(first, 0)}&last=${Math.max(last, 1)}`).catch(() => null);
    if (!told?.steps || told.steps.columns.step.length < 2) return;
    zoom = { columns: told.steps.columns, bucket: told.steps.bucket };
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
  }

  async function look() {
    let told;
    try {
      told = await ask(`${runPath(name)}?${story.query}`);
    } catch (error) {
      if (!error.problem) throw error;
      head.gone(error.problem);
      return;
    }
    now = told;
    story.take(told);
    head.update(told);
    notices.replaceChildren(...noticesOf(told));
    if (told.problem || told.status === "reading") return;
    if (!parts) parts = makePage(main, name, told, zoomTo, wholeRun);
    main.hidden = false;
    parts.tiles.update(told);
    draw();
    parts.racks.update(told);
    parts.events.update(story.events, told);
    parts.details.update(told);
  }

  const end = follow(look, () =>
    now?.share_read < 1 || now?.status === "reading" ? 150 : now?.status === "running" || now?.ledger === null ? LIVE_MS : ENDED_MS,
  );
  return () => {
    end();
    parts?.end();
  };
}

function makePage(main, name, told, zoomTo, wholeRun) {
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
  const racks = makeRacks(name);
  const events = makeEvents();
  const details = makeDetails();
  main.replaceChildren(
    el("section", { class: "live-first", "aria-label": "In short" }, tiles.element),
    el(
      "section",
      { "aria-label": "Curves" },
      zoomed,
      el("div", { class: told.loss === null && told.kind === "simulated" ? "live-one" : "two" }, lossChart.element, stepTimes.element),
    ),
    el("section", { "aria-label": "Parts of the step" }, parts.element),
    el("section", { "aria-label": "Ranks" }, racks.element),
    el("section", { "aria-label": "Events and details" }, el("div", { class: "two live-uneven" }, events.element, details.element)),
  );
  return {
    tiles,
    zoomed,
    loss: lossChart,
    stepTimes,
    parts,
    racks,
    events,
    details,
    end: () => [lossChart, stepTimes, parts, racks].forEach((part) => part.end()),
  };
}

function makeHead(name) {
  const chips = el("div", { class: "chips" });
  const element = el("header", {}, el("p", { class: "eyebrow" }, el("a", { href: "#/" }, "\u2190 All runs")), el("h1", {}, name), chips);
  let shown = "";

  function update(told) {
    const facts = [told.status, told.kind, told.model, told.num_ranks, told.cluster, told.layout, told.precision].join("|");
    if (facts !== shown) {
      shown = facts;
      const chip = (text) => (text ? el("span", { class: "chip" }, text) : "");
      chips.replaceChildren(
        el("span", { class: "chip" }, status(told.status)),
        told.kind === "simulated" ? chip("simulated") : "",
        chip(told.model),
        chip(
          told.cluster
            ? `${number(told.num_ranks)} \u00d7 ${told.accelerator ?? "ranks"} \u00b7 ${told.cluster}`
            : told.num_ranks
              ? `${number(told.num_ranks)} ranks`
              : "",
        ),
        chip(told.precision),
        ...axes(told.layout),
        el("span", { class: "soft small live-written" }),
      );
    }
    const written = chips.querySelector(".live-written");
    if (written) say(written, told.status === "running" ? "live" : `written ${ago(told.written)}`);
    written?.classList.toggle("live", told.status === "running");
    document.title = `${told.status === "running" && told.progress ? `${percent(told.progress)} ` : ""}${name} \u00b7 meshwright`;
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

function noticesOf(told) {
  const found = [];
  if (told.problem)
    found.push(
      notice(
        "warn",
        `This run cannot be shown: ${told.problem.what}`,
        [told.problem.where, told.problem.fix].filter(Boolean).join(" \u2014 "),
      ),
    );
  if (told.share_read < 1) found.push(notice("calm", `Reading a long run: ${percent(told.share_read)} so far.`));
  if (told.num_damaged) {
    found.push(
      notice(
        "warn",
        `${number(told.num_damaged)} line${told.num_damaged > 1 ? "s" : ""} of this run cannot be read and ${told.num_damaged > 1 ? "are" : "is"} left out.`,
        "",
        told.damage,
      ),
    );
  }
  if (told.status === "quiet") {
    found.push(
      notice(
        "warn",
        `Nothing was written for ${roughly(told.quiet_s)}.`,
        "The header still says that it runs: its process may have been killed. Resume it with meshwright train --resume.",
      ),
    );
  }
  if (told.num_recorded)
    found.push(
      notice(
        "calm",
        `Of ${number(told.step)} simulated steps ${number(told.num_recorded)} are recorded: step times and parts are those of that sample.`,
      ),
    );
  if (told.plan_problem) found.push(notice("warn", `What was predicted is not shown: ${told.plan_problem}.`));
  if (told.status === "running" && !told.step && !told.problem) found.push(notice("calm", "The run has started and has no step yet."));
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

  function update(told) {
    const { progress, loss: lossTile, pace, finish, cost, energy } = tiles;
    say(progress.value, told.progress === null ? `step ${number(told.step)}` : percent(told.progress, told.progress < 0.1 ? 1 : 0));
    progress.meter.hidden = told.progress === null;
    progress.meter.value = told.progress ?? 0;
    const of = told.num_steps && told.progress < 1 ? ` of ${number(told.num_steps)}${endWords(told)}` : "";
    say(progress.remark, `${told.progress === null ? "" : `step ${number(told.step)}${of} \u00b7 `}${number(told.samples)} samples`);
    say(lossTile.value, loss(told.loss));
    say(
      lossTile.remark,
      told.kind === "simulated" && told.loss === null
        ? "a simulated run has none"
        : [told.evaluation === null ? "" : `evaluation ${loss(told.evaluation)}`, told.target ? `target ${loss(told.target)}` : ""]
            .filter(Boolean)
            .join(" \u00b7 ") || "no evaluation yet",
    );
    say(pace.value, seconds(told.step_s));
    const off = told.predicted && told.step_s ? told.step_s / told.predicted.step_s - 1 : null;
    say(
      pace.remark,
      [
        off === null
          ? ""
          : `predicted ${seconds(told.predicted.step_s)} (${off >= 0 ? "+" : "\u2212"}${Math.abs(100 * off).toFixed(0)} %)`,
        told.tokens_per_s ? si(told.tokens_per_s, " tokens/s") : "",
        told.num_recent < told.step && !told.num_recorded ? `last ${number(told.num_recent)} steps` : "",
      ]
        .filter(Boolean)
        .join(" \u00b7 "),
    );
    sayFinish(finish, told);
    say(cost.value, `${told.is_estimate && told.usd !== null ? "\u2248 " : ""}${usd(told.usd)}`);
    say(
      cost.remark,
      told.usd === null
        ? told.price_note
        : [
            told.paced_usd !== null ? `${usd(told.paced_usd)} at the end by this pace` : "",
            told.predicted_usd !== null ? `${usd(told.predicted_usd)} predicted` : "",
          ]
            .filter(Boolean)
            .join(" \u00b7 "),
    );
    cost.element.title = told.price_note ?? "";
    const joules = told.ledger?.energy_j ?? null;
    say(energy.value, joules === null ? "\u2013" : energyWord(joules));
    say(
      energy.remark,
      joules === null ? (told.ledger ? "nobody states the power" : "being added up") : `${told.ledger.energy_source}, at the wall`,
    );
  }
  return { element, update };
}

function sayFinish(tile, told) {
  if (told.status === "running" && told.left_s !== null) {
    say(tile.name, "Predicted finish");
    say(tile.value, told.finish_at ? clock(told.finish_at) : `in ${roughly(told.left_s)}`);
    say(
      tile.remark,
      [
        told.finish_at ? `in ${roughly(told.left_s)}` : "",
        told.predicted_s ? `${seconds(told.predicted_s)} in all predicted, ${seconds(told.paced_s)} by this pace` : "",
      ]
        .filter(Boolean)
        .join(" \u00b7 "),
    );
  } else {
    say(tile.name, told.status === "running" ? "Predicted finish" : told.kind === "simulated" ? "Simulated time" : "Time");
    say(tile.value, told.status === "running" ? "not known" : seconds(told.busy_s));
    say(
      tile.remark,
      [
        told.status === "running" ? beyondWords(told) : statusWord(told.status),
        told.predicted_s ? `${seconds(told.predicted_s)} predicted` : "",
      ]
        .filter(Boolean)
        .join(" \u00b7 "),
    );
  }
}

// What ends the run first, behind its number of steps.
function endWords(told) {
  const words = { target: " to the target", workload: "", "steps asked for": " asked for", budget: " that the budget pays for" };
  return words[told.ends_by] ?? "";
}

function beyondWords(told) {
  if (!told.step) return "no step yet";
  return told.expected_steps ? `past the ${number(told.expected_steps)} steps expected` : "nobody says how long it is";
}

function makeDetails() {
  const body = el("tbody");
  const element = el("div", {}, el("h2", {}, "The run"), el("table", { class: "live-facts", "aria-label": "Facts of the run" }, body));
  let shown = "";
  function update(told) {
    const gpu = told.ledger?.gpu_seconds ?? {};
    const total = Object.values(gpu).reduce((sum, value) => sum + value, 0);
    const rows = [
      ["Started", told.kind === "simulated" ? "simulated" : `${clock(told.created)}`],
      ["Machine", told.machine],
      ["Workload", told.workload],
      ["Layout", told.layout],
      ["Tokens a step", told.tokens_per_step ? number(told.tokens_per_step) : null],
      ["Seed", number(told.seed)],
      ["Price", told.price_note],
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
        Object.entries(told.versions ?? {})
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
