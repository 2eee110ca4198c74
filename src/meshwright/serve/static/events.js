// The events of a run, newest first.

import { MARKS } from "./charts.js";
import { el, loss, number, say, seconds, si } from "./words.js";

const SHOWN = 60;
const OWN = new Set(["time_s", "kind", "step"]);

export function makeEvents() {
  const body = el("tbody");
  const more = el("button", { type: "button", class: "more", hidden: true });
  const none = el("p", { class: "soft" }, "Nothing happened yet.");
  const table = el(
    "table",
    { class: "live-events", "aria-label": "Events" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        ["After>", "Step>", "What", ""].map((head) =>
          el("th", { scope: "col", class: head.endsWith(">") ? "num" : null }, head.replace(">", "")),
        ),
      ),
    ),
    body,
  );
  const element = el(
    "div",
    {},
    el("h2", {}, "Events"),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events" }, table),
    none,
    more,
  );
  let count = SHOWN;
  let latest = [];
  let shown = "";

  function draw() {
    const picked = latest.slice(-count).reverse();
    const key = `${latest.length}/${picked.length}/${picked[0]?.time_s}`;
    if (key === shown) return;
    shown = key;
    body.replaceChildren(...picked.map(row));
    table.hidden = !picked.length;
    none.hidden = Boolean(picked.length);
    more.hidden = latest.length <= count;
    say(more, `Show all ${number(latest.length)}`);
  }

  more.addEventListener("click", () => {
    count = Infinity;
    draw();
  });
  return {
    element,
    update: (events) => {
      latest = events;
      draw();
    },
  };
}

function row(event) {
  const mark = el("i", { "aria-hidden": "true" });
  mark.style.background = `var(--${MARKS[event.kind] ?? "soft"})`;
  return el(
    "tr",
    {},
    el("td", { class: "num soft" }, seconds(event.time_s)),
    el("td", { class: "num" }, number(event.step)),
    el("td", {}, el("span", { class: "key" }, mark, event.kind.replaceAll("_", " "))),
    el("td", { class: "message" }, words(event)),
  );
}

function words(event) {
  if (typeof event.message === "string") return event.message + costs(event);
  return Object.entries(event)
    .filter(([name]) => !OWN.has(name))
    .map(([name, value]) => `${label(name)} ${shown(name, value)}`)
    .join(", ");
}

// When a fault was noticed, how long the run stood still, and what that cost.
function costs(event) {
  if (event.kind !== "incident" || typeof event.down_s !== "number") return "";
  const parts = [`noticed after ${seconds(event.noticed_after_s ?? 0)}`, `next step ${seconds(event.down_s)} later`];
  if (typeof event.cost_usd === "string") parts.push(`$${event.cost_usd}`);
  return ` (${parts.join(", ")})`;
}

const DETAILS = { work_s: "work since the last stop", lost_s: "lost of it", checkpoint_s: "checkpoints" }; // details of a fault

const label = (name) =>
  (DETAILS[name] ?? name)
    .replace(/^seconds$/, "took")
    .replace(/_(s|j|usd)$/, "")
    .replace("num_bytes", "size")
    .replaceAll("_", " ");

function shown(name, value) {
  if (typeof value === "number") {
    if (name.endsWith("_s") || name === "seconds") return seconds(value);
    if (name.endsWith("bytes")) return si(value, "B");
    return name === "loss" ? loss(value) : number(value, 5);
  }
  if (name === "price" && value?.usd_per_gpu_hour)
    return [`$${value.usd_per_gpu_hour} per accelerator-hour`, value.provider, value.kind, value.date].filter(Boolean).join(", ");
  if (name === "cause") return String(value).replaceAll("_", " ");
  if (value && typeof value === "object")
    return `(${Object.entries(value)
      .map(([key, inner]) => `${label(key)} ${shown(key, inner)}`)
      .join(", ")})`;
  return String(value);
}
