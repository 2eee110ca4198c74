// Loss and step time of one run.

import { MARKS, MARK_WORDS, colour, dots, faded, flags, legendOf, level, makeChart } from "./charts.js";
import { el, loss, number, say, seconds, tick } from "./words.js";

const finite = (values) => values.filter((value) => typeof value === "number" && Number.isFinite(value));

function quantile(values, share) {
  const sorted = finite(values).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)] : NaN;
}

export function makeLoss(onZoom) {
  const box = el("div", { class: "floating" });
  const note = el("p", { class: "caption" });
  const element = el("div", {}, el("h2", {}, "Loss"), box, note);
  let chart = null;
  let shown = { evaluations: [], target: null, events: [] };

  function range(u) {
    const values = [...finite(u.data[1] ?? []), ...shown.evaluations.map(([, value]) => value)];
    if (!values.length) return [0, 1];
    const last = quantile(values.slice(-Math.ceil(values.length / 2)), 0);
    const low = Math.min(last, quantile(values, 0), shown.target ?? Infinity);
    const high = Math.min(Math.max(...values), Math.max(quantile(values, 0.98) * 1.15, (values[0] ?? 0) * 1.02));
    const pad = Math.max((high - low) * 0.06, Math.abs(high) * 1e-3, 1e-9);
    return [low - pad, high + pad];
  }

  function update(now, columns, events) {
    if (!columns.loss && now.kind === "simulated") {
      element.hidden = true;
      return;
    }
    element.hidden = false;
    shown = {
      target: now.target,
      events,
      evaluations: events
        .filter((event) => event.kind === "evaluation" && typeof event.loss === "number")
        .map((event) => [event.step, event.loss]),
    };
    if (!chart) {
      chart = makeChart(box, {
        label: "Loss over steps",
        valueWord: loss,
        axisWord: tick,
        range,
        onZoom,
        sync: "run",
        series: [{ label: "training loss", stroke: colour("accent"), width: 1.6 }],
        above: [(u) => level(u, shown.target, "warn"), (u) => dots(u, shown.evaluations, "pp")],
      });
      element.append(
        legendOf([["accent", "training"], ["pp", "evaluation"], ...(now.target ? [["warn", `target ${loss(now.target)}`]] : [])]),
      );
    }
    chart.set([columns.step ?? [], columns.loss ?? (columns.step ?? []).map(() => null)]);
    say(note, !(columns.step ?? []).length ? "No step yet." : "");
  }
  return { element, update, end: () => chart?.end() };
}

export function makeStepTimes(onZoom) {
  const box = el("div", { class: "floating" });
  const legend = el("div");
  const strip = el("canvas", { class: "live-strip", role: "img", "aria-label": "Step times as a strip: the darker, the longer" });
  const note = el("p", { class: "caption" });
  const element = el("div", {}, el("h2", {}, "Step time"), box, strip, note);
  let chart = null;
  let shown = { predicted: null, events: [] };

  function range(u) {
    const [, longest, shortest, mean] = u.data;
    const values = finite(mean ?? []);
    if (!values.length) return [0, 1];
    const predicted = shown.predicted?.step_s;
    const usual = quantile(finite(longest), 0.97);
    const near = predicted && predicted < 3 * usual && predicted > usual / 3 ? [predicted] : [];
    const low = Math.min(quantile(finite(shortest), 0.005), ...near);
    const high = Math.max(Math.min(quantile(finite(longest), 1), usual * 1.6), ...near);
    const pad = Math.max((high - low) * 0.08, high * 0.01);
    return [Math.max(low - pad, 0), high + pad];
  }

  function beyond(u) {
    const { ctx, bbox } = u;
    const scale = devicePixelRatio;
    const top = u.scales.y.max;
    ctx.save();
    ctx.fillStyle = colour("warn");
    u.data[1].forEach((value, at) => {
      if (value === null || value <= top) return;
      const x = u.valToPos(u.data[0][at], "x", true);
      ctx.beginPath();
      ctx.moveTo(x - 3.5 * scale, bbox.top + 14 * scale);
      ctx.lineTo(x + 3.5 * scale, bbox.top + 14 * scale);
      ctx.lineTo(x, bbox.top + 8 * scale);
      ctx.fill();
    });
    ctx.restore();
  }

  function predictedBand(u) {
    const plan = shown.predicted;
    if (!plan || !u.data[0].length) return;
    const { ctx, bbox } = u;
    const [low, high] = [u.valToPos(plan.low_s, "y", true), u.valToPos(plan.high_s, "y", true)].map((y) =>
      Math.min(Math.max(y, bbox.top), bbox.top + bbox.height),
    );
    ctx.save();
    ctx.fillStyle = faded("soft", 0.13);
    ctx.fillRect(bbox.left, high, bbox.width, low - high);
    ctx.restore();
  }

  function update(now, columns, events, bucket) {
    shown = { predicted: now.predicted, events };
    if (!chart) {
      chart = makeChart(box, {
        label: "Step time over steps",
        valueWord: seconds,
        range,
        onZoom,
        sync: "run",
        height: 236,
        series: [
          { label: "longest", stroke: faded("accent", 0.28), width: 1 },
          { label: "shortest", stroke: faded("accent", 0.28), width: 1 },
          { label: "mean", stroke: colour("accent"), width: 1.5 },
        ],
        bands: [{ series: [1, 2], fill: faded("accent", 0.16) }],
        below: [predictedBand],
        above: [(u) => flags(u, shown.events), beyond, (u) => level(u, shown.predicted?.step_s, "ink")],
      });
      chart.plot.root.classList.add("of-steps");
      element.append(legend);
    }
    chart.plot.root.classList.toggle("single", bucket <= 1);
    const none = (columns.step ?? []).map(() => null);
    chart.set([columns.step ?? [], columns.longest_s ?? none, columns.shortest_s ?? none, columns.step_s ?? none]);
    drawStrip(strip, columns, chart.plot, bucket);
    const kinds = new Set(events.map((event) => MARKS[event.kind]).filter(Boolean));
    const wanted = [
      ["accent", "step time"],
      ...(now.predicted ? [["ink", "predicted, with its 80 % interval"]] : []),
      ...MARK_WORDS.filter(([name]) => kinds.has(name)),
    ];
    if (String(wanted) !== legend.dataset.shown) {
      legend.dataset.shown = String(wanted);
      legend.replaceChildren(legendOf(wanted));
    }
    say(
      note,
      (bucket > 1
        ? `Each point shows ${number(bucket)} steps: their mean, the longest and the shortest. Drag over a range to zoom in. `
        : "") + "The strip marks what took longer than usual.",
    );
  }
  return { element, update, end: () => chart?.end() };
}

function drawStrip(canvas, columns, plot, bucket) {
  const scale = devicePixelRatio;
  const width = canvas.clientWidth;
  const height = 14;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const ctx = canvas.getContext("2d");
  const times = (bucket > 1 ? columns.step_s : columns.longest_s) ?? [];
  if (!times.length || !width) return;
  const usual = quantile(columns.step_s, 0.5);
  const left = plot.bbox.left;
  const wide = plot.bbox.width;
  const [first, last] = [columns.step[0], columns.step.at(-1)];
  const cell = Math.max(wide / Math.max(times.length, 1), 1);
  ctx.fillStyle = faded("accent", 0.1);
  ctx.fillRect(left, 0, wide, height * scale);
  times.forEach((time, at) => {
    const over = Math.min(Math.max((time / usual - 1.01) / 0.3, 0), 1);
    if (over <= 0) return;
    ctx.fillStyle = faded(over > 0.6 ? "warn" : "dp", 0.25 + 0.75 * over);
    const x = last > first ? left + ((columns.step[at] - first) / (last - first)) * (wide - cell) : left;
    ctx.fillRect(x, 0, Math.max(cell, 1.5 * scale), height * scale);
  });
}
