// Who is signed in. The key is kept per origin; the cookie is not visible to scripts.

export interface Session {
  user: string;
  role: string;
  tenants: string[] | null;
  pages: string[];
  /** Tenants in whose tasks the user may run commands; null for all. */
  execTenants: string[] | null;
  version: string;
  now: number;
  expiresAt: number;
}

const STORED = "holdfast-console-key";
const RETURN = "holdfast-console-return";
const CALLBACK = "/console/oidc";

class SessionState {
  current: Session | null = $state(null);
  checked = $state(false);
  error = $state("");

  get key(): string {
    return localStorage.getItem(STORED) ?? "";
  }

  headers(): Record<string, string> {
    return { "X-Holdfast-Console": this.key || "none" };
  }

  /** Uses the code in the address if there is one, else the session that this browser has. */
  async begin(): Promise<void> {
    // Another tab of this browser signed out.
    addEventListener("storage", (event) => { if (event.key === STORED && !event.newValue) location.replace("/console"); });
    const code = new URLSearchParams(location.hash.slice(1)).get("sign-in");
    if (location.pathname === CALLBACK) {
      await this.#fromIssuer(new URLSearchParams(location.search));
      this.checked = true;
      return;
    }
    if (code) {
      history.replaceState(null, "", location.pathname + location.search);
      await this.signIn({ code });
    } else {
      await this.check();
    }
    this.checked = true;
  }

  /** Leaves for the issuer, which sends the browser back to CALLBACK. */
  async toIssuer(): Promise<void> {
    this.error = "";
    try {
      const response = await fetch("/console/api/oidc", { method: "POST", headers: this.headers() });
      const found = await response.json();
      if (!response.ok) {
        this.error = found.message ?? "sign-in failed";
        return;
      }
      sessionStorage.setItem(RETURN, location.pathname + location.search);
      location.assign(found.location);
    } catch {
      this.error = "the cell does not answer; next: holdfast status";
    }
  }

  /** What the issuer sent back: a code, or why there is none. The address keeps neither. */
  async #fromIssuer(answer: URLSearchParams): Promise<void> {
    const wanted = sessionStorage.getItem(RETURN) ?? "";
    sessionStorage.removeItem(RETURN);
    history.replaceState(null, "", /^\/console(\/|\?|$)/.test(wanted) && !wanted.startsWith(CALLBACK) ? wanted : "/console");
    dispatchEvent(new PopStateEvent("popstate"));
    const refused = answer.get("error");
    if (refused) this.error = `the issuer refused the sign-in (${answer.get("error_description") ?? refused})`;
    else await this.signIn({ issuer_code: answer.get("code") ?? "", issuer_state: answer.get("state") ?? "" });
  }

  async signIn(body: { code?: string; token?: string; issuer_code?: string; issuer_state?: string }): Promise<boolean> {
    this.error = "";
    try {
      const response = await fetch("/console/api/session", {
        method: "POST",
        headers: { ...this.headers(), "Content-Type": "application/json" },
        body: JSON.stringify(body),
      });
      const found = await response.json();
      if (!response.ok) {
        // A link may be opened twice by a browser that is signed in already.
        if (body.code && (await this.check())) return true;
        this.error = found.message ?? "sign-in failed";
        return false;
      }
      localStorage.setItem(STORED, found.key);
      this.current = found;
      return true;
    } catch {
      this.error = "the cell does not answer; next: holdfast status";
      return false;
    }
  }

  async check(): Promise<boolean> {
    if (!this.key) return false;
    try {
      const response = await fetch("/console/api/session", { headers: this.headers() });
      if (response.ok) {
        this.current = await response.json();
        return true;
      }
      if (response.status === 401) this.current = null;
    } catch {
      this.error = "the cell does not answer; next: holdfast status";
    }
    return false;
  }

  async signOut(): Promise<void> {
    await fetch("/console/api/session", { method: "DELETE", headers: this.headers() }).catch(() => null);
    localStorage.removeItem(STORED);
    // Loaded anew: a session that ends by itself keeps the page in sight, but whoever signs out leaves nothing behind.
    location.replace("/console");
  }

  mayExec(tenant: string): boolean {
    return !!this.current && (this.current.execTenants === null || this.current.execTenants.includes(tenant));
  }

  may(page: string): boolean {
    return this.current?.pages.includes(page) ?? false;
  }
}

export const session = new SessionState();
