// One kernel: its passes with graphs before and after, rules that fired, plan, code.
import hljs from "highlight.js/lib/core";
import llvm from "highlight.js/lib/languages/llvm";
import cpp from "highlight.js/lib/languages/cpp";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import x86asm from "highlight.js/lib/languages/x86asm";
import { h, base, seconds, bytes, count, rate, share, table, put } from "./dom.js";
import { language } from "./data.js";
import { drawGraph } from "./draw.js";

Object.entries({ llvm, cpp, python, rust, x86asm }).forEach(([name, one]) => hljs.registerLanguage(name, one));

export function code(text, name, id) {
  const pre = h("pre.code", { tabindex: "0", id, "aria-label": name });
  if (text.length < 40000) pre.innerHTML = hljs.highlight(text, { language: name, ignoreIllegals: true }).value;
  else pre.textContent = text;
  return pre;
}

export const kernelColumns = (recording) => [
  { name: "kernel", left: true, value: (k) => k.name, text: (k) => k.name },
  { name: "time", value: (k) => k.seconds, text: (k) => seconds(k.seconds) },
  { name: "share", value: (k) => k.seconds, text: (k) => share(recording.kernel_seconds ? k.seconds / recording.kernel_seconds : 0) },
  { name: "runs", value: (k) => k.count, text: (k) => count(k.count) },
  { name: "a run", value: (k) => (k.count ? k.seconds / k.count : 0), text: (k) => seconds(k.count ? k.seconds / k.count : 0) },
  { name: "of peak", value: (k) => k.peak, text: (k) => (k.peak ? share(k.peak) : "") },
  { name: "lost", value: (k) => k.lost, text: (k) => (k.least_seconds ? seconds(k.lost) : "") },
  { name: "GFLOP/s", value: (k) => speed(k, "operations"), text: (k) => rate(speed(k, "operations")) },
  { name: "GB/s", value: (k) => speed(k, "bytes"), text: (k) => rate(speed(k, "bytes")) },
  { name: "line", left: true, value: (k) => k.line.name, text: (k) => k.line.name },
  { name: "module", left: true, value: (k) => k.line.module, text: (k) => k.line.module },
];
export const speed = (k, what) => (k.seconds ? (k[what] * k.count) / k.seconds * 1e-9 : 0);

export function kernelView(main, recording, chosen, go) {
  const { kernels } = recording;
  const kernel = kernels[Number(chosen.kernel)];
  if (chosen.kernel === undefined || !kernel) {
    put(main, h("p.note", {}, "Choose a kernel to see each pass that made it. Peak is the least time that the device's arithmetic and memory allow for this work; "
      + "above 100% the data was in a cache. Lost is the time above it."),
    table(kernels.slice(), kernelColumns(recording), { sorted: 1, label: "kernels", act: (k) => go("kernels", { kernel: k.number }) }));
    return;
  }
  const parts = [["passes", "Passes"], ["nest", "Loop nest"], ["plan", "Plan"], ["program", "Program"], ["code", "Code"], ["measured", "Measured plans"]]
    .filter(([id]) => ({ passes: kernel.passes, nest: kernel.nest, plan: kernel.opts, program: kernel.program, code: kernel.source, measured: kernel.search })[id]);
  const part = parts.some(([id]) => id === chosen.part) ? chosen.part : parts[0]?.[0];
  put(main, h("div.bar", {}, h("button.plain", { type: "button", id: "back", onclick: () => go("kernels") }, "← all kernels"),
    h("strong", { id: "kernel-name" }, kernel.name),
    h("span.note", {}, `${kernel.device} · ${count(kernel.count)} runs · ${seconds(kernel.seconds)} · ${rate(speed(kernel, "operations"))} GFLOP/s · ${rate(speed(kernel, "bytes"))} GB/s`
      + (kernel.peak ? ` · ${share(kernel.peak)} of peak` : ""))),
  h("div.bar", { role: "group", "aria-label": "stages" }, parts.map(([id, name]) => h("button.plain", { type: "button", id: `part-${id}`, "aria-pressed": String(id === part), onclick: () => go("kernels", { kernel: kernel.number, part: id }) }, name))),
  h("p.verdict", { id: "verdict" }, verdict(kernel, recording).join(" ")), linesOf(kernel, recording, go));
  const box = h("div", { id: "part" });
  put(main, box);
  if (!parts.length) {
    put(box, h("p.note", {}, "Its stages were not recorded: it was made before the recording began, or there was no room for them."));
    return;
  }
  ({ passes, nest, plan, program, code: codeOf, measured })[part](box, kernel, recording, chosen, go);
}

// What holds a kernel back, in sentences: what its device needs at least and why, what is lost, where to look.
export function verdict(kernel, recording) {
  if (!kernel.count || !kernel.seconds) return ["It did not run while this was recorded."];
  const found = [], run = kernel.seconds / kernel.count, limit = recording.limits[kernel.device];
  const part = recording.kernel_seconds ? kernel.seconds / recording.kernel_seconds : 0;
  if (!limit || !kernel.least_seconds) return [`A run takes ${seconds(run)}, ${share(part)} of the time in kernels; nobody measured what ${kernel.device} can do.`];
  const arithmetic = kernel.operations / (limit.gflops * 1e9), memory = kernel.bytes / (Math.max(limit.read_gbs, limit.copy_gbs) * 1e9);
  found.push(`A run takes ${seconds(run)}, ${share(part)} of the time in kernels. ${kernel.device} needs ${seconds(arithmetic)} for its arithmetic and ${seconds(memory)} for its memory: `
    + `${arithmetic > memory ? "arithmetic" : "memory"} is the limit, and it comes to ${share(kernel.peak)} of that.`);
  if (run < 5e-6) found.push("So short a run is mostly its start: fewer, larger kernels help (fewer .realize(), TinyJit).");
  else if (kernel.peak >= 0.6) found.push("That is near what the device can do: only less work makes it faster (a smaller dtype, fewer passes over memory).");
  else {
    const opts = (kernel.opts ?? []).join(" ");
    found.push(`${seconds(kernel.lost)} were lost above the limit in all.`);
    if (kernel.opts && !/VECTOR|UPCAST|TENSOR|TILE/i.test(opts)) found.push("Its plan has no lanes: each instruction computes one item (see Plan, and Loop nest for why).");
    if (kernel.opts && !/THREAD|GLOBAL|GROUP/i.test(opts) && run > 1e-4) found.push("Its plan has no threads: one core does all of it.");
    if (/computed again/.test(kernel.notes ?? "")) found.push("It weighs computing values again against storing them (Plan): .contiguous() in your program stores them.");
    found.push(kernel.search ? "Its plans were measured (Measured plans)." : "BEAM=4 measures other plans than the cost model's.");
  }
  return found;
}

function linesOf(kernel, recording, go) {
  const links = kernel.lines.slice(0, 8).map((n) => recording.lines[n]).filter((line) => line.frames.length).map((line, i) => [i ? ", " : "for ",
    h("button.link", { type: "button", onclick: () => go("source", { file: line.frames[0][0], line: line.frames[0][1] }) }, line.name), line.module ? ` (${line.module})` : ""]);
  const made = Object.entries(kernel.made);
  return h("p.note", {}, links, made.length ? ` · made in ${made.map(([stage, t]) => `${stage} ${seconds(t)}`).join(", ")}` : "");
}

function reached(nodes, roots) {
  const found = new Set();
  const stack = [...(roots ?? [])];
  while (stack.length) {
    const node = stack.pop();
    if (found.has(node)) continue;
    found.add(node);
    stack.push(...nodes[node][3]);
  }
  return found;
}

function passes(box, kernel, recording, chosen, go) {
  const at = Math.min(Number(chosen.pass ?? 0) || 0, kernel.passes.length - 1);
  const one = kernel.passes[at];
  const list = h("ol", { "aria-label": "passes" }, kernel.passes.map((p, i) => h("li", {}, h("button", { type: "button", "data-pass": i, "aria-current": String(i === at), onclick: () => go("kernels", { kernel: kernel.number, part: "passes", pass: i }) },
    p.name, h("small", {}, `${count(p.count)} rules fired · ${seconds(p.seconds)}`)))));
  const side = chosen.side === "before" ? "before" : "after";
  const before = reached(kernel.nodes, one.before), after = reached(kernel.nodes, one.after);
  const gone = [...before].filter((n) => !after.has(n)), fresh = [...after].filter((n) => !before.has(n));
  const right = h("div", {}, h("div.bar", {}, h("strong", {}, one.name), ["before", "after"].map((name) => h("button.plain", { type: "button", id: `side-${name}`, "aria-pressed": String(side === name),
    onclick: () => go("kernels", { kernel: kernel.number, part: "passes", pass: at, side: name }) }, `Graph ${name}`)),
  h("span.note", { id: "difference" }, `${count(gone.length)} nodes gone, ${count(fresh.length)} new, ${count(after.size - fresh.length)} stay`)));
  if (one.before === null || one.after === null) put(right, h("p.note", {}, "These graphs are too large to be shown; see the program."));
  else {
    const shown = side === "before" ? before : after;
    const changed = new Set(side === "before" ? gone : fresh);
    const kind = side === "before" ? "removed" : "added";
    const nodes = [...shown].sort((a, b) => a - b).map((n) => ({ id: n, title: kernel.nodes[n][0], detail: `${kernel.nodes[n][1]} ${kernel.nodes[n][2]}`.slice(0, 34), kind: changed.has(n) ? kind : "" }));
    const edges = nodes.flatMap((node) => kernel.nodes[node.id][3].map((source) => [source, node.id]));
    const drawn = drawGraph(nodes, edges, { label: `graph ${side} ${one.name}` });
    put(right, drawn.svg, drawn.left ? h("p.note", {}, `${count(drawn.left)} nodes are not drawn.`) : "");
  }
  put(right, h("h3", {}, "Rules that fired"), fired(one, kernel, recording));
  put(box, h("div.passes", {}, list, right));
}

function fired(one, kernel, recording) {
  if (!one.count) return h("p.note", {}, "None: this pass walks the graph by itself, or had nothing to rewrite.");
  const name = (n) => `${kernel.nodes[n][0]} ${kernel.nodes[n][2]}`.trim();
  const text = h("div");
  const show = ([rule]) => {
    const r = recording.rules[rule];
    text.replaceChildren(h("h3", {}, `${r.name} · `, h("a", { href: `file://${r.file}`, title: r.file }, `${base(r.file)}:${r.line}`)), code(r.text, "python"));
  };
  const rows = table(one.fired, [
    { name: "rule", left: true, value: (f) => recording.rules[f[0]].name, text: (f) => recording.rules[f[0]].name },
    { name: "where it is written", left: true, value: (f) => recording.rules[f[0]].file, text: (f) => `${base(recording.rules[f[0]].file)}:${recording.rules[f[0]].line}` },
    { name: "before", left: true, value: (f) => name(f[1]), text: (f) => name(f[1]) },
    { name: "after", left: true, value: (f) => name(f[2]), text: (f) => name(f[2]) },
  ], { act: show, label: "rules that fired", most: 200 });
  return h("div", {}, one.count > one.fired.length ? h("p.note", {}, `${count(one.fired.length)} of ${count(one.count)} are kept.`) : null, rows, text);
}

// The lines of two listings: what is in one only is marked. Longest common subsequence, for listings of usual length.
export function difference(a, b) {
  const x = a.split("\n"), y = b.split("\n");
  if (x.length * y.length > 4e6) return [...x.map((t) => ["removed", t]), ...y.map((t) => ["added", t])];
  const best = Array.from({ length: x.length + 1 }, () => new Uint16Array(y.length + 1));
  for (let i = x.length - 1; i >= 0; i--) for (let j = y.length - 1; j >= 0; j--) best[i][j] = x[i] === y[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const found = [];
  let i = 0, j = 0;
  while (i < x.length && j < y.length) {
    if (x[i] === y[j]) { found.push(["", x[i]]); i++; j++; } else if (best[i + 1][j] >= best[i][j + 1]) found.push(["removed", x[i++]]);
    else found.push(["added", y[j++]]);
  }
  while (i < x.length) found.push(["removed", x[i++]]);
  while (j < y.length) found.push(["added", y[j++]]);
  return found;
}

function nest(box, kernel) {
  put(box, h("div.columns", {}, h("div", {}, h("h3", {}, "Before the plan"), code(kernel.nest, "python", "nest")),
    h("div", {}, h("h3", {}, "After it: what is new in green, what went in red"), h("pre.code.diff", { tabindex: "0", id: "optimised" },
      difference(kernel.nest, kernel.optimised).map(([kind, text]) => h("div", { class: kind }, text || " "))))));
}

function plan(box, kernel) {
  put(box, h("h3", {}, "Opts, in the order in which they are applied"), h("div.opts", { id: "opts" }, kernel.opts.length ? kernel.opts.map((opt) => h("code", {}, opt)) : "plain loops"),
    h("h3", {}, "The numbers behind it"), kernel.notes ? h("pre.code", { tabindex: "0" }, kernel.notes) : h("p.note", {}, "The cost model had nothing to choose."),
    h("h3", {}, "What it passed over"), kernel.alternatives?.length ? h("ul", { id: "alternatives" }, kernel.alternatives.map(({ plan, times }) => h("li", {}, h("code", {}, plan), times ? `: estimated at ${times.toFixed(2)}× the chosen plan's cost of a multiply-add` : ""))) : h("p.note", {}, "No other way to run it was considered."),
    h("h3", {}, "Its work"), h("dl.facts", {}, h("dt", {}, "operations"), h("dd", {}, count(kernel.operations)), h("dt", {}, "bytes moved at least"), h("dd", {}, bytes(kernel.bytes)),
      h("dt", {}, "least time here"), h("dd", {}, kernel.least_seconds ? seconds(kernel.least_seconds) : "nobody measured the device"), h("dt", {}, "a run took"), h("dd", {}, kernel.count ? seconds(kernel.seconds / kernel.count) : "it did not run")));
}

function program(box, kernel) {
  put(box, code(kernel.program, "python", "program"));
}

function codeOf(box, kernel) {
  put(box, h("div.columns", {}, h("div", {}, h("h3", {}, "Generated source"), code(kernel.source, language(kernel), "generated")),
    kernel.assembly ? h("div", {}, h("h3", {}, "Machine code"), code(kernel.assembly, "x86asm", "assembly"))
      : h("p.note", { id: "no-assembly" }, kernel.assembly === undefined ? "Its machine code was not made: there was no time for it (What is left out)." : "This device shows no machine code.")));
}

function measured(box, kernel) {
  put(box, searched(kernel));
}

export function searched(kernel) {
  const { rows, chosen, default_seconds: own, seconds: best } = kernel.search;
  return h("div", {}, h("p", {}, `${count(rows.length)} plans: ${seconds(own)} → ${seconds(best)} (${(own / best).toFixed(2)}×): `, h("code", {}, chosen)),
    table(rows.map(([text, time, fate]) => ({ text, time, fate })), [
      { name: "a run", value: (r) => r.time ?? Infinity, text: (r) => (r.time === null ? "" : seconds(r.time)) },
      { name: "of the cost model's", value: (r) => r.time ?? Infinity, text: (r) => (r.time === null ? "" : `${(r.time / own).toFixed(2)}×`) },
      { name: "what became of it", left: true, value: (r) => r.fate, text: (r) => (r.text === chosen ? "chosen" : r.fate) },
      { name: "plan", left: true, wide: true, value: (r) => r.text, text: (r) => r.text, node: (r) => h("code", {}, r.text) },
    ], { sorted: 0, down: false, label: "plans" }));
}
