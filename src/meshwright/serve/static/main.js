// Which page is shown: #/ all runs, #/run/NAME one run, #/compare/A/B/... several runs.

import { showCompare } from "./compare.js";
import { showList } from "./list.js";
import { showRun } from "./run.js";

const content = document.getElementById("content");
let leave = () => {};

function route() {
  leave();
  const [page, ...names] = location.hash.replace(/^#\/?/, "").split("/");
  let decoded;
  try {
    decoded = names.map(decodeURIComponent);
  } catch {
    decoded = [];
  }
  content.replaceChildren();
  if (page === "run" && decoded.length === 1) leave = showRun(content, decoded[0]);
  else if (page === "compare" && decoded.length) leave = showCompare(content, decoded);
  else leave = showList(content);
  window.scrollTo(0, 0);
}

window.addEventListener("hashchange", (event) => {
  if (new URL(event.newURL).hash !== "#content") {
    route();
    content.focus({ preventScroll: true });
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", route);
route();
