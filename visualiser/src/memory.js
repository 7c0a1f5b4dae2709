// Memory over time, who owns the peak, and what the planner laid over what.
import { scaleLinear } from "d3-scale";
import { h, s, bytes, seconds, count, share, table, put } from "./dom.js";

const H = 260, LEFT = 64, BOTTOM = 22;
const short = (text) => text.replace(/\.0+(?= )/, ""); // of a mark at a round number

export function memoryView(main, recording, chosen, go) {
  const W = Math.max(340, Math.min(1240, main.clientWidth - 30));
  const { memory, lines } = recording;
  if (!memory.series.length) {
    put(main, h("p.note", {}, "No memory was taken while this was recorded."));
    return;
  }
  const end = Math.max(memory.series.at(-1)[0], 1e-9);
  const x = scaleLinear([memory.series[0][0], end], [LEFT, W - 8]);
  const y = scaleLinear([0, memory.peak * 1.08], [H - BOTTOM, 6]);
  let path = "", last = null;
  for (const [t, used] of memory.series) {
    path += last === null ? `M${x(t).toFixed(1)},${y(used).toFixed(1)}` : `H${x(t).toFixed(1)}V${y(used).toFixed(1)}`;
    last = used;
  }
  const area = `${path}V${y(0)}H${x(memory.series[0][0])}Z`;
  put(main, h("p.note", { id: "peak" }, `Peak ${bytes(memory.peak)} at ${seconds(memory.peak_at)}.`),
    s("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `memory over time, at most ${bytes(memory.peak)}` },
      y.ticks(5).map((v) => [s("line", { class: "grid", x1: LEFT, x2: W, y1: y(v), y2: y(v) }), s("text", { x: LEFT - 5, y: y(v) + 4, "text-anchor": "end" }, short(bytes(v)))]),
      x.ticks(Math.max(2, Math.min(8, Math.floor(W / 110)))).map((v) => s("text", { x: x(v), y: H - 6, "text-anchor": "middle" }, short(seconds(v)))),
      s("path", { class: "area", d: area }), s("path", { class: "used", d: path }),
      s("line", { x1: x(memory.peak_at), x2: x(memory.peak_at), y1: 6, y2: H - BOTTOM, stroke: "var(--hot)", "stroke-dasharray": "4 3" })));
  const owners = memory.owners.map(([line, device, size]) => ({ line: lines[line], device, size }));
  put(main, h("h3", {}, "Who owns the peak"), table(owners, [
    { name: "bytes", value: (o) => o.size, text: (o) => bytes(o.size) },
    { name: "share", value: (o) => o.size, text: (o) => share(o.size / memory.peak) },
    { name: "line", left: true, value: (o) => o.line.name, text: (o) => o.line.name },
    { name: "module", left: true, value: (o) => o.line.module, text: (o) => o.line.module },
    { name: "device", left: true, value: (o) => o.device, text: (o) => o.device },
  ], { sorted: 0, label: "owners of the peak", act: (o) => o.line.frames.length && go("source", { file: o.line.frames[0][0], line: o.line.frames[0][1] }) }));
  put(main, h("h3", {}, "What the planner reused"));
  if (!memory.arenas.length) put(main, h("p.note", {}, "No schedule had several intermediates."));
  for (const arena of memory.arenas.slice().sort((a, b) => b.size - a.size).slice(0, 6)) {
    const steps = Math.max(...arena.values.map((v) => v[3])) + 1;
    const ax = scaleLinear([0, steps], [LEFT, W - 8]), ay = scaleLinear([0, arena.size], [H - BOTTOM, 6]);
    put(main, h("p.note", {}, `${count(arena.values.length)} intermediates on ${arena.device} lie in ${bytes(arena.size)}; one beside the other they would take ${bytes(arena.without_reuse)}. Across: steps; up: addresses.`),
      s("svg", { class: "plot arena", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "intermediates by step and address" },
        ay.ticks(4).map((v) => s("text", { x: LEFT - 5, y: ay(v) + 4, "text-anchor": "end" }, short(bytes(v)))),
        arena.values.map(([offset, size, first, lastStep, line], i) => s("rect", { class: "value", x: ax(first), width: Math.max(1, ax(lastStep + 1) - ax(first)), y: ay(Math.min(arena.size, offset + size)),
          height: Math.max(1, ay(offset) - ay(Math.min(arena.size, offset + size))), fill: `hsl(${(i * 47) % 360} 45% 58%)` }, s("title", {}, `${bytes(size)}, steps ${first} to ${lastStep}, ${lines[line].name}`)))));
  }
}
