// Up to ten runs in the same charts.

import { ask, follow, runPath } from "./api.js";
import { colour, legendOf, makeChart } from "./charts.js";
import { el, loss, number, percent, runAddress, say, seconds, status, tick, usd } from "./words.js";

const COLOURS = ["runa", "runb", "runc", "rund", "rune", "runf", "rung", "runh", "runi", "runj"];
const AXES = { step: "Steps", samples: "Samples", passed_s: "Time" };
const X_WORDS = { step: "step", samples: "samples", passed_s: "time" };
const POINTS = 500;

export function showCompare(content, wanted) {
  const names = [...new Set(wanted)].slice(0, COLOURS.length);
  document.title = `${names.length} runs compared \u00b7 meshwright`;
  const notices = el("div", { class: "live-notices", "aria-live": "polite" });
  const choice = el("div", { class: "segments", role: "radiogroup", "aria-label": "Draw over" });
  const lossBox = el("div", { class: "floating" });
  const timeBox = el("div", { class: "floating" });
  const legend = el("div");
  const lossPart = el("div", {}, el("h2", {}, "Loss"), lossBox);
  const timePart = el("div", {}, el("h2", {}, "Step time"), timeBox);
  const body = el("tbody");
  const heads = ["Run", "Status", "Model", "Ranks>", "Step>", "Loss>", "Evaluation>", "Median step>", "To the fastest>", "Cost>"];
  const table = el(
    "table",
    { class: "live-compared", "aria-label": "Runs compared" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heads.map((head) => el("th", { scope: "col", class: head.endsWith(">") ? "num" : null }, head.replace(">", ""))),
      ),
    ),
    body,
  );
  content.append(
    el(
      "header",
      {},
      el("p", { class: "eyebrow" }, el("a", { href: "#/" }, "\u2190 All runs")),
      el("h1", {}, `${names.length} runs compared`),
    ),
    el("div", { class: "live-column" }, notices),
    el(
      "main",
      {},
      el(
        "section",
        { class: "live-first" },
        el("div", { class: "live-heading" }, legend, choice),
        el("div", { class: "two" }, lossPart, timePart),
      ),
      el(
        "section",
        {},
        el("h2", {}, "In numbers"),
        el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs compared" }, table),
      ),
    ),
  );
  let over = "step";
  let runs = [];
  let charts = [];
  const dropped = new Set(wanted).size - names.length;

  choice.replaceChildren(
    ...Object.entries(AXES).map(([key, word]) => {
      const input = el("input", { type: "radio", name: "over", value: key, id: `over-${key}` });
      input.checked = key === over;
      input.addEventListener("change", () => {
        over = key;
        charts.forEach((chart) => chart.end());
        charts = [];
        draw();
      });
      return el("label", { for: `over-${key}` }, input, word);
    }),
  );

  function draw() {
    const good = runs.filter((run) => !run.problem);
    const learning = good.filter((run) => run.steps.columns.loss);
    lossPart.hidden = !learning.length;
    lossPart.parentElement.classList.toggle("live-one", !learning.length);
    if (!charts.length && good.length) {
      charts = [
        learning.length ? chartOf(lossBox, "Loss of all runs", learning, loss, over, tick) : null,
        chartOf(timeBox, "Step time of all runs", good, seconds, over, null),
      ].filter(Boolean);
      charts.forEach((chart) => {
        chart.key = `${learning.length}/${good.length}`;
      });
    }
    const [first, second] = charts.length === 2 ? charts : [null, charts[0]];
    first?.set(joined(learning, over, "loss"));
    second?.set(joined(good, over, "step_s"));
    legend.replaceChildren(legendOf(runs.filter((run) => !run.problem).map((run) => [run.colour, run.name])));
    body.replaceChildren(...runs.map((run) => row(run, good)));
    notices.replaceChildren(...warnings(runs, good, dropped));
  }

  return follow(
    async () => {
      const answers = await Promise.all(
        names.map(async (name, at) => {
          try {
            return { ...(await ask(`${runPath(name)}/steps?points=${POINTS}`)), colour: COLOURS[at], dashed: at >= 5 };
          } catch (error) {
            if (!error.problem) throw error;
            return { name, problem: error.problem, colour: COLOURS[at] };
          }
        }),
      );
      const before = runs.map((run) => Boolean(run.problem || !run.steps.columns.loss)).join();
      runs = answers;
      if (before !== runs.map((run) => Boolean(run.problem || !run.steps.columns.loss)).join()) {
        charts.forEach((chart) => chart.end());
        charts = [];
      }
      draw();
    },
    () =>
      runs.some((run) => run.share_read < 1 || run.status === "reading") ? 300 : runs.some((run) => run.status === "running") ? 2000 : 8000,
  );
}

function chartOf(box, label, runs, word, over, axisWord) {
  box.replaceChildren();
  return makeChart(box, {
    label,
    valueWord: word,
    axisWord,
    xWord: X_WORDS[over],
    height: 320,
    range: rangeOf,
    series: runs.map((run) => ({ label: run.name, stroke: colour(run.colour), width: 1.7, dash: run.dashed ? [7, 3] : undefined })),
  });
}

function rangeOf(u) {
  const values = u.data
    .slice(1)
    .flatMap((column) => column.filter((value) => typeof value === "number"))
    .sort((a, b) => a - b);
  if (!values.length) return [0, 1];
  const high = Math.min(values.at(-1), values[Math.floor(0.99 * (values.length - 1))] * 1.15);
  const pad = Math.max((high - values[0]) * 0.06, high * 0.01);
  return [values[0] - pad, high + pad];
}

// One x axis for all runs: each run keeps its own points, without interpolation.
function joined(runs, over, what) {
  const tables = runs.map((run) => [run.steps.columns[over] ?? run.steps.columns.step, run.steps.columns[what] ?? []]);
  const xs = [...new Set(tables.flatMap(([x]) => x))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, at) => [x, at]));
  return [
    xs,
    ...tables.map(([x, y]) => {
      const column = new Array(xs.length).fill(undefined);
      x.forEach((value, at) => {
        column[place.get(value)] = y[at] ?? null;
      });
      return column;
    }),
  ];
}

function row(run, good) {
  const swatch = el("i", { "aria-hidden": "true" });
  swatch.style.background = `var(--${run.colour})`;
  const name = el("span", { class: "key" }, swatch, el("a", { href: runAddress(run.name) }, run.name));
  if (run.problem)
    return el("tr", {}, el("td", {}, name), el("td", {}, status("damaged")), el("td", { colspan: 8, class: "live-why" }, run.problem.what));
  const alike = good.filter((one) => one.step_s && work(one) === work(run));
  const fastest = Math.min(...alike.map((one) => one.step_s));
  const behind = run.step_s && alike.length > 1 ? run.step_s / fastest - 1 : null;
  const cells = [
    number(run.num_ranks),
    number(run.step),
    loss(run.loss),
    loss(run.evaluation),
    seconds(run.step_s),
    behind === null ? "\u2013" : behind < 0.0005 ? "fastest" : `+${percent(behind, behind < 0.1 ? 1 : 0)}`,
    usd(run.usd),
  ];
  return el(
    "tr",
    {},
    el("td", {}, name),
    el("td", {}, status(run.status)),
    el("td", {}, run.model ?? "\u2013"),
    cells.map((cell) => el("td", { class: "num" }, cell)),
  );
}

// Step times can be compared only if the steps do the same work: the same model and as many tokens.
const work = (run) => (run.model ? `${run.model}/${run.tokens_per_step}` : `?/${run.name}`);

function warnings(runs, good, dropped) {
  const found = [];
  const distinct = (key) => [...new Set(good.map((run) => run[key]).filter(Boolean))];
  const models = distinct("model");
  const workloads = distinct("workload");
  if (models.length > 1)
    found.push(`These runs train different models (${models.join(", ")}): their losses and step times cannot be compared.`);
  else if (workloads.length > 1)
    found.push(`These runs have different workloads (${workloads.join(", ")}): compare them over samples or time, not over steps.`);
  if (distinct("kind").length > 1) found.push("Some of these runs were simulated: they have step times and no loss.");
  if (dropped > 0) found.push(`Ten runs are compared at once; ${dropped} more are left out.`);
  for (const run of runs.filter((one) => one.problem)) found.push(`${run.name} cannot be shown: ${run.problem.what}`);
  return found.map((text) => el("div", { class: "live-notice calm" }, el("p", {}, text)));
}
