// Elements and words: text is never added to the page as HTML, and quantities are written as in the reports.

export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);
const NOTHING = "\u2013";

export function seconds(value) {
  if (!known(value)) return NOTHING;
  const digits = (number, count) => String(Number(number.toPrecision(count)));
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${digits(value * 1e6, 3)} \u00b5s`;
  if (value < 1) return `${digits(value * 1e3, 4)} ms`;
  if (value < 120) return `${digits(value, 4)} s`;
  if (value < 7200) return `${digits(value / 60, 4)} min`;
  if (value < 259200) return `${digits(value / 3600, 3)} h`;
  return `${Math.round(value / 8640) / 10} d`;
}

export function roughly(value) {
  if (!known(value)) return NOTHING;
  if (value < 1) return "less than 1 s";
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 360) / 10} h`;
  return `${Math.round(value / 8640) / 10} d`;
}

export function usd(value) {
  if (!known(value)) return NOTHING;
  if (value > 0 && value < 0.1) return `$${Number(value.toPrecision(3))}`; // like `usd` of units.py
  const cents = Math.abs(value) < 100 ? 2 : 0;
  return `$${value.toLocaleString("en", { minimumFractionDigits: cents, maximumFractionDigits: cents })}`;
}

export function number(value, digits = 4) {
  if (!known(value)) return NOTHING;
  return Math.abs(value) >= 10 ** digits || Number.isInteger(value)
    ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(digits)));
}

export const loss = (value) => (known(value) ? value.toFixed(value < 10 ? 3 : 2) : NOTHING);

// A tick of an axis whose ticks are `step` apart, with as many decimals as needed.
export const tick = (value, step) => value.toFixed(Math.min(Math.max(-Math.floor(Math.log10(step || 1) + 1e-9), 0), 6));

export function si(value, unit) {
  if (!known(value)) return NOTHING;
  for (const [factor, prefix] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (value >= factor) return `${Number((value / factor).toPrecision(3))} ${prefix}${unit}`;
  }
  return `${Number(value.toPrecision(3))} ${unit}`;
}

// Like `energy` of units.py.
export function energyWord(joules) {
  if (!known(joules)) return NOTHING;
  const whole = Math.abs(joules) / 3.6e6;
  const [factor, unit] = whole >= 1e4 ? [1e-3, "MWh"] : whole >= 0.1 || !whole ? [1, "kWh"] : [1e3, "Wh"];
  const value = (joules / 3.6e6) * factor;
  return `${Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(4))} ${unit}`;
}

export const percent = (share, digits = 0) => (known(share) ? `${(100 * share).toFixed(digits)} %` : NOTHING);

export function ago(iso) {
  const passed = (Date.now() - Date.parse(iso)) / 1000;
  if (!Number.isFinite(passed)) return NOTHING;
  return passed < 5 ? "just now" : `${roughly(passed)} ago`;
}

export function clock(iso) {
  const when = new Date(iso);
  if (Number.isNaN(when.getTime())) return NOTHING;
  const day = when.toDateString() === new Date().toDateString() ? {} : { month: "short", day: "numeric" };
  return when.toLocaleString(undefined, { ...day, hour: "2-digit", minute: "2-digit" });
}

// The parts of a step and their names, the same as PARTS and PART_NAMES of record/entries.py; a test checks that they agree.
export const partNames = [
  "compute",
  "exposed_tp",
  "exposed_cp",
  "exposed_pp",
  "exposed_dp",
  "exposed_ep",
  "bubble",
  "optimizer",
  "data",
  "overhead",
];
export const partWord = (part) => part.replaceAll("_", " ");
export const partColour = (part) => part.replace("exposed_", "");

const STATUS = {
  running: "running",
  finished: "finished",
  target_reached: "target reached",
  stopped: "stopped",
  failed: "failed",
  damaged: "damaged",
  quiet: "silent",
  reading: "being read",
};
export const statusWord = (status) => STATUS[status] ?? status;

export function status(word) {
  return el("span", { class: `live-status ${STATUS[word] ? word : ""}` }, el("i", { "aria-hidden": "true" }), statusWord(word));
}

export const runAddress = (name) => `#/run/${encodeURIComponent(name)}`;
export const compareAddress = (names) => `#/compare/${names.map(encodeURIComponent).join("/")}`;
