// Curves over steps, drawn by uPlot in the colours of the reports.

import { el, number } from "./words.js";

/* global uPlot */

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function faded(name, alpha) {
  const hex = colour(name);
  return `${hex}${Math.round(alpha * 255)
    .toString(16)
    .padStart(2, "0")}`;
}

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

// A chart that fills its box. `series` are those of uPlot; the hooks in `drawn` paint below and above the curves.
export function makeChart(
  box,
  {
    label,
    height = 260,
    series,
    valueWord,
    axisWord = null,
    xWord = "step",
    range,
    below = [],
    above = [],
    onZoom = null,
    bands = [],
    sync = null,
    legend = true,
  },
) {
  box.classList.add("live-plot");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", label);
  const size = () => ({ width: Math.max(box.clientWidth, 240), height: innerWidth < 600 ? Math.min(height, 220) : height });
  const axis = { stroke: colour("soft"), font: FONT, grid: { stroke: colour("faint"), width: 1 }, ticks: { show: false }, gap: 6 };
  const plot = new uPlot(
    {
      ...size(),
      padding: [10, 30, 0, 0], // room for half of the longest number below the last tick
      legend: { show: legend, live: true, markers: { width: 0, fill: (u, at) => u.series[at].stroke(u, at) } },
      cursor: {
        drag: { x: Boolean(onZoom), y: false, setScale: false },
        points: { size: 7 },
        sync: sync ? { key: sync } : undefined,
        y: false,
      },
      scales: { x: { time: false }, y: { range } },
      axes: [
        {
          ...axis,
          size: 30,
          values: (_, splits) => splits.map((value) => (Number.isInteger(value) || xWord !== "step" ? xLabel(value, xWord) : "")),
        },
        { ...axis, size: 62, values: (_, splits) => splits.map((value) => (axisWord ?? valueWord)(value, splits[1] - splits[0])) },
      ],
      series: [
        { label: xWord, value: (_, value) => (value === null ? "" : xLabel(value, xWord)) },
        ...series.map((one) => ({
          value: (_, value) => (value === null ? "\u2013" : valueWord(value)),
          spanGaps: true,
          points: { show: false },
          ...one,
        })),
      ],
      bands,
      hooks: {
        drawClear: below,
        draw: above,
        setCursor: [(u) => u.root.classList.toggle("pointed", u.cursor.idx !== null && u.cursor.idx !== undefined)],
        setSelect: [
          (u) => {
            if (!onZoom || u.select.width < 8) return;
            const [low, high] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
            u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            onZoom(Math.floor(low), Math.ceil(high));
          },
        ],
      },
    },
    [[], ...series.map(() => [])],
    box,
  );
  const watch = new ResizeObserver(() => plot.setSize(size()));
  watch.observe(box);
  return {
    plot,
    set: (data) => plot.setData(data),
    end: () => {
      watch.disconnect();
      plot.destroy();
    },
  };
}

function xLabel(value, word) {
  if (word !== "time") return number(value, 6);
  if (value >= 7200) return `${number(value / 3600, 3)} h`;
  return value >= 120 ? `${number(value / 60, 3)} min` : `${number(value, 3)} s`;
}

// A dashed horizontal line across the chart.
export function level(u, value, name) {
  if (typeof value !== "number" || !Number.isFinite(value)) return;
  const y = u.valToPos(value, "y", true);
  const { left, top, width, height } = u.bbox;
  if (y < top || y > top + height) return;
  const { ctx } = u;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour(name);
  ctx.setLineDash([5 * scale, 4 * scale]);
  ctx.lineWidth = 1.2 * scale;
  ctx.beginPath();
  ctx.moveTo(left, y);
  ctx.lineTo(left + width, y);
  ctx.stroke();
  ctx.restore();
}

export function dots(u, points, name) {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
  ctx.save();
  ctx.fillStyle = colour(name);
  ctx.strokeStyle = colour("paper");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  for (const [x, y] of points) {
    const [px, py] = [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
    if (px < left - 1 || px > left + width + 1 || py < top || py > top + height) continue;
    ctx.beginPath();
    ctx.arc(px, py, 4 * devicePixelRatio, 0, 7);
    ctx.fill();
    ctx.stroke();
  }
  ctx.restore();
}

export const MARKS = {
  fault: "warn",
  failed: "warn",
  nan: "warn",
  dead_experts: "warn",
  damage: "warn",
  incident: "warn",
  replay: "warn",
  checkpoint_failed: "warn",
  slow_rank: "dp",
  slow_link: "dp",
  stall: "dp",
  stopped: "warn",
  restart: "cp",
  resumed: "cp",
  recovered_rank: "cp",
  recovered_link: "cp",
  checkpoint: "accent",
  evaluation: "pp",
};

export const MARK_WORDS = [
  ["pp", "evaluation"],
  ["accent", "checkpoint"],
  ["dp", "stall, slow rank or link"],
  ["cp", "came back"],
  ["warn", "fault"],
];

// Small flags at the top edge where something happened.
export function flags(u, events) {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
  const scale = devicePixelRatio;
  ctx.save();
  for (const event of events) {
    const name = MARKS[event.kind];
    if (!name) continue;
    const x = u.valToPos(Math.max(event.step, 1), "x", true);
    if (!(x >= left - 1 && x <= left + width + 1)) continue;
    ctx.fillStyle = colour(name);
    ctx.globalAlpha = 0.16;
    ctx.fillRect(x - 0.5 * scale, top, scale, height);
    ctx.globalAlpha = 1;
    ctx.beginPath();
    ctx.moveTo(x - 4 * scale, top);
    ctx.lineTo(x + 4 * scale, top);
    ctx.lineTo(x, top + 6 * scale);
    ctx.fill();
  }
  ctx.restore();
}

export function legendOf(entries) {
  return el(
    "p",
    { class: "legend" },
    entries.map(([name, word]) => {
      const swatch = el("i", { "aria-hidden": "true" });
      swatch.style.background = colour(name);
      return el("span", { class: "key" }, swatch, word);
    }),
  );
}
