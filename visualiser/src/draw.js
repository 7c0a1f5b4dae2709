// A graph laid out by dagre and drawn as SVG, to be moved, zoomed, and walked by the keyboard.
import dagre from "@dagrejs/dagre";
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { s, clickable } from "./dom.js";

const MOST = 700;
// Nodes, and points inside of long edges, that dagre may have to order: 400 take it up to half a second (two cores of
// a Zen 1 server), and a training step of a deep network has ten thousand.
const MOST_ORDERED = 400;
// Edges from which on those that are not of the chosen node are faint.
const DENSE = 150;

// The rank of each node, the longest way from a node without sources, and the order in which ranks can be read.
function ranks(ids, edges) {
  const after = new Map(ids.map((id) => [id, []])), waits = new Map(ids.map((id) => [id, 0])), rank = new Map(ids.map((id) => [id, 0]));
  for (const [from, to] of edges) { after.get(from).push(to); waits.set(to, waits.get(to) + 1); }
  const ready = ids.filter((id) => !waits.get(id)), begun = new Set(ready);
  const visit = (id) => {
    for (const next of after.get(id)) {
      if (begun.has(next)) continue;
      rank.set(next, Math.max(rank.get(next), rank.get(id) + 1));
      waits.set(next, waits.get(next) - 1);
      if (!waits.get(next)) { begun.add(next); ready.push(next); }
    }
  };
  for (let done = 0; begun.size < ids.length || done < ready.length;) {
    if (done === ready.length) { // groups of nodes can make circles: one of those that are waited for goes first
      const first = ids.find((id) => !begun.has(id));
      begun.add(first);
      ready.push(first);
    }
    visit(ready[done++]);
  }
  return rank;
}

// A plain layout in rows for graphs with many long edges: each node below its sources, beside those of its row in the
// order of their sources' middles; edges are straight. Fills in x, y of the nodes and points of the edges.
function layoutRows(graph, rank) {
  const rows = [];
  for (const id of graph.nodes()) (rows[rank.get(id)] ??= []).push(id);
  const widest = Math.max(...rows.map((row) => row.reduce((sum, id) => sum + graph.node(id).width + 14, 0)));
  const wide = Math.min(widest, 2400);
  let y = 10;
  for (const row of rows) {
    const middle = (id) => {
      const sources = graph.predecessors(id).map((source) => graph.node(source).x).filter((x) => x !== undefined);
      return sources.length ? sources.reduce((a, b) => a + b, 0) / sources.length : wide / 2;
    };
    const order = row.map((id) => [middle(id), id]).sort((a, b) => a[0] - b[0]).map(([, id]) => id);
    while (order.length) {
      const line = [];
      let used = 0;
      while (order.length && (used === 0 || used + graph.node(order[0]).width < wide)) { used += graph.node(order[0]).width + 14; line.push(order.shift()); }
      let x = Math.max(10, (wide - used) / 2);
      for (const id of line) { const node = graph.node(id); node.x = x + node.width / 2; node.y = y + 18; x += node.width + 14; }
      y += 36 + 34;
    }
  }
  for (const edge of graph.edges()) {
    const a = graph.node(edge.v), b = graph.node(edge.w);
    graph.edge(edge).points = [{ x: a.x, y: a.y + a.height / 2 }, { x: b.x, y: b.y - b.height / 2 }];
  }
  graph.setGraph({ ...graph.graph(), width: wide + 20, height: y });
}

// nodes: {id, title, detail, kind}; edges: [from, to]
export function drawGraph(nodes, edges, { onpick, label, vertical = true } = {}) {
  const left = nodes.length - MOST;
  const kept = new Set(nodes.slice(0, MOST).map((n) => n.id));
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: vertical ? "TB" : "LR", nodesep: 14, ranksep: 34, marginx: 10, marginy: 10, ranker: nodes.length > 120 ? "longest-path" : "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  const byId = new Map();
  let chosen = null;
  for (const node of nodes) {
    if (!kept.has(node.id)) continue;
    byId.set(node.id, node);
    const letters = Math.max(node.title.length, (node.detail ?? "").length * 0.88);
    graph.setNode(String(node.id), { width: Math.max(44, 7.4 * letters + 16), height: node.detail ? 36 : 24 });
  }
  for (const [from, to] of edges) if (kept.has(from) && kept.has(to) && from !== to) graph.setEdge(String(from), String(to));
  const ids = graph.nodes(), pairs = graph.edges().map((edge) => [edge.v, edge.w]), rank = ranks(ids, pairs);
  const bends = pairs.reduce((sum, [from, to]) => sum + Math.max(0, Math.abs(rank.get(to) - rank.get(from)) - 1), 0);
  if (ids.length + bends > MOST_ORDERED) layoutRows(graph, rank);
  else dagre.layout(graph);
  const inner = s("g"), lines = [];
  for (const edge of graph.edges()) {
    const points = graph.edge(edge).points;
    const line = s("path", { class: "edge", d: `M${points.map((p) => `${p.x.toFixed(1)},${p.y.toFixed(1)}`).join("L")}`, "marker-end": "url(#arrow)" });
    lines.push([edge, line]);
    inner.append(line);
  }
  const shapes = new Map();
  for (const [id, node] of byId) {
    const at = graph.node(String(id));
    const shape = s("g", { class: `node ${node.kind ?? ""}`, transform: `translate(${at.x - at.width / 2},${at.y - at.height / 2})`, "data-node": id,
      "aria-label": `${node.title} ${node.detail ?? ""}` },
      s("rect", { width: at.width, height: at.height }),
      s("text", { x: at.width / 2, y: node.detail ? 15 : 16, "text-anchor": "middle" }, node.title),
      node.detail ? s("text", { class: "dim", x: at.width / 2, y: 29, "text-anchor": "middle" }, node.detail) : null);
    clickable(shape, () => pick(id));
    shapes.set(id, shape);
    inner.append(shape);
  }
  const svg = s("svg", { class: lines.length > DENSE ? "graph dense" : "graph", role: "group", "aria-label": label ?? "graph" },
    s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0,0L8,4L0,8z", fill: "currentColor", opacity: 0.5 }))), inner);
  const mover = zoom().scaleExtent([0.05, 4]).on("zoom", (event) => inner.setAttribute("transform", event.transform));
  select(svg).call(mover);
  function fit() {
    const { width = 1, height = 1 } = graph.graph();
    const wide = svg.clientWidth || 800, high = svg.clientHeight || 500;
    const scale = Math.min(1.1, wide / (width + 20), high / (height + 20));
    select(svg).call(mover.transform, zoomIdentity.translate(Math.max(8, (wide - width * scale) / 2), 8).scale(scale));
  }
  // A large graph begins at the node that is chosen, else at the first that changed, in a size that can be read.
  function begin() {
    fit();
    const first = chosen ?? nodes.find((node) => byId.has(node.id) && /added|removed/.test(node.kind ?? ""))?.id ?? nodes[0]?.id;
    const at = first !== undefined && graph.node(String(first));
    const { width = 1, height = 1 } = graph.graph();
    const wide = svg.clientWidth || 800, high = svg.clientHeight || 500;
    const scale = wide < 600 ? 0.8 : 0.75;
    // what is chosen stands in the middle, as far as the graph goes on beside it
    const shift = (whole, room, middle) => (whole <= room ? (room - whole) / 2 : Math.min(8, Math.max(room - whole - 8, middle)));
    if (at && Math.min(wide / width, high / height) < 0.6) {
      select(svg).call(mover.transform, zoomIdentity.translate(shift(width * scale, wide, wide / 2 - at.x * scale), shift(height * scale, high, high / 3 - at.y * scale)).scale(scale));
    }
  }
  function pick(id) {
    chosen = id;
    shapes.forEach((shape, other) => shape.classList.toggle("chosen", other === id));
    lines.forEach(([edge, line]) => line.classList.toggle("near", edge.v === String(id) || edge.w === String(id)));
    onpick?.(byId.get(id));
  }
  requestAnimationFrame(begin);
  return { svg, pick, left: Math.max(0, left), zoomBy: (k) => select(svg).call(mover.scaleBy, k), fit };
}
