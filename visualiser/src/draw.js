// A graph laid out by dagre and drawn as SVG, to be moved, zoomed, and walked by the keyboard.
import dagre from "@dagrejs/dagre";
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { s, clickable } from "./dom.js";

const MOST = 700;

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
  dagre.layout(graph);
  const inner = s("g");
  for (const edge of graph.edges()) {
    const points = graph.edge(edge).points;
    inner.append(s("path", { class: "edge", d: `M${points.map((p) => `${p.x.toFixed(1)},${p.y.toFixed(1)}`).join("L")}`, "marker-end": "url(#arrow)" }));
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
  const svg = s("svg", { class: "graph", role: "group", "aria-label": label ?? "graph" },
    s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0,0L8,4L0,8z", fill: "currentColor", opacity: 0.5 }))), inner);
  const mover = zoom().scaleExtent([0.05, 4]).on("zoom", (event) => inner.setAttribute("transform", event.transform));
  select(svg).call(mover);
  function fit() {
    const { width = 1, height = 1 } = graph.graph();
    const wide = svg.clientWidth || 800, high = svg.clientHeight || 500;
    const scale = Math.min(1.1, wide / (width + 20), high / (height + 20));
    select(svg).call(mover.transform, zoomIdentity.translate(Math.max(8, (wide - width * scale) / 2), 8).scale(scale));
  }
  // A large graph begins at the node that is chosen, in a size that can be read.
  function begin() {
    fit();
    const at = chosen !== null && graph.node(String(chosen));
    const { width = 1, height = 1 } = graph.graph();
    const wide = svg.clientWidth || 800, high = svg.clientHeight || 500;
    if (at && Math.min(wide / width, high / height) < 0.4) select(svg).call(mover.transform, zoomIdentity.translate(wide / 2 - at.x * 0.6, high / 3 - at.y * 0.6).scale(0.6));
  }
  function pick(id) {
    chosen = id;
    shapes.forEach((shape, other) => shape.classList.toggle("chosen", other === id));
    onpick?.(byId.get(id));
  }
  requestAnimationFrame(begin);
  return { svg, pick, left: Math.max(0, left), zoomBy: (k) => select(svg).call(mover.scaleBy, k), fit };
}
