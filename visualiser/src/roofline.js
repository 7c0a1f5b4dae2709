// Each kernel against what its device can do: operations a byte across, operations a second up, both logarithmic.
import { scaleLog } from "d3-scale";
import { h, s, seconds, rate, table, put } from "./dom.js";
import { kernelColumns, speed } from "./kernel.js";

const H = 420, LEFT = 60, BOTTOM = 34;

export function rooflineView(main, recording, chosen, go) {
  const W = Math.max(340, Math.min(1240, main.clientWidth - 30));
  const { kernels, limits } = recording;
  const devices = [...new Set(kernels.filter((k) => k.count).map((k) => k.device))];
  const device = devices.includes(chosen.device) ? chosen.device : devices[0];
  const shown = kernels.filter((k) => k.count && k.device === device);
  const dots = shown.filter((k) => k.operations && k.bytes && k.seconds);
  const limit = limits[device];
  if (devices.length > 1) put(main, h("div.bar", {}, devices.map((d) => h("button.plain", { type: "button", "aria-pressed": String(d === device), onclick: () => go("roofline", { device: d }) }, d))));
  put(main, h("p.note", {}, limit ? `${device}: ${limit.text}. Under the roof is what the device can do with data from memory; a kernel above the slope found its data in a cache. Circles are as large as the time they took.`
    : `Nobody measured what ${device ?? "the device"} can do, so there is no roof.`));
  if (dots.length) {
    const intensity = (k) => k.operations / k.bytes;
    const spread = (values) => [Math.min(...values), Math.max(...values)];
    const [i0, i1] = spread(dots.map(intensity)), [s0, s1] = spread(dots.map((k) => speed(k, "operations")));
    const bandwidth = limit ? Math.max(limit.read_gbs, limit.copy_gbs) : 0;
    const ridge = limit ? limit.gflops / bandwidth : i1;
    const x = scaleLog([Math.min(i0, ridge / 8) * 0.7, Math.max(i1, ridge * 4) * 1.4], [LEFT, W - 10]);
    const y = scaleLog([Math.max(1e-4, s0 * 0.6), Math.max(s1, limit?.gflops ?? 0) * 1.6], [H - BOTTOM, 8]);
    const largest = Math.max(...dots.map((k) => k.seconds));
    const [xa, xb] = x.domain();
    const marks = (scale) => { // powers of ten; where there is one at most, what lies between them too
      const all = scale.ticks(5), tens = all.filter((v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-6);
      return tens.length > 1 ? tens : all.filter((v) => "125".includes(v.toExponential()[0]));
    };
    put(main, s("svg", { class: "plot roofline", viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "roofline" },
      marks(y).map((v) => [s("line", { class: "grid", x1: LEFT, x2: W, y1: y(v), y2: y(v) }), s("text", { x: LEFT - 5, y: y(v) + 4, "text-anchor": "end" }, rate(v))]),
      marks(x).map((v) => [s("line", { class: "grid", x1: x(v), x2: x(v), y1: 8, y2: H - BOTTOM }), s("text", { x: x(v), y: H - BOTTOM + 14, "text-anchor": "middle" }, rate(v))]),
      s("text", { x: W / 2, y: H - 4, "text-anchor": "middle" }, "operations a byte"), s("text", { x: 12, y: H / 2, transform: `rotate(-90 12 ${H / 2})`, "text-anchor": "middle" }, "GFLOP/s"),
      limit ? s("path", { class: "roof", d: `M${x(xa)},${y(Math.max(y.domain()[0], xa * bandwidth))}L${x(ridge)},${y(limit.gflops)}L${x(xb)},${y(limit.gflops)}` }) : null,
      dots.map((k) => {
        const dot = s("circle", { cx: x(intensity(k)), cy: y(Math.max(y.domain()[0], speed(k, "operations"))), r: 4 + 14 * Math.sqrt(k.seconds / largest), tabindex: 0, role: "button", "data-kernel": k.number, "aria-label": `${k.name} ${seconds(k.seconds)}`,
          onclick: () => go("kernels", { kernel: k.number }), onkeydown: (event) => event.key === "Enter" && go("kernels", { kernel: k.number }) }, s("title", {}, `${k.name}: ${seconds(k.seconds)}, ${rate(speed(k, "operations"))} GFLOP/s`));
        return dot;
      })));
  }
  const columns = kernelColumns(recording);
  put(main, h("h3", {}, "Time lost above the limits"), table(shown, columns, { sorted: columns.findIndex((c) => c.name === (limit ? "lost" : "time")), label: "kernels", act: (k) => go("kernels", { kernel: k.number }) }));
}
