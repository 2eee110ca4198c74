// Requests to the server: only what is new, and only while the page is visible.

export class Gone extends Error {}

export async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" }, cache: "no-store" });
  const body = await answer.json().catch(() => null);
  if (answer.status === 401) throw new Gone("The page needs its token: open a new link from the terminal where it was started.");
  if (!answer.ok) {
    const error = new Error(body?.problem?.what ?? `The server answered ${answer.status}.`);
    error.problem = body?.problem ?? null;
    throw error;
  }
  return body;
}

export const runPath = (name) => `/api/runs/${encodeURIComponent(name)}`;

// Calls `look` again and again, `rest()` milliseconds apart, and not while the page is hidden. Returns a function that stops it.
export function follow(look, rest) {
  let timer = 0;
  let ended = false;
  let busy = false;
  const banner = document.getElementById("lost");
  async function turn() {
    clearTimeout(timer);
    if (ended || busy || document.hidden) return;
    busy = true;
    let pause = 3000;
    try {
      await look();
      banner.hidden = true;
      pause = rest();
    } catch (error) {
      if (ended) return;
      if (error.problem) throw error;
      banner.textContent =
        error instanceof Gone
          ? error.message
          : "meshwright serve does not answer. The page shows its last answer, and tries again by itself.";
      banner.hidden = false;
    } finally {
      busy = false;
    }
    if (!ended) timer = setTimeout(turn, pause);
  }
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", turn);
  };
}
