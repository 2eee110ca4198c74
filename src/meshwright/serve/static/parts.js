// Parts of the step: predicted next to measured, and how they changed over the run.

import { colour, makeChart } from "./charts.js";
import { el, number, partColour, partNames, partWord, percent, say, seconds } from "./words.js";

export function makeParts() {
  const bars = el("div", { class: "live-stacks" });
  const body = el("tbody");
  const table = el(
    "table",
    { class: "live-parts", "aria-label": "Parts of the step" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "Part"),
        el("th", { scope: "col", class: "num" }, "Predicted"),
        el("th", { scope: "col", class: "num now" }, "Measured"),
        el("th", { scope: "col", class: "num" }, "Difference"),
      ),
    ),
    body,
  );
  const box = el("div");
  const note = el("p", { class: "caption" });
  const element = el(
    "div",
    {},
    el("h2", {}, "Parts of the step"),
    bars,
    el("div", { class: "two" }, el("div", {}, table, note), el("div", {}, el("h3", {}, "Over the run"), box)),
  );
  let chart = null;
  let drawnParts = "";

  function update(now, columns) {
    const measured = now.parts_s ?? {};
    const predicted = now.predicted?.parts_s ?? {};
    const word = now.kind === "simulated" ? "Simulated" : "Measured";
    const known = partNames.filter((part) => (measured[part] ?? 0) > 0 || (predicted[part] ?? 0) > 0);
    const total = (of) => (Object.keys(of).length ? known.reduce((sum, part) => sum + (of[part] ?? 0), 0) : null);
    const predictedStep = now.unpredicted ? now.predicted?.step_s : total(predicted);
    element.classList.toggle("without", !Object.keys(measured).length);
    say(table.querySelector(".now"), word);
    drawBars(
      bars,
      [
        ["Predicted", predicted, predictedStep],
        [word, measured, total(measured)],
      ],
      known,
    );
    body.replaceChildren(
      ...known.map((part) => row(part, predicted[part], measured[part])),
      ...(known.length ? [line(el("b", {}, "mean step"), predictedStep, total(measured))] : []),
    );
    say(
      note,
      Object.keys(measured).length
        ? `${word}: mean of the ${number(now.num_steady)} steady steps among ${now.num_recent < now.step ? "the last" : "all"} ${number(now.num_recent)}. ${now.unpredicted ?? ""}`
        : "This run has no parts of its steps.",
    );
    const order = partNames.filter((part) => columns[`${part}_s`]?.some((value) => value > 0));
    if (order.join() !== drawnParts) {
      chart?.end();
      box.replaceChildren();
      drawnParts = order.join();
      chart = order.length ? makeStack(box, order) : null;
    }
    if (chart) chart.set(stacked(columns, order));
  }
  return { element, update, end: () => chart?.end() };
}

function row(part, predicted, measured) {
  const swatch = el("i", { "aria-hidden": "true" });
  swatch.style.background = `var(--${partColour(part)})`;
  return line(el("span", { class: "key" }, swatch, partWord(part)), predicted, measured);
}

function line(name, predicted, measured) {
  const difference = typeof predicted === "number" && typeof measured === "number" ? measured - predicted : null;
  const sign = difference > 0 ? "+" : "\u2212";
  return el(
    "tr",
    {},
    el("td", {}, name),
    el("td", { class: "num" }, seconds(predicted)),
    el("td", { class: "num" }, seconds(measured)),
    el(
      "td",
      { class: "num soft" },
      difference === null ? "\u2013" : Math.abs(difference) < 1e-6 ? "0" : `${sign}${seconds(Math.abs(difference))}`,
    ),
  );
}

function drawBars(bars, sides, parts) {
  const longest = Math.max(...sides.map(([, , step]) => step ?? 0), 1e-12);
  bars.replaceChildren(
    ...sides.map(([word, of, step]) => {
      const total = parts.reduce((sum, part) => sum + (of[part] ?? 0), 0);
      const words = parts.map((part) => `${partWord(part)} ${seconds(of[part])}`).join(", ");
      const stack = el("div", { class: "live-stack", role: "img", "aria-label": `${word}: ${words}` });
      for (const part of parts) {
        const piece = el("span", { title: `${partWord(part)}: ${seconds(of[part])}, ${percent((of[part] ?? 0) / total, 1)}` });
        piece.style.background = `var(--${partColour(part)})`;
        piece.style.width = `${(100 * (of[part] ?? 0)) / longest}%`;
        stack.append(piece);
      }
      return el(
        "div",
        { class: "live-side" },
        el("span", { class: "soft small" }, word),
        total ? stack : el("span", { class: "soft small" }, "not known"),
        el("span", { class: "small num" }, total ? seconds(step) : ""),
      );
    }),
  );
}

function makeStack(box, order) {
  const series = [...order]
    .reverse()
    .map((part) => ({
      label: partWord(part),
      stroke: colour(partColour(part)),
      fill: colour(partColour(part)),
      width: 0,
      value: () => "",
    }));
  return makeChart(box, {
    label: "Parts of the step over steps, stacked",
    valueWord: seconds,
    height: 230,
    series,
    legend: false,
    range: (u) => {
      const top = [...(u.data[1] ?? [])].filter((value) => value !== null).sort((a, b) => a - b);
      return [0, top.length ? Math.min(top.at(-1), top[Math.floor(0.97 * (top.length - 1))] * 1.3) * 1.03 : 1];
    },
  });
}

// The columns stacked on each other, the top one first, because filled curves are drawn in that order.
function stacked(columns, order) {
  const sums = [];
  let below = columns.step.map(() => 0);
  for (const part of order) {
    below = below.map((sum, at) => sum + (columns[`${part}_s`][at] ?? 0));
    sums.unshift(below);
  }
  return [columns.step, ...sums];
}
