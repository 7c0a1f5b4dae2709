// The user's source, with what each line costs beside it.
import { h, base, seconds, bytes, count, share, clickable, put, fill } from "./dom.js";

export function sourceView(main, recording, chosen, go) {
  const { files, margins, kernels, kernel_seconds: whole } = recording;
  const used = new Map();
  for (const margin of margins.values()) used.set(margin.file, (used.get(margin.file) ?? 0) + margin.own + 1e-12);
  const shown = files.filter((file) => used.has(file.path)).sort((a, b) => used.get(b.path) - used.get(a.path));
  if (!shown.length) {
    put(main, h("p.note", {}, "No file of the program is known: it was typed in, or ran no kernels."));
    return;
  }
  const file = shown.find((f) => f.path === chosen.file) ?? shown[0];
  const pick = h("select", { "aria-label": "File", id: "file", onchange: (event) => go("source", { file: event.target.value }) },
    shown.map((f) => h("option", { value: f.path, selected: f === file }, `${base(f.path)} · ${seconds(used.get(f.path))}`)));
  const detail = h("div.card.sticky", { "aria-live": "polite" });
  const rows = file.text.split("\n").map((text, i) => {
    const margin = margins.get(`${file.path}\n${i + 1}`);
    const cells = margin
      ? [margin.total ? seconds(margin.total) : "", margin.kernels.size ? count(margin.kernels.size) : "", margin.bytes ? bytes(margin.bytes) : ""]
      : ["", "", ""];
    const row = h("div.row", { "data-line": i + 1 }, cells.map((cell, at) => h(at ? "span.cell.more" : "span.cell", {}, cell)), h("span.number", {}, String(i + 1)), h("span.text", {}, text || " "));
    if (margin) {
      row.classList.add("used");
      const heat = whole ? margin.total / whole : 0;
      row.firstChild.style.background = `color-mix(in srgb, var(--hot) ${Math.round(55 * heat)}%, transparent)`;
      clickable(row, () => choose(i + 1));
    }
    return row;
  });
  const heads = h("div.row.heads", {}, ["time", "kernels", "memory", "line"].map((name, at) => h(at === 1 || at === 2 ? "span.more" : "span", {}, name)), h("span.text", {}, ""));
  const box = h("div.source", { id: "source-lines" }, heads, rows);

  function choose(line) {
    rows.forEach((row, i) => row.classList.toggle("chosen", i + 1 === line));
    const margin = margins.get(`${file.path}\n${line}`);
    const list = [...margin.kernels].filter((n) => kernels[n]).map((n) => kernels[n]).sort((a, b) => b.seconds - a.seconds);
    fill(detail, h("h3", {}, `${base(file.path)}:${line}`),
      h("dl.facts", {}, h("dt", {}, "in kernels"), h("dd", {}, `${seconds(margin.total)} (${share(whole ? margin.total / whole : 0)})`),
        h("dt", {}, "of this very line"), h("dd", {}, `${seconds(margin.own)} in ${count(margin.runs)} runs`),
        h("dt", {}, "memory at the peak"), h("dd", {}, bytes(margin.bytes))),
      h("h3", {}, "Kernels that compute something of it"),
      h("ul", {}, list.map((k) => h("li", {}, h("button.link", { type: "button", onclick: () => go("kernels", { kernel: k.number }) }, k.name),
        ` ${seconds(k.seconds)}, ${count(k.count)} runs`))));
  }

  put(main, h("div.bar", {}, pick), h("p.note", {}, "Time of a line is that of the kernels for it, and for what it calls. A kernel is for the line of its largest reduce; "
    + "the gradients of a line count as its own. Memory is what the line owns when most is used."), h("div.split", {}, box, detail));
  const wanted = Number(chosen.line);
  const hottest = [...margins.values()].filter((m) => m.file === file.path).sort((a, b) => b.own - a.own)[0];
  const first = margins.has(`${file.path}\n${wanted}`) ? wanted : hottest?.line;
  if (first) {
    choose(first);
    const row = rows[first - 1];
    box.scrollTop = Math.max(0, row.offsetTop - box.clientHeight / 2);
  }
}
