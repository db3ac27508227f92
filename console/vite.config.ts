import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/** The emulator reads the global document in a few places, and would break the content security policy with it. */
const strictTerminal: Plugin = {
  name: "strict-terminal",
  transform(code, id) {
    if (!id.includes("/@xterm/xterm/lib/")) return null;
    const path = new URL("src/lib/strictDocument.ts", import.meta.url).pathname;
    return { code: `import { strictDocument as document } from ${JSON.stringify(path)};\n${code.replaceAll("window.document", "document")}`, map: null };
  },
};

// The files go into the Python package, which serves and ships them. Names carry a hash, so browsers may keep them.
export default defineConfig({
  base: "/console/",
  plugins: [svelte(), strictTerminal],
  build: {
    outDir: "../src/holdfast/console/assets",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: true,
  },
});
