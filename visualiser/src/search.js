// BEAM: the kernels whose plans were searched, and what was tried.
import { h, seconds, table, count, put } from "./dom.js";
import { searched } from "./kernel.js";

export function searchView(main, recording, chosen, go) {
  const found = recording.kernels.filter((k) => k.search);
  if (!found.length) {
    put(main, h("p.note", {}, "No plan was searched: run with BEAM=4 to measure plans. What the cost model considered is at each kernel's plan."),
      table(recording.kernels.filter((k) => k.opts), [
        { name: "kernel", left: true, value: (k) => k.name, text: (k) => k.name },
        { name: "time", value: (k) => k.seconds, text: (k) => seconds(k.seconds) },
        { name: "passed over", value: (k) => k.alternatives?.length ?? 0, text: (k) => count(k.alternatives?.length ?? 0) },
        { name: "plan", left: true, wide: true, value: (k) => k.opts.join(), text: (k) => k.opts.join("; ") || "plain loops", node: (k) => h("code", {}, k.opts.join("; ") || "plain loops") },
      ], { sorted: 1, label: "plans", act: (k) => go("kernels", { kernel: k.number, part: "plan" }) }));
    return;
  }
  const kernel = found.find((k) => String(k.number) === chosen.kernel) ?? found.slice().sort((a, b) => b.seconds - a.seconds)[0];
  put(main, table(found, [
    { name: "kernel", left: true, value: (k) => k.name, text: (k) => k.name },
    { name: "plans", value: (k) => k.search.rows.length, text: (k) => count(k.search.rows.length) },
    { name: "cost model's", value: (k) => k.search.default_seconds, text: (k) => seconds(k.search.default_seconds) },
    { name: "found", value: (k) => k.search.seconds, text: (k) => seconds(k.search.seconds) },
    { name: "faster", value: (k) => k.search.default_seconds / k.search.seconds, text: (k) => `${(k.search.default_seconds / k.search.seconds).toFixed(2)}×` },
  ], { sorted: 4, label: "searches", act: (k) => go("search", { kernel: k.number }) }), h("h3", {}, kernel.name), searched(kernel));
}
