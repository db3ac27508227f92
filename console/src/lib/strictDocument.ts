// The document as the terminal emulator sees it, under a content security policy without inline style: its style sheets
// become constructed ones, and its style attributes are set through the object model. `vite.config.ts` puts it in place.

const sheets: CSSStyleSheet[] = [];

/** Removes the style sheets of a terminal that was closed. */
export function releaseSheets(): void {
  document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => !sheets.includes(sheet));
  sheets.length = 0;
}

function createElement(name: string): HTMLElement {
  if (name !== "style") {
    const made = document.createElement(name);
    const set = made.setAttribute.bind(made);
    made.setAttribute = (key, value) => (key === "style" ? void (made.style.cssText = value) : set(key, value));
    return made;
  }
  const sheet = new CSSStyleSheet();
  sheets.push(sheet);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const placeholder = document.createElement("span");
  placeholder.hidden = true;
  Object.defineProperty(placeholder, "textContent", { set: (text: string) => void sheet.replaceSync(text), get: () => "" });
  return placeholder;
}

export const strictDocument = new Proxy(document, {
  get(target, key) {
    if (key === "createElement") return createElement;
    const found: unknown = Reflect.get(target, key);
    return typeof found === "function" ? found.bind(target) : found;
  },
});
