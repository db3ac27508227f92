// Addresses: every page, filter and selection is in the address.

const BASE = "/console";

class RouterState {
  path = $state("/");
  query = $state(new URLSearchParams());

  constructor() {
    this.#read();
    addEventListener("popstate", () => this.#read());
    // One handler for all links of the console: no page load between pages.
    addEventListener("click", (event) => {
      const link = (event.target as Element | null)?.closest?.("a[href]");
      if (!(link instanceof HTMLAnchorElement) || event.defaultPrevented || event.button !== 0) return;
      if (event.metaKey || event.ctrlKey || event.shiftKey || link.target || link.origin !== location.origin) return;
      if (!link.pathname.startsWith(BASE)) return;
      event.preventDefault();
      this.open(link.pathname.slice(BASE.length) + link.search);
    });
  }

  get parts(): string[] {
    return this.path.split("/").filter(Boolean).map(decodeURIComponent);
  }

  /** The moment that is shown, in seconds since the epoch; 0 for now. */
  get at(): number {
    const found = Number(this.query.get("at") ?? 0);
    return Number.isFinite(found) && found > 0 ? found : 0;
  }

  /** Another page at the same moment. */
  open(path: string): void {
    const keep = this.at && !/[?&]at=/.test(path);
    this.go(keep ? `${path}${path.includes("?") ? "&" : "?"}at=${this.at}` : path);
  }

  go(path: string, replace = false): void {
    const target = BASE + (path === "/" ? "" : path);
    if (replace) history.replaceState(null, "", target);
    else history.pushState(null, "", target);
    const before = this.path;
    this.#read();
    if (!replace && before !== this.path) document.querySelector("main")?.scrollTo(0, 0);
  }

  /** Changes parts of the query; an empty value removes one. */
  set(changes: Record<string, string>): void {
    const next = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) {
      if (value) next.set(name, value);
      else next.delete(name);
    }
    const text = next.toString();
    this.go(this.path + (text ? `?${text}` : ""), true);
  }

  #read(): void {
    this.path = location.pathname.slice(BASE.length).replace(/\/+$/, "") || "/";
    this.query = new URLSearchParams(location.search);
  }
}

export const router = new RouterState();

/** The address of a page, with every part encoded. */
export function href(...parts: string[]): string {
  return [BASE, ...parts.map(encodeURIComponent)].join("/");
}

export function withQuery(path: string, query: Record<string, string>): string {
  return `${path}?${new URLSearchParams(query)}`;
}
