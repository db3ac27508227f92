import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The files go into the Python package, which serves and ships them. Names carry a hash, so browsers may keep them.
export default defineConfig({
  base: "/console/",
  plugins: [svelte()],
  build: {
    outDir: "../src/holdfast/console/assets",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: true,
  },
});
