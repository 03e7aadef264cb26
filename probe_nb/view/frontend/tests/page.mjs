/** Writes the test page into the folder given as argument: `npm run page -- /tmp/page`. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const [folder] = process.argv.slice(2);
if (!folder) throw new Error("say where to: npm run page -- FOLDER");
const { outputFiles } = await build({
  entryPoints: [fileURLToPath(new URL("page.ts", import.meta.url))],
  bundle: true,
  format: "esm",
  loader: { ".css": "text" },
  write: false,
});
const script = outputFiles[0].text.replaceAll("</script", "<\\/script");
mkdirSync(folder, { recursive: true });
writeFileSync(
  join(folder, "index.html"),
  `<!doctype html><html lang="en"><meta charset="utf-8"><title>probe_nb inspector: test page</title>
<style>:root { color-scheme: light dark } body { margin: 16px }</style><body><script type="module">${script}</script></body></html>`,
);
