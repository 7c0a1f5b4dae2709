// The page: a head, seven views, and what is chosen in the address, so that it can be linked and reloaded.
import { read } from "./data.js";
import { h, seconds, bytes, count } from "./dom.js";
import { sourceView } from "./source.js";
import { graphView } from "./graph.js";
import { kernelView } from "./kernel.js";
import { timelineView } from "./timeline.js";
import { memoryView } from "./memory.js";
import { rooflineView } from "./roofline.js";
import { searchView } from "./search.js";

const VIEWS = [
  ["source", "Source", sourceView], ["graph", "Graph", graphView], ["kernels", "Kernels", kernelView],
  ["timeline", "Timeline", timelineView], ["memory", "Memory", memoryView], ["roofline", "Roofline", rooflineView],
  ["search", "Search", searchView],
];

const app = document.getElementById("app");

// Where one is: #view/key=value/...
export function place() {
  const [view, ...rest] = location.hash.slice(1).split("/");
  return { view: VIEWS.some(([id]) => id === view) ? view : "source",
    chosen: Object.fromEntries(rest.map((part) => part.split("=").map(decodeURIComponent))) };
}

export function go(view, chosen = {}) {
  const now = place();
  if (now.view !== view || (now.chosen.kernel ?? "") !== String(chosen.kernel ?? "")) scrollTo(0, 0);
  const parts = Object.entries(chosen).map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
  location.hash = [view, ...parts].join("/");
}

function theme() {
  const root = document.documentElement;
  const stored = localStorage.getItem("tinygrad-theme");
  if (stored) root.dataset.theme = stored;
  return h("button.plain", { type: "button", id: "theme", title: "dark or light", onclick: () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("tinygrad-theme", root.dataset.theme); } catch { /* a page without storage */ }
    render();
  } }, "Dark / light");
}

let recording;
let main;
let tabs;

function head() {
  const { program, kernels, memory, notes } = recording;
  const used = kernels.filter((k) => k.count).length;
  return h("header.top", {}, h("h1", {}, program.command),
    h("span.facts", { id: "facts" }, `${program.started} · ${seconds(program.seconds)} on ${program.device} · ${count(used)} kernels, `
      + `${seconds(recording.kernel_seconds)} in them · peak ${bytes(memory.peak)}`),
    theme(), notes.length ? h("details.notes", {}, h("summary", {}, `What is left out (${count(notes.length)})`), h("ul", {}, notes.map((note) => h("li", {}, note)))) : "");
}

function render() {
  const { view, chosen } = place();
  tabs.forEach(([id, tab]) => {
    tab.setAttribute("aria-selected", id === view);
    tab.setAttribute("tabindex", id === view ? "0" : "-1");
  });
  const [, title, make] = VIEWS.find(([id]) => id === view);
  document.title = `${title} · ${recording.program.command}`;
  main.replaceChildren(h("h2", {}, title));
  main.dataset.view = view;
  make(main, recording, chosen, go);
}

async function start() {
  try {
    recording = await read();
  } catch (error) {
    app.replaceChildren(h("p.loading", { role: "alert" }, `This recording cannot be read: ${error.message}`));
    app.removeAttribute("aria-busy");
    return;
  }
  tabs = VIEWS.map(([id, title]) => [id, h("button", { type: "button", role: "tab", id: `tab-${id}`, onclick: () => go(id) }, title)]);
  const nav = h("nav.views", { role: "tablist", "aria-label": "Views", onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = VIEWS.findIndex(([id]) => id === place().view);
    const next = VIEWS[(at + step + VIEWS.length) % VIEWS.length][0];
    go(next);
    tabs.find(([id]) => id === next)[1].focus();
  } }, tabs.map(([, tab]) => tab));
  main = h("main", { id: "main" });
  app.replaceChildren(head(), nav, main);
  app.removeAttribute("aria-busy");
  addEventListener("hashchange", render);
  addEventListener("keydown", (event) => {
    const number = Number(event.key);
    if (number >= 1 && number <= VIEWS.length && !event.target.closest("input, select, textarea") && !event.ctrlKey && !event.metaKey && !event.altKey) go(VIEWS[number - 1][0]);
  });
  render();
  watch();
}

// Served by `python -m tinygrad.viz`, the page asks now and then whether there is a newer one.
function watch() {
  if (!location.protocol.startsWith("http")) return;
  let known = null;
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(`${location.pathname}?changed`);
      if (!answer.ok) return; // it is written anew: what is shown stays until it is there
      const now = await answer.text();
      if (known !== null && now !== known) location.reload();
      known = now;
    } catch { /* the server is gone: the page stays as it is */ }
  }, 2000);
}

start();
