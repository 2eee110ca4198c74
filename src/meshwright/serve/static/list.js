// All runs: one row each, newest first.

import { ask, follow } from "./api.js";
import { ago, clock, compareAddress, el, loss, number, percent, roughly, runAddress, say, seconds, status, usd } from "./words.js";

const MOST_COMPARED = 10;
const REST_MS = 2000;
let chosen = new Set(); // kept when the user looks at a run and comes back

export function showList(content) {
  document.title = "Runs \u00b7 meshwright";
  const counts = el("div", { class: "chips", "aria-live": "polite" });
  const search = el("input", { type: "search", placeholder: "Filter by name, model, machine or status", "aria-label": "Filter runs" });
  const compare = el("a", { class: "button", role: "link" });
  const body = el("tbody");
  const heads = ["", "Run", "Model", "Progress", "Loss>", "Median step>", "Cost>", "When>"];
  const table = el(
    "table",
    { class: "live-runs", "aria-label": "Runs" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heads.map((head) =>
          el(
            "th",
            { scope: "col", class: head.endsWith(">") ? "num" : null },
            head ? head.replace(">", "") : el("span", { class: "unseen" }, "Compare"),
          ),
        ),
      ),
    ),
    body,
  );
  const empty = el("div", { class: "live-empty", hidden: true });
  const note = el("p", { class: "small soft" });
  const bar = el("div", { class: "bar-above" }, search, compare);
  content.append(
    el("header", {}, el("p", { class: "eyebrow" }, "meshwright"), el("h1", {}, "Runs"), counts),
    el("main", {}, bar, table, empty, note),
  );
  const rows = new Map();
  let last = null;

  function offer() {
    const names = [...chosen];
    const enough = names.length >= 2;
    compare.classList.toggle("off", !enough);
    compare.toggleAttribute("aria-disabled", !enough);
    if (enough) compare.href = compareAddress(names);
    else compare.removeAttribute("href");
    say(compare, enough ? `Compare ${names.length} runs` : "Tick runs to compare them");
  }

  function choose(name, box) {
    if (box.checked && chosen.size >= MOST_COMPARED) {
      box.checked = false;
      say(note, `Ten runs can be compared at once.`);
      return;
    }
    box.checked ? chosen.add(name) : chosen.delete(name);
    offer();
  }

  function draw() {
    if (!last) return;
    const wanted = search.value.trim().toLowerCase();
    const shown = last.runs.filter((run) => matches(run, wanted));
    const names = new Set(last.runs.map((run) => run.name));
    chosen = new Set([...chosen].filter((name) => names.has(name)));
    for (const [name, row] of rows)
      if (!names.has(name)) {
        row.element.remove();
        rows.delete(name);
      }
    shown.forEach((run, at) => {
      if (!rows.has(run.name)) rows.set(run.name, makeRow(run, choose));
      const row = rows.get(run.name);
      row.update(run);
      if (body.children[at] !== row.element) body.insertBefore(row.element, body.children[at] ?? null);
    });
    while (body.children.length > shown.length) body.lastChild.remove();
    table.hidden = bar.hidden = !last.runs.length;
    empty.hidden = Boolean(last.runs.length);
    if (!last.runs.length && !empty.childElementCount) empty.append(...howToStart(last.folder));
    say(
      note,
      last.runs.length && !shown.length
        ? "No run matches the filter."
        : last.num_runs > last.runs.length
          ? `The newest ${last.runs.length} of ${number(last.num_runs)} runs.`
          : "",
    );
    counts.replaceChildren(...tally(last.runs));
    offer();
  }

  search.addEventListener("input", draw);
  return follow(
    async () => {
      last = await ask("/api/runs");
      say(document.getElementById("foot"), `meshwright serve, reading ${last.folder}`);
      draw();
    },
    () => (last.runs.some((run) => (run.share_read ?? 1) < 1 || run.status === "reading") ? 200 : REST_MS),
  );
}

function matches(run, wanted) {
  if (!wanted) return true;
  return [run.name, run.model, run.cluster, run.status, run.kind, run.workload].some((text) => text?.toLowerCase().includes(wanted));
}

function tally(runs) {
  const counts = new Map();
  for (const run of runs) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
  const order = ["running", "quiet", "failed", "damaged", "stopped", "target_reached", "finished", "reading"];
  return order.filter((word) => counts.has(word)).map((word) => el("span", { class: "chip" }, `${counts.get(word)} `, status(word)));
}

function makeRow(run, choose) {
  const box = el("input", { type: "checkbox", "aria-label": `Compare ${run.name}` });
  box.checked = chosen.has(run.name);
  box.addEventListener("change", () => choose(run.name, box));
  const name = run.is_open
    ? el("a", { href: runAddress(run.name), class: "live-name" }, run.name)
    : el("span", { class: "live-name" }, run.name);
  const state = el("span", { class: "live-state" });
  const why = el("p", { class: "live-why" });
  const model = el("span");
  const machine = el("span", { class: "soft small" });
  const meter = el("progress", { max: 1 });
  const steps = el("span", { class: "small soft" });
  const cells = {
    loss: el("td", { class: "num", "data-label": "Loss" }),
    step: el("td", { class: "num", "data-label": "Median step" }),
    cost: el("td", { class: "num", "data-label": "Cost" }),
    when: el("td", { class: "num soft when", "data-label": "When" }),
  };
  const who = el("td", { class: "live-who" }, name, state, why);
  const what = el("td", { class: "live-what" }, model, machine);
  const howFar = el("td", { class: "live-how-far" }, meter, steps);
  const element = el(
    "tr",
    {},
    el("td", { class: "live-tick" }, box),
    who,
    what,
    howFar,
    cells.loss,
    cells.step,
    cells.cost,
    cells.when,
  );
  let shownState = "";

  function update(now) {
    const key = `${now.status}/${now.kind}/${now.num_slow}/${now.num_damaged}`;
    if (key !== shownState) {
      shownState = key;
      state.replaceChildren(
        status(now.status),
        now.kind === "simulated" ? el("span", { class: "live-kind" }, "simulated") : "",
        now.num_slow ? el("span", { class: "live-kind alarm" }, `${now.num_slow} slow rank${now.num_slow > 1 ? "s" : ""}`) : "",
        now.num_damaged
          ? el("span", { class: "live-kind alarm" }, `${number(now.num_damaged)} damaged line${now.num_damaged > 1 ? "s" : ""}`)
          : "",
      );
    }
    const isDamaged = now.status === "damaged"; // only the reason can be shown, so it gets all the room
    element.classList.toggle("damaged", isDamaged);
    who.colSpan = isDamaged ? 6 : 1;
    [what, howFar, cells.loss, cells.step, cells.cost].forEach((cell) => {
      cell.hidden = isDamaged;
    });
    box.disabled = now.status === "damaged" || now.status === "reading";
    box.checked = chosen.has(now.name);
    say(
      why,
      now.problem
        ? [now.problem.what, now.problem.fix].filter(Boolean).join(". Fix: ")
        : now.status === "quiet"
          ? `wrote nothing for ${roughly(now.quiet_s)}: it may have been killed`
          : (now.plan_problem ?? ""),
    );
    say(model, now.model ?? (now.problem ? "" : "\u2013"));
    say(machine, now.cluster ? `${number(now.num_ranks)} \u00d7 ${now.cluster}` : now.num_ranks ? `${number(now.num_ranks)} ranks` : "");
    const far = now.share_read < 1 ? now.share_read : now.progress;
    meter.hidden = far === null || far === undefined;
    if (!meter.hidden) {
      meter.value = far;
      meter.setAttribute("aria-label", `Progress ${percent(far)}`);
    }
    say(steps, now.share_read < 1 ? `reading ${percent(now.share_read)}` : progressWords(now));
    say(cells.loss, now.problem ? "" : loss(now.loss));
    say(cells.step, now.problem ? "" : seconds(now.step_s));
    say(cells.cost, now.problem ? "" : usd(now.usd));
    say(cells.when, now.written ? ago(now.written) : "");
    cells.when.title = now.written ? clock(now.written) : "";
  }
  return { element, update };
}

function progressWords(run) {
  if (run.step === undefined) return "";
  if (!run.step) return run.status === "running" ? "no step yet" : "no step";
  const of = run.num_steps && run.progress < 1 ? ` of ${number(run.num_steps)}` : "";
  const left = run.status === "running" && run.left_s ? `, ${seconds(run.left_s)} left` : "";
  return `step ${number(run.step)}${of}${left}`;
}

function howToStart(folder) {
  return [
    el("h2", {}, "No run yet"),
    el(
      "p",
      {},
      "Runs that lie in ",
      el("code", {}, folder),
      " appear here by themselves. Start one in a second terminal, in the same folder:",
    ),
    el("pre", {}, "meshwright train"),
    el(
      "p",
      { class: "soft" },
      "plans a small Llama for this machine and trains it to its target in a few minutes. Or simulate a large machine in seconds:",
    ),
    el("pre", {}, "meshwright plan llama-3.1-405b azure-gb200-128 mlperf-llama31-405b --out plan.json\nmeshwright simulate plan.json"),
  ];
}
