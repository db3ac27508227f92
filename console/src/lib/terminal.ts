// A terminal in a box of the page. Loaded when the first shell is opened.

import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { releaseSheets, strictDocument } from "./strictDocument";

/** Lines that can be scrolled back to. */
const SCROLLBACK = 1000;
const FONT_PX = 12;

export interface OpenTerminal { terminal: Terminal; fit: () => void; dispose: () => void }

export function openTerminal(box: HTMLElement): OpenTerminal {
  const shown = getComputedStyle(box);
  const terminal = new Terminal({
    documentOverride: strictDocument, scrollback: SCROLLBACK, fontSize: FONT_PX, fontFamily: shown.fontFamily, cursorBlink: false, screenReaderMode: true,
    minimumContrastRatio: 4.5, theme: { background: shown.backgroundColor, foreground: shown.color, cursor: shown.color, selectionBackground: "#7aa2f780" },
  });
  terminal.open(box);
  const pen = document.createElement("canvas").getContext("2d");
  const fit = () => {
    if (!pen) return;
    pen.font = `${FONT_PX}px ${shown.fontFamily}`;
    const padding = Number.parseFloat(shown.paddingLeft) + Number.parseFloat(shown.paddingRight) + 14;
    const columns = Math.floor((box.clientWidth - padding) / pen.measureText("W").width);
    terminal.resize(Math.max(20, Math.min(300, columns)), 24);
  };
  fit();
  const watcher = new ResizeObserver(fit);
  watcher.observe(box);
  return {
    terminal, fit,
    dispose: () => {
      watcher.disconnect();
      terminal.dispose();
      releaseSheets();
    },
  };
}
