// The tensor graphs that were scheduled: by module, by kernel, or node by node.
import { h, count, seconds, put, fill } from "./dom.js";
import { drawGraph } from "./draw.js";

const MEMORY = new Set(["BUFFER"]);

export function graphView(main, recording, chosen, go) {
  const { schedules, kernels, lines } = recording;
  if (!schedules.length) {
    put(main, h("p.note", {}, "No graph was scheduled while VIZ=1 recorded."));
    return;
  }
  const cost = (s) => s.items.reduce((sum, item) => sum + (kernels[item[0]]?.seconds ?? 0), 0);
  const largest = schedules.reduce((best, s, i) => (cost(s) > cost(schedules[best]) ? i : best), 0);
  const number = schedules[Number(chosen.schedule)] ? Number(chosen.schedule) : largest;
  const mode = chosen.by ?? "kernel";
  const schedule = schedules[number];
  if (!schedule.nodes.length) put(main, h("p.note", {}, "There was no room for the nodes of this graph; its kernels are under Kernels."));
  const title = (s, i) => {
    const tally = new Map();
    for (const item of s.items) { const line = lines[item[2][0] ?? 0].name; tally.set(line, (tally.get(line) ?? 0) + 1); }
    const [first] = [...tally].sort((a, b) => b[1] - a[1])[0] ?? ["nothing"];
    return `${i + 1}: ${count(s.nodes.length)} nodes, ${s.items.length} steps, ${first}`;
  };
  const pick = h("select", { id: "schedule", "aria-label": "Graph", onchange: (e) => go("graph", { schedule: e.target.value, by: mode }) },
    schedules.map((s, i) => h("option", { value: i, selected: i === number }, title(s, i))));
  const modes = [["module", "by module"], ["kernel", "by kernel"], ["node", "every node"]].map(([id, name]) =>
    h("button.plain", { type: "button", id: `by-${id}`, "aria-pressed": String(mode === id), onclick: () => go("graph", { schedule: number, by: id }) }, name));
  const detail = h("div.card.sticky", { "aria-live": "polite" }, h("p.note", {}, "Choose a node."));

  const groupOf = (node, i) => {
    const [op, , , , , line, items] = node;
    if (MEMORY.has(op)) return `m${i}`;
    if (mode === "module") return lines[line].module ? `M${lines[line].module}${lines[line].gradient ? " (gradient)" : ""}` : `l${lines[line].name}`;
    return items.length ? `k${items[0]}` : null;
  };
  // What no kernel computes is a view: it is drawn with what it is a view of, or with who uses it.
  const groups0 = schedule.nodes.map(groupOf);
  schedule.nodes.forEach((node, i) => {
    const of = groups0[node[0] === "ASSIGN" ? node[4][1] : node[4][0]];
    groups0[i] ??= of && !of.startsWith("m") ? of : null;
  });
  for (let i = schedule.nodes.length - 1; i >= 0; i--) {
    for (const source of schedule.nodes[i][4]) if (groups0[i]) groups0[source] ??= groups0[i];
  }
  // Memory that one group alone uses is drawn in that group.
  const users = schedule.nodes.map(() => new Set());
  schedule.nodes.forEach((node, i) => node[4].forEach((source) => users[source].add(groups0[i])));
  schedule.nodes.forEach((node, i) => { if (groups0[i] === `m${i}` && users[i].size === 1) groups0[i] = [...users[i]][0] ?? groups0[i]; });
  const open = new Set((chosen.open ?? "").split(",").filter(Boolean));
  const id = schedule.nodes.map((node, i) => {
    const group = (mode === "node" ? null : groups0[i]) ?? `n${i}`;
    return open.has(group) ? `n${i}` : group;
  });
  const groups = new Map();
  id.forEach((key, i) => { if (!groups.has(key)) groups.set(key, []); groups.get(key).push(i); });
  const edges = new Map();
  schedule.nodes.forEach((node, i) => node[4].forEach((source) => {
    if (id[source] !== id[i]) edges.set(`${id[source]}>${id[i]}`, [id[source], id[i]]);
  }));
  const linked = new Set([...edges.values()].flat());
  const shape = (node) => `${node[1]} ${node[2].length ? node[2].join("×") : ""}`;
  const nodes = [...groups].filter(([key]) => linked.has(key) || groups.size < 40).map(([key, members]) => {
    const last = schedule.nodes[members.at(-1)];
    if (key[0] === "k") {
      const item = schedule.items[Number(key.slice(1))];
      const kernel = kernels[item?.[0]];
      return { id: key, title: kernel ? kernel.name : "copy", detail: lines[item?.[2][0] ?? 0].name, kind: "kernel", members, item, kernel };
    }
    if (key[0] === "M") return { id: key, title: key.slice(1), detail: `${members.length} nodes`, kind: "module", members };
    if (key[0] === "l") return { id: key, title: key.slice(1), detail: `${members.length} nodes`, kind: "kernel", members };
    return { id: key, title: last[0], detail: shape(last), kind: MEMORY.has(last[0]) ? "memory" : last[0] === "REDUCE" ? "reduce" : "", members };
  });
  const drawn = drawGraph(nodes, [...edges.values()], { label: "tensor graph", onpick: show });

  function show(node) {
    const last = schedule.nodes[node.members.at(-1)];
    const line = lines[last[5]];
    const facts = h("dl.facts");
    const fact = (name, ...value) => value.some((v) => v !== undefined && v !== "") && facts.append(h("dt", {}, name), h("dd", {}, ...value));
    fact("operation", last[0]);
    fact("shape", `(${last[2].join(", ")})`);
    fact("dtype", last[1]);
    fact("argument", last[3]);
    fact("module", line.module);
    const frame = line.frames[0];
    if (frame) fact("line", h("button.link", { type: "button", onclick: () => go("source", { file: frame[0], line: frame[1] }) }, line.name));
    if (node.members.length > 1) fact("nodes", count(node.members.length));
    const own = [...new Set(node.members.flatMap((m) => schedule.nodes[m][6]))].map((i) => schedule.items[i]).filter(Boolean);
    for (const item of own.slice(0, 12)) {
      const kernel = kernels[item[0]];
      if (kernel) fact("kernel", h("button.link", { type: "button", onclick: () => go("kernels", { kernel: kernel.number }) }, kernel.name), ` ${seconds(kernel.seconds)}`);
    }
    const values = last[7];
    fill(detail, h("h3", {}, node.title), facts,
      h("h3", {}, "Its value"), values
        ? h("dl.facts", { id: "statistics" }, Object.entries(values).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value === null ? "none" : typeof value === "number" ? Number(value.toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 6 }) : value)]))
        : h("p.note", {}, "It was not in memory when the recording was written."),
      node.members.length > 1 && !open.has(node.id) ? h("button.plain", { type: "button", id: "expand", onclick: () => go("graph", { schedule: number, by: mode, open: [...open, node.id].join(",") }) }, "Show its nodes") : null,
      open.size ? h("button.plain", { type: "button", onclick: () => go("graph", { schedule: number, by: mode }) }, "Collapse all") : null);
  }

  put(main, h("div.bar", {}, pick, modes, h("button.plain", { type: "button", "aria-label": "larger", onclick: () => drawn.zoomBy(1.3) }, "+"),
    h("button.plain", { type: "button", "aria-label": "smaller", onclick: () => drawn.zoomBy(1 / 1.3) }, "−"), h("button.plain", { type: "button", onclick: () => drawn.fit() }, "fit")),
    drawn.left || schedule.left_out ? h("p.note", {}, `${count(drawn.left + schedule.left_out)} nodes are not drawn; collapse by module or kernel to see the whole.`) : null,
    h("div.split", {}, h("div", {}, drawn.svg), detail));
  const first = nodes.slice().sort((a, b) => (b.kernel?.seconds ?? 0) - (a.kernel?.seconds ?? 0))[0];
  if (first) drawn.pick(first.id);
}
