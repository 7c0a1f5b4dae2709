// Builds ../tinygrad/viz/page.html, one file with its code and style in it, and the licences of what it contains.
import { build } from "esbuild";
import { readFileSync, writeFileSync, existsSync } from "node:fs";

const options = { bundle: true, minify: true, write: false, target: "es2022", legalComments: "none" };
const code = await build({ ...options, entryPoints: ["src/main.js"], format: "iife", metafile: true });
const style = await build({ ...options, entryPoints: ["src/style.css"] });
const script = code.outputFiles[0].text.replaceAll("</script", "<\\/script");
const page = readFileSync("src/page.html", "utf8")
  .replace("/*STYLE*/", () => style.outputFiles[0].text.trim())
  .replace("/*SCRIPT*/", () => script.trim());
writeFileSync("../tinygrad/viz/page.html", page);

const packages = new Set();
for (const input of Object.keys(code.metafile.inputs)) {
  const found = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const texts = [...packages].sort().map((name) => {
  const about = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  const file = ["LICENSE", "LICENSE.md", "LICENSE.txt", "license"].map((n) => `node_modules/${name}/${n}`).find(existsSync);
  if (!file) throw new Error(`${name} has no licence`);
  return `${name} ${about.version} (${about.license})\n\n${readFileSync(file, "utf8").trim()}\n`;
});
writeFileSync("../tinygrad/viz/page_licences.txt",
  `page.html is built of visualiser/ and contains these packages.\n\n${texts.join("\n" + "-".repeat(80) + "\n\n")}`);
console.log(`page.html ${(page.length / 1000).toFixed(0)} kB, ${packages.size} packages`);
