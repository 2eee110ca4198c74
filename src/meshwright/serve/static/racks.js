// A map of the machine: racks, trays, accelerators; each coloured by the health or by the coordinates of its rank.

import { ask, runPath } from "./api.js";
import { colour, faded, legendOf } from "./charts.js";
import { el, number, percent, say, seconds } from "./words.js";

const MODES = { health: "Health", time: "Step time", pp: "Pipeline stage", dp: "Replica", tp: "Tensor rank" };
const ENDED = new Set(["failed", "stopped", "quiet"]);

export function makeRacks(name) {
  const canvas = el("canvas", {
    class: "live-racks",
    tabindex: "0",
    role: "application",
    "aria-label": "Map of the ranks: arrow keys move from one to the next",
  });
  const caption = el("p", { class: "rank-caption", "aria-live": "polite" });
  const choice = el("div", { class: "segments", role: "radiogroup", "aria-label": "Colour ranks by" });
  const legend = el("div");
  const note = el("p", { class: "caption" });
  const element = el(
    "div",
    {},
    el("div", { class: "live-heading" }, el("h2", {}, "Rack map"), choice),
    canvas,
    el("div", { class: "live-below" }, legend, caption),
    note,
  );
  const map = { place: null, cells: [], cell: 0, mode: "health", health: null, status: "", at: -1, problem: "" };
  let asked = false;

  async function fetchPlaces(run) {
    asked = true;
    if (!run.has_plan) {
      map.problem = "The run has no plan, so the places of its ranks are not known.";
    } else {
      try {
        map.place = await ask(`${runPath(name)}/racks`);
      } catch (error) {
        map.problem = error.message;
      }
    }
    say(note, map.problem);
    canvas.hidden = choice.hidden = !map.place;
    if (map.place) {
      offerModes();
      lay();
    }
  }

  function offerModes() {
    const modes = Object.keys(MODES).filter((mode) =>
      mode === "time" ? map.health?.last || map.health?.busy : mode === "health" || map.place.axes.includes(mode),
    );
    if (choice.childElementCount === modes.length) return;
    choice.replaceChildren(
      ...modes.map((mode) => {
        const input = el("input", { type: "radio", name: "rank-colour", value: mode, id: `rank-${mode}` });
        input.checked = mode === map.mode;
        input.addEventListener("change", () => {
          map.mode = mode;
          draw();
        });
        return el("label", { for: `rank-${mode}` }, input, MODES[mode]);
      }),
    );
  }

  function lay() {
    if (!map.place || !element.clientWidth) return;
    arrange(map, element.clientWidth);
    draw();
  }

  function draw() {
    if (map.place) paint(canvas, map, legend, note);
    if (map.at >= 0) say(caption, described(map, map.at));
  }

  function point(event) {
    const area = canvas.getBoundingClientRect();
    choose(rankAt(map, event.clientX - area.left, event.clientY - area.top));
  }

  function choose(rank) {
    if (rank === map.at) return;
    map.at = rank;
    say(caption, rank < 0 ? "" : described(map, rank));
    draw();
  }

  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && document.activeElement !== canvas && choose(-1));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map.columns, ArrowDown: map.columns, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !map.place) return;
    event.preventDefault();
    choose(Math.min(Math.max((map.at < 0 ? 0 : map.at) + step, 0), map.place.num_ranks - 1));
  });
  canvas.addEventListener("focus", () => map.at < 0 && map.place && choose(0));
  const watch = new ResizeObserver(lay);
  watch.observe(element);

  function update(run) {
    const key = JSON.stringify([run.health, run.status]);
    const changed = key !== map.key;
    Object.assign(map, { health: run.health, status: run.status, key });
    if (!asked) fetchPlaces(run);
    else if (map.place && changed) {
      offerModes();
      draw();
    }
  }
  return { element, update, end: () => watch.disconnect() };
}

// Where each rank is drawn: blocks (racks, or nodes if there are no racks) in rows, cells in a block.
function arrange(map, width) {
  const { place, columns, num_ranks: count } = map.place;
  const outer = place.slice(0, -2);
  const [rowName, columnName] = place.slice(-2);
  const hasRacks = outer.length > 0;
  const perRow = hasRacks ? map.place.per_node : Math.min(map.place.per_node, 4);
  const rowsOf = hasRacks ? Math.ceil(map.place.num_installed / map.place.per_node) : Math.ceil(map.place.per_node / perRow);
  const blockOf = (rank) => (hasRacks ? outer.map((level) => columns[level][rank]).join("/") : String(columns[rowName][rank]));
  const blocks = new Map();
  for (let rank = 0; rank < count; rank += 1) {
    const key = blockOf(rank);
    if (!blocks.has(key)) blocks.set(key, []);
    blocks.get(key).push(rank);
  }
  const rows = hasRacks ? Math.max(rowsOf, 1) : rowsOf;
  const label = 14;
  const most = width < 600 ? 1100 : 560;
  let cell = width < 600 ? 13 : 22;
  let across = 1;
  for (; cell > 2; cell -= 0.5) {
    const wide = perRow * cell + Math.max(cell * 0.6, 4);
    across = Math.max(Math.floor(width / wide), 1);
    if (Math.ceil(blocks.size / across) * (rows * cell + label + 6) <= most && wide <= width) break;
  }
  across = Math.ceil(blocks.size / Math.ceil(blocks.size / across)); // rows of equal length
  const narrow = perRow * cell + Math.max(cell * 0.6, 4);
  const wide = Math.max(narrow, Math.min(width / across, narrow * 1.4));
  const high = rows * cell + label + 6;
  Object.assign(map, {
    cell,
    across,
    wide,
    high,
    label,
    perRow,
    rows,
    columns: perRow,
    blocks: [...blocks],
    hasRacks,
    height: Math.ceil(blocks.size / across) * high,
    xs: new Float32Array(count),
    ys: new Float32Array(count),
    width,
  });
  map.blocks.forEach(([, ranks], number_) => {
    const left = (number_ % across) * wide;
    const top = Math.floor(number_ / across) * high + label;
    for (const rank of ranks) {
      const within = hasRacks
        ? [columns[columnName][rank], columns[rowName][rank]]
        : [columns[columnName][rank] % perRow, Math.floor(columns[columnName][rank] / perRow)];
      map.xs[rank] = left + within[0] * cell;
      map.ys[rank] = top + within[1] * cell;
    }
  });
}

function rankAt(map, x, y) {
  if (!map.xs) return -1;
  for (let rank = 0; rank < map.xs.length; rank += 1) {
    if (x >= map.xs[rank] && x < map.xs[rank] + map.cell && y >= map.ys[rank] && y < map.ys[rank] + map.cell) return rank;
  }
  return -1;
}

function paint(canvas, map, legend, note) {
  const scale = devicePixelRatio;
  canvas.style.height = `${map.height}px`;
  canvas.width = map.width * scale;
  canvas.height = map.height * scale;
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  const gap = map.cell >= 8 ? 1.5 : map.cell >= 5 ? 1 : 0.5;
  drawBlocks(ctx, map, gap);
  const painter = painterOf(map);
  for (let rank = 0; rank < map.xs.length; rank += 1) {
    ctx.fillStyle = painter.colour(rank);
    ctx.fillRect(map.xs[rank], map.ys[rank], map.cell - gap, map.cell - gap);
  }
  if (map.at >= 0) {
    ctx.strokeStyle = colour("ink");
    ctx.lineWidth = 2;
    ctx.strokeRect(map.xs[map.at] - 1.5, map.ys[map.at] - 1.5, map.cell - gap + 3, map.cell - gap + 3);
  }
  legend.replaceChildren(painter.legend);
  const spare = map.place.num_installed - map.place.num_used;
  const unit = map.hasRacks ? map.place.place.at(-3) : map.place.place.at(-2);
  say(
    note,
    [
      `${number(map.place.num_ranks)} ranks in ${number(map.blocks.length)} ${unit}${map.blocks.length > 1 ? "s" : ""}`,
      spare > 0 && map.hasRacks ? `${spare} accelerators of each ${map.place.domain} are spares (outlined)` : "",
      painter.note,
    ]
      .filter(Boolean)
      .join(". ") + ".",
  );
}

function drawBlocks(ctx, map, gap) {
  ctx.font = '10px system-ui, "DejaVu Sans", sans-serif';
  ctx.textBaseline = "alphabetic";
  const spares = map.hasRacks ? map.place.num_installed : 0;
  map.blocks.forEach(([key, ranks], number_) => {
    const left = (number_ % map.across) * map.wide;
    const top = Math.floor(number_ / map.across) * map.high + map.label;
    ctx.fillStyle = colour("soft");
    const unit = map.hasRacks ? map.place.place.at(-3) : map.place.place.at(-2);
    const title = map.wide >= 60 ? `${unit} ${key}` : key;
    if (map.wide >= 20 || number_ % 5 === 0) ctx.fillText(title, left, top - 4);
    ctx.strokeStyle = colour("line");
    for (let slot = ranks.length; slot < spares; slot += 1) {
      ctx.strokeRect(
        left + (slot % map.perRow) * map.cell + 0.5,
        top + Math.floor(slot / map.perRow) * map.cell + 0.5,
        map.cell - gap - 1,
        map.cell - gap - 1,
      );
    }
  });
}

function painterOf(map) {
  if (map.mode === "time" && (map.health?.busy || map.health?.last)) return map.health.busy ? byBusy(map) : byLast(map);
  if (["pp", "dp", "tp"].includes(map.mode)) return byAxis(map, map.mode);
  const slow = new Set(Object.keys(map.health?.slow ?? {}).map(Number));
  const were = new Set(map.health?.recovered ?? []);
  const [sound, bad, back] = [ENDED.has(map.status) ? colour("bubble") : faded("activations", 0.8), colour("warn"), colour("dp")];
  const noted = [
    [ENDED.has(map.status) ? "bubble" : "activations", ENDED.has(map.status) ? "no longer running" : "sound"],
    ["warn", `slow (${slow.size})`],
    ["dp", `was slow (${were.size})`],
  ];
  return { colour: (rank) => (slow.has(rank) ? bad : were.has(rank) ? back : sound), legend: legendOf(noted), note: "" };
}

// A colour from pale to strong for a share from 0 to 1.
function ramp(share) {
  const held = Math.min(Math.max(share, 0), 1);
  return faded(held > 0.66 ? "warn" : held > 0.33 ? "dp" : "accent", held > 0.33 ? 0.45 + 0.55 * held : 0.22 + 1.2 * held);
}

function rampLegend(low, high) {
  const bar = el("span", { class: "live-ramp", "aria-hidden": "true" });
  for (let at = 0; at <= 20; at += 1) {
    const piece = el("i");
    piece.style.background = ramp(at / 20);
    bar.append(piece);
  }
  return el("p", { class: "legend" }, low, " ", bar, " ", high);
}

function byBusy(map) {
  const { busy_s: busy, num_steps: steps, step } = map.health.busy;
  const stages = map.place.columns.pp ?? busy.map(() => 0);
  const groups = new Map();
  busy.forEach((value, rank) => groups.set(stages[rank], [...(groups.get(stages[rank]) ?? []), value]));
  const usual = new Map([...groups].map(([stage, values]) => [stage, values.sort((a, b) => a - b)[Math.floor(values.length / 2)]]));
  const over = (rank) => busy[rank] / usual.get(stages[rank]) - 1;
  map.timeWords = (rank) =>
    `busy ${seconds(busy[rank])} a step, ${over(rank) >= 0 ? "+" : "\u2212"}${percent(Math.abs(over(rank)), 1)} of its stage's median`;
  return {
    colour: (rank) => ramp((over(rank) + 0.02) / 0.3),
    legend: rampLegend("as fast as its stage", "30 % slower"),
    note: `Busy time of each rank: median of ${number(steps)} steps up to step ${number(step)}`,
  };
}

function byLast(map) {
  const { counts, num_steps: steps } = map.health.last;
  const most = Math.max(...Object.values(counts), 1);
  const replicas = map.place.columns.dp ?? new Array(map.place.num_ranks).fill(0);
  const count = (rank) => counts[replicas[rank]] ?? 0;
  map.timeWords = (rank) => `its replica came last in ${number(count(rank))} of the last ${number(steps)} steps`;
  return {
    colour: (rank) => ramp(count(rank) / most),
    legend: rampLegend("never last", `last in ${number(most)} of ${number(steps)} steps`),
    note: "Which replica the others waited for",
  };
}

function byAxis(map, axis) {
  const values = map.place.columns[axis];
  const most = Math.max(
    1,
    values.reduce((top, value) => Math.max(top, value), 0),
  );
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const shade = (value) => `hsl(${(250 - (235 * value) / most + 360) % 360} 52% ${(dark ? 56 : 60) + (value % 2 ? 10 : 0)}%)`;
  const shades = Array.from({ length: most + 1 }, (_, value) => shade(value));
  const picked =
    most < 16 ? shades.map((_, value) => value) : [0, Math.floor(most / 4), Math.floor(most / 2), Math.floor((3 * most) / 4), most];
  const legend = el(
    "p",
    { class: "legend" },
    picked.map((value) => {
      const swatch = el("i", { "aria-hidden": "true" });
      swatch.style.background = shades[value];
      return el("span", { class: "key" }, swatch, `${axis} ${value}`);
    }),
  );
  return { colour: (rank) => shades[values[rank]], legend, note: "" };
}

function described(map, rank) {
  const { place, axes, columns } = map.place;
  const where = place.map((level) => `${level === "gpu" ? "GPU" : level} ${columns[level][rank]}`).join(", ");
  const coordinates = axes.map((axis) => `${axis} ${columns[axis][rank]}`).join(", ");
  const slow = map.health?.slow?.[rank];
  const state = slow ?? (map.health?.recovered?.includes(rank) ? "was slow, and is normal again" : "");
  const time = map.mode === "time" && map.timeWords ? map.timeWords(rank) : "";
  return [`Rank ${number(rank)}: ${where}`, coordinates, state, time].filter(Boolean).join(" \u00b7 ");
}
