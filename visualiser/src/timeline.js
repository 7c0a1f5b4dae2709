// The timeline: a canvas that is drawn from sorted events, of which a zoom looks at those in sight only.
import { h, seconds, count, bytes, put, fill } from "./dom.js";

const ROW = 26, HEAD = 30, LABEL = 96;
const COLOURS = { realize: "#9aa5b1", partition: "#b5651d", schedule: "#c77d2e", write: "#8e6bbf", plan: "#b084cc", render: "#7a5aa6", compile: "#a94f8a", load: "#6f7fbf", search: "#c2557a",
  trace: "#2a9d8f", replay: "#4cb39c", copy: "#d4a017", rewrite: "#9b7fd1", mark: "#808080" };

function colour(site) {
  if (site.kind !== "kernel") return COLOURS[site.kind] ?? "#8899aa";
  let hash = 7;
  for (const c of site.name) hash = (hash * 31 + c.charCodeAt(0)) | 0;
  return `hsl(${200 + (Math.abs(hash) % 60)} 62% ${46 + (Math.abs(hash >> 6) % 16)}%)`;
}

const KERNEL = "hsl(230 62% 54%)"; // the middle of those of kernels

// The events of each track, sorted by start, in rows such that none lies over another of its row.
export function layout(events, marks = new Set()) {
  const tracks = events.tracks.map((name) => ({ name, rows: [] }));
  for (let i = 0; i < events.start.length; i++) {
    if (marks.has(events.site[i])) continue;
    const rows = tracks[events.track[i]].rows;
    const start = events.start[i], end = start + Math.max(1, events.duration[i]);
    // what began before and still runs encloses this: one row further down
    let depth = 0;
    while (depth < rows.length && rows[depth].last > start + 1) depth++; // both are rounded to a nanosecond
    if (depth === rows.length) {
      if (depth >= 8) depth = 7;
      else rows.push({ index: [], last: 0 });
    }
    rows[depth].index.push(i);
    rows[depth].last = Math.max(rows[depth].last, end);
  }
  return tracks;
}

// The first of `index` whose event ends after a moment: events of a row do not overlap, so ends are sorted too.
function firstAfter(index, events, moment) {
  let low = 0, high = index.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events.start[index[middle]] + events.duration[index[middle]] < moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function timelineView(main, recording, chosen, go) {
  const { events, sites, lines } = recording;
  if (!events.start.length) {
    put(main, h("p.note", {}, "Nothing happened while this was recorded."));
    return;
  }
  const sorted = order(events);
  const marks = new Set(sites.filter((site) => site.kind === "mark").map((site) => site.number));
  const marked = marks.size ? Array.from(sorted.start.keys()).filter((i) => marks.has(sorted.site[i])) : [];
  const tracks = layout(sorted, marks).filter((t) => t.rows.length);
  const total = sorted.start.reduce((most, start, i) => Math.max(most, start + sorted.duration[i]), 0);
  let from = Number(chosen.from ?? 0), to = Number(chosen.to ?? total);
  const colours = sites.map((site) => (site.kind === "mark" && CSS.supports("color", site.color) ? site.color : colour(site)));
  const canvas = h("canvas.timeline", { tabindex: "0", role: "img", id: "tracks", "aria-label": "Timeline: arrow keys move, plus and minus zoom" });
  const detail = h("div.card", { id: "event", "aria-live": "polite" }, h("p.note", {}, "Wheel or + and − zoom, drag or arrow keys move, click an event."));
  const high = HEAD + tracks.reduce((sum, t) => sum + t.rows.length * ROW + 6, 0);
  let selected = -1;
  let drawn = 0;

  function draw() {
    const wide = canvas.clientWidth || 800, ratio = devicePixelRatio || 1;
    canvas.width = wide * ratio;
    canvas.height = high * ratio;
    canvas.style.height = `${high}px`;
    const style = getComputedStyle(canvas);
    const ink = style.getPropertyValue("color"), faint = "rgba(128,128,128,.28)";
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.clearRect(0, 0, wide, high);
    const room = wide - LABEL, span = to - from;
    const x = (moment) => LABEL + ((moment - from) / span) * room;
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    const step = 10 ** Math.floor(Math.log10(span / 4));
    const tick = [1, 2, 5, 10].map((k) => k * step).find((k) => span / k <= Math.max(2, room / 110)) ?? step * 10;
    for (let moment = Math.ceil(from / tick) * tick; moment <= to; moment += tick) {
      g.fillStyle = faint;
      g.fillRect(x(moment), 0, 1, high);
      g.fillStyle = ink;
      const text = seconds(moment * 1e-9);
      if (x(moment) + 3 + g.measureText(text).width < wide) g.fillText(text, x(moment) + 3, 8);
    }
    drawn = 0;
    let y = HEAD;
    for (const track of tracks) {
      g.fillStyle = faint;
      g.fillRect(0, y - 3, wide, 1);
      g.fillStyle = ink;
      g.fillText(track.name.slice(0, 15), 4, y + ROW / 2);
      for (const row of track.rows) {
        let right = -1;
        for (let k = firstAfter(row.index, sorted, from); k < row.index.length; k++) {
          const i = row.index[k];
          if (sorted.start[i] > to) break;
          const a = Math.max(LABEL, x(sorted.start[i])), b = Math.min(wide, x(sorted.start[i] + sorted.duration[i]));
          if (b - right < 0.7 && b - a < 1) { // it would be drawn over: go on with the first that ends a pixel later
            const next = firstAfter(row.index, sorted, from + ((right + 0.7 - LABEL) / room) * span);
            if (next > k) k = next - 1;
            continue;
          }
          const left = Math.max(a, right);
          g.fillStyle = colours[sorted.site[i]];
          g.fillRect(left, y, Math.max(0.7, b - left), ROW - 4);
          if (i === selected) { g.strokeStyle = ink; g.lineWidth = 2; g.strokeRect(left, y, Math.max(2, b - left), ROW - 4); }
          if (b - left > 46) {
            const site = sites[sorted.site[i]];
            g.fillStyle = "#fff";
            const text = site.kind === "kernel" || site.kind === "copy" ? site.name : `${site.kind} ${site.name}`;
            g.fillText(text.slice(0, Math.floor((b - left) / 6.2)), left + 3, y + ROW / 2 - 2);
          }
          right = Math.max(right, left + 0.7, b);
          drawn++;
        }
        y += ROW;
      }
      y += 6;
    }
    let free = -1; // names of marks do not lie over each other
    for (const i of marked) {
      const at = x(sorted.start[i]);
      if (at < LABEL || at > wide) continue;
      const name = sites[sorted.site[i]].name;
      g.fillStyle = colours[sorted.site[i]];
      g.fillRect(at - 1, HEAD - 4, 2, high);
      if (at > free) {
        g.fillText(`▾ ${name}`.slice(0, 40), at - 4, HEAD - 10);
        free = at + g.measureText(name).width + 20;
      }
      drawn++;
    }
    canvas.dataset.from = from;
    canvas.dataset.to = to;
    canvas.dataset.drawn = drawn;
  }

  function look(a, b) {
    const span = Math.min(total, Math.max(50, b - a));
    from = Math.max(0, Math.min(a, total - span));
    to = from + span;
    draw();
  }
  const zoomAt = (k, moment) => look(moment - (moment - from) * k, moment + (to - moment) * k);
  const momentAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return from + ((event.clientX - box.left - LABEL) / (box.width - LABEL)) * (to - from);
  };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoomAt(event.deltaY > 0 ? 1.25 : 0.8, momentAt(event)); }, { passive: false });
  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, event); moved = 0; });
  canvas.addEventListener("pointermove", (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) return;
    const others = [...pointers.entries()].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const other = others[0][1];
      const before = Math.abs(last.clientX - other.clientX), now = Math.abs(event.clientX - other.clientX);
      if (before > 5 && now > 5) zoomAt(before / now, momentAt(other));
    } else {
      const by = ((last.clientX - event.clientX) / (canvas.clientWidth - LABEL)) * (to - from);
      moved += Math.abs(last.clientX - event.clientX);
      look(from + by, to + by);
    }
    pointers.set(event.pointerId, event);
  });
  const up = (event) => {
    if (pointers.delete(event.pointerId) && moved < 4) choose(event);
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("keydown", (event) => {
    const step = (to - from) / 8, middle = (from + to) / 2;
    const act = { ArrowRight: () => look(from + step, to + step), ArrowLeft: () => look(from - step, to - step), "+": () => zoomAt(0.7, middle), "=": () => zoomAt(0.7, middle),
      "-": () => zoomAt(1.4, middle), Home: () => look(0, total), n: () => next(1), p: () => next(-1) }[event.key];
    if (act) { event.preventDefault(); event.stopPropagation(); act(); }
  });

  function choose(event) {
    const box = canvas.getBoundingClientRect();
    const at = event.clientY - box.top, moment = momentAt(event);
    const close = ((to - from) / canvas.clientWidth) * 4;
    const mark = marked.find((i) => Math.abs(sorted.start[i] - moment) < close);
    if (mark !== undefined) { show(mark); return; }
    let y = HEAD;
    for (const track of tracks) {
      for (const row of track.rows) {
        if (at >= y && at < y + ROW) {
          const slack = ((to - from) / canvas.clientWidth) * 2;
          const k = firstAfter(row.index, sorted, moment - slack);
          if (k < row.index.length && sorted.start[row.index[k]] <= moment + slack) show(row.index[k]);
          return;
        }
        y += ROW;
      }
      y += 6;
    }
  }
  function next(step) { show(Math.min(sorted.start.length - 1, Math.max(0, selected + step))); }

  function show(i) {
    selected = i;
    const site = sites[sorted.site[i]], line = lines[site.lines[0] ?? 0];
    const kernel = recording.kernels[site.kernel];
    fill(detail, h("h3", {}, site.kind === "kernel" ? site.name : `${site.kind} ${site.name}`),
      h("dl.facts", {}, h("dt", {}, "on"), h("dd", {}, sorted.tracks[sorted.track[i]]), h("dt", {}, "from"), h("dd", {}, seconds(sorted.start[i] * 1e-9)),
        h("dt", {}, "for"), h("dd", {}, seconds(sorted.duration[i] * 1e-9)), h("dt", {}, "runs in all"), h("dd", {}, `${count(site.count)}, ${seconds(site.seconds)}`),
        site.bytes ? [h("dt", {}, "bytes"), h("dd", {}, bytes(site.bytes))] : null,
        line.frames.length ? [h("dt", {}, "line"), h("dd", {}, h("button.link", { type: "button", onclick: () => go("source", { file: line.frames[0][0], line: line.frames[0][1] }) }, line.name))] : null,
        kernel ? [h("dt", {}, "kernel"), h("dd", {}, h("button.link", { type: "button", onclick: () => go("kernels", { kernel: kernel.number }) }, kernel.name || "being made"))] : null));
    if (sorted.start[i] > to || sorted.start[i] + sorted.duration[i] < from) look(sorted.start[i] - (to - from) / 2, sorted.start[i] + (to - from) / 2);
    else draw();
  }

  const replays = sites.filter((site) => site.kind === "replay" || site.kind === "trace");
  put(main, h("div.bar", {}, h("button.plain", { type: "button", id: "zoom-in", onclick: () => zoomAt(0.5, (from + to) / 2) }, "+"), h("button.plain", { type: "button", id: "zoom-out", onclick: () => zoomAt(2, (from + to) / 2) }, "−"),
    h("button.plain", { type: "button", onclick: () => look(0, total) }, "whole"), h("span.note", { id: "event-count" }, `${count(sorted.start.length)} events`),
    ...Object.entries({ kernel: KERNEL, ...COLOURS }).filter(([kind]) => sites.some((s) => s.kind === kind && s.count)).map(([kind, fill]) => h("span.note", {}, h("span", { style: `display:inline-block;width:.8em;height:.8em;background:${fill};margin-right:.3em` }), kind))),
  canvas, detail);
  if (replays.length) put(main, h("p.note", {}, `TinyJit: ${replays.map((r) => `${r.kind} ${r.name} ${count(r.count)}×, ${seconds(r.seconds)}`).join("; ")}`));
  new ResizeObserver(() => draw()).observe(canvas.parentElement);
  canvas.redraw = (a, b) => { const began = performance.now(); look(a, b); return performance.now() - began; };
  draw();
}

// Pools of threads come and go: the first thread of each is on one track, the second on another. Tracks of the host
// come first, then those of devices.
function merged(tracks) {
  const names = tracks.map((name) => name.replace(/^host pool \d+_(\d+)$/, "host pool $1"));
  const sorted = [...new Set(names)].sort((a, b) => b.startsWith("host") - a.startsWith("host") || (a.startsWith("host") ? a.localeCompare(b, "en", { numeric: true }) : 0));
  return { tracks: sorted, at: names.map((name) => sorted.indexOf(name)) };
}

// Events by start, the longer first where several begin at once, so that what encloses others comes first.
function order(events) {
  const { start, duration } = events;
  const index = Uint32Array.from(start, (_, i) => i).sort((a, b) => start[a] - start[b] || duration[b] - duration[a]);
  const pick = (list) => Array.from(index, (i) => list[i]);
  const { tracks, at } = merged(events.tracks);
  return { tracks, track: pick(events.track).map((track) => at[track]), site: pick(events.site), start: pick(start), duration: pick(duration) };
}
