// What the routers of a run with experts did: the fullest expert, entropy and balance loss.

import { colour, makeChart } from "./charts.js";
import { el, number, tick } from "./words.js";

const CURVES = [
  ["expert_peak", "Fullest expert over the mean", "fullest of all layers", "ep"],
  ["router_entropy", "Entropy of the router", "mean of tokens and layers, in nats", "cp"],
  ["balance_loss", "Balance loss", "mean of tokens and layers, without its factor", "accent"],
];

function around(u) {
  const values = (u.data[1] ?? []).filter((value) => typeof value === "number" && Number.isFinite(value));
  if (!values.length) return [0, 1];
  const low = Math.min(...values);
  const high = Math.max(...values);
  const pad = Math.max((high - low) * 0.08, Math.abs(high) * 0.01, 1e-9);
  return [low - pad, high + pad];
}

function makeCurve([name, title, word, paint], onZoom) {
  const box = el("div", { class: "floating" });
  const element = el("div", { hidden: true }, el("h3", {}, title), box, el("p", { class: "caption" }, word));
  let chart = null;

  function update(columns) {
    const values = columns[name];
    const isShown = Boolean(values?.some((value) => value !== null && value !== 0));
    element.hidden = !isShown;
    if (!isShown) return false;
    chart ??= makeChart(box, {
      label: `${title} over steps`,
      height: 180,
      valueWord: number,
      axisWord: tick,
      range: around,
      onZoom,
      sync: "run",
      series: [{ label: title.toLowerCase(), stroke: colour(paint), width: 1.6 }],
    });
    chart.set([columns.step ?? [], values]);
    return true;
  }
  return { element, update, end: () => chart?.end() };
}

export function makeExperts(onZoom) {
  const curves = CURVES.map((curve) => makeCurve(curve, onZoom));
  const element = el(
    "section",
    { "aria-label": "Experts", hidden: true },
    el("h2", {}, "Experts"),
    el("div", { class: "two" }, ...curves.map((curve) => curve.element)),
  );

  function update(columns) {
    element.hidden = !CURVES.some(([name]) => columns[name]);
    curves.forEach((curve) => curve.update(columns));
  }
  return { element, update, end: () => curves.forEach((curve) => curve.end()) };
}
