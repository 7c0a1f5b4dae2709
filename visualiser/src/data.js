// The recording, and what is looked up in it.
import { base } from "./dom.js";

export async function read() {
  const text = document.getElementById("recording").textContent.trim();
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return prepare(await new Response(stream).json());
}

export function prepare(recording) {
  const { lines, kernels, sites, files } = recording;
  lines.forEach((line, i) => {
    line.number = i;
    const frame = line.frames[0];
    line.name = frame ? `${base(frame[0])}:${frame[1]}${line.gradient ? " (gradient)" : ""}` : "(elsewhere)";
  });
  kernels.forEach((kernel, i) => {
    kernel.number = i;
    kernel.line = lines[kernel.lines[0] ?? 0];
    kernel.lost = kernel.least_seconds ? Math.max(0, kernel.seconds - kernel.least_seconds * kernel.count) : 0;
    kernel.peak = kernel.least_seconds && kernel.seconds ? (kernel.least_seconds * kernel.count) / kernel.seconds : 0;
  });
  recording.kernel_seconds = kernels.reduce((sum, k) => sum + k.seconds, 0);
  recording.margins = margins(recording);
  recording.files_by_path = new Map(files.map((file) => [file.path, file]));
  sites.forEach((site, i) => { site.number = i; });
  return recording;
}

// What each line of the user's files has: time of the kernels that are for it (and of calls made from it), how many
// kernels, memory at the peak.
function margins({ lines, sites, memory, kernels }) {
  const found = new Map();
  const at = (file, line) => {
    const key = `${file}\n${line}`;
    if (!found.has(key)) found.set(key, { file, line, own: 0, total: 0, runs: 0, kernels: new Set(), bytes: 0 });
    return found.get(key);
  };
  for (const site of sites) {
    if (site.kind !== "kernel" || !site.count) continue;
    const frames = lines[site.lines[0] ?? 0].frames;
    const seen = new Set();
    frames.forEach(([file, line], depth) => {
      const entry = at(file, line);
      if (depth === 0) { entry.own += site.seconds; entry.runs += site.count; }
      if (!seen.has(entry)) entry.total += site.seconds;
      seen.add(entry);
      entry.kernels.add(site.kernel);
    });
    for (const other of site.lines.slice(1)) {
      const frame = lines[other].frames[0];
      if (frame) at(frame[0], frame[1]).kernels.add(site.kernel);
    }
  }
  for (const [line, , size] of memory.owners) {
    const frame = lines[line].frames[0];
    if (frame) at(frame[0], frame[1]).bytes += size;
  }
  return found;
}

export const language = (kernel) => {
  const text = kernel.language ?? "";
  if (/LLVM/i.test(text)) return "llvm";
  if (/Python/i.test(text)) return "python";
  if (/WGSL|WebGPU/i.test(text)) return "rust";
  return "cpp";
};
