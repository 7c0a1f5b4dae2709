// Small helpers over the DOM, and how numbers are shown.

export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

// Append what there is of some children.
export const put = (node, ...children) => node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
export const fill = (node, ...children) => { node.replaceChildren(); put(node, ...children); };

const SVG = "http://www.w3.org/2000/svg";
export function s(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return node;
}

// What a mouse can click, a keyboard can too.
export function clickable(node, act) {
  node.setAttribute("tabindex", "0");
  if (!node.getAttribute("role")) node.setAttribute("role", "button");
  node.addEventListener("click", act);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(event); }
  });
  return node;
}

export function seconds(t) {
  if (t === 0) return "0";
  const a = Math.abs(t);
  if (a >= 1) return `${t.toFixed(2)} s`;
  if (a >= 1e-3) return `${(t * 1e3).toFixed(2)} ms`;
  if (a >= 1e-6) return `${(t * 1e6).toFixed(1)} µs`;
  return `${(t * 1e9).toFixed(0)} ns`;
}

export function bytes(n) {
  const a = Math.abs(n);
  if (a >= 1e9) return `${(n / 1e9).toFixed(2)} GB`;
  if (a >= 1e6) return `${(n / 1e6).toFixed(2)} MB`;
  if (a >= 1e3) return `${(n / 1e3).toFixed(1)} kB`;
  return `${n} B`;
}

export const rate = (n) => (n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n >= 0.01 ? n.toFixed(2) : n ? n.toExponential(1) : "0");
export const share = (x) => `${(100 * x).toFixed(1)}%`;
export const count = (n) => n.toLocaleString("en");
export const base = (path) => path.split(/[\\/]/).pop();

// A table that sorts by a click on a head and shows the rows that contain a text.
// columns: {name, value(row) for sorting, text(row) and perhaps node(row), left, wide: in several lines if need be}
export function table(rows, columns, { act, search = true, sorted = 0, down = true, most = 500, label } = {}) {
  let by = sorted, falling = down, wanted = "";
  const body = h("tbody");
  const heads = columns.map((column, i) => {
    const button = h("button.head", { type: "button", onclick: () => {
      falling = by === i ? !falling : !column.left;
      by = i;
      show();
    } }, column.name);
    return h("th", { scope: "col", class: column.left ? "left" : "" }, button);
  });
  const note = h("p.note");
  function show() {
    const chosen = rows.filter((row) => !wanted || columns.some((c) => c.text && String(c.text(row)).toLowerCase().includes(wanted)));
    chosen.sort((a, b) => {
      const x = columns[by].value(a), y = columns[by].value(b);
      return (x < y ? -1 : x > y ? 1 : 0) * (falling ? -1 : 1);
    });
    heads.forEach((head, i) => head.setAttribute("aria-sort", i === by ? (falling ? "descending" : "ascending") : "none"));
    body.replaceChildren(...chosen.slice(0, most).map((row) => {
      const line = h("tr", {}, columns.map((c) => h("td", { class: c.wide ? "left wide" : c.left ? "left" : "", title: c.left && !c.wide && c.text(row) }, c.node ? c.node(row) : c.text(row))));
      if (act) clickable(line, () => act(row)), line.setAttribute("role", "row");
      return line;
    }));
    note.textContent = chosen.length > most ? `${count(most)} of ${count(chosen.length)} rows` : `${count(chosen.length)} row${chosen.length === 1 ? "" : "s"}`;
  }
  const box = search && h("input.search", { type: "search", placeholder: "Search", "aria-label": `Search ${label ?? "rows"}`,
    oninput: (event) => { wanted = event.target.value.toLowerCase(); show(); } });
  show();
  return h("div.table", {}, box, h("div.scroll", { tabindex: "0", role: "region", "aria-label": label ?? "table" },
    h("table", {}, h("thead", {}, h("tr", {}, heads)), body)), note);
}
