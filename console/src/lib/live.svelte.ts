// The data of the open page: one stream, which resumes. When it is lost, the page keeps what it had, and its clock stops.

import { router } from "./router.svelte";
import { session } from "./session.svelte";

/** Browsers open six connections to one server at most: so many tabs hold a stream, the others ask again each second. */
const STREAMS = 3;
const POLL_MS = 1000;
/** Without a heartbeat for this long, what is shown counts as old. */
const SILENCE_MS = 3000;
const RETRY_FIRST_MS = 1000;
const RETRY_MAX_MS = 8000;

export type Status = "loading" | "live" | "past" | "frozen" | "signed-out";

class Live {
  /** Data of the page that `name` names; null until it arrives. */
  data: unknown = $state.raw(null);
  name = $state("");
  status: Status = $state("loading");
  /** Server time of the newest fact, in seconds. */
  asOf = $state(0);
  revision = $state(0);
  /** Region → server time of its part of the page, in seconds. */
  regionTimes: Record<string, number> = $state.raw({});
  problem = $state("");
  retryAt = $state(0);
  /** Server time now, in seconds; stands still while frozen. */
  now = $state(Date.now() / 1000);
  /** Local time, in seconds, which never stands still. */
  local = $state(Date.now() / 1000);

  #parameters: Record<string, string> = {};
  #etag = "";
  #offset = 0;
  #beat = 0;
  #abort: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #retry = RETRY_FIRST_MS;

  constructor() {
    setInterval(() => this.#tick(), 250);
  }

  get age(): number {
    return Math.max(0, this.local + this.#offset - this.asOf);
  }

  /** Whether a moment of the past is shown: read-only. */
  get past(): boolean {
    return router.at > 0;
  }

  get frozen(): boolean {
    return this.status === "frozen" || this.status === "signed-out";
  }

  /** Shows another page, or the same with other parameters. */
  open(name: string, wanted: Record<string, string> = {}): void {
    const parameters = router.at ? { ...wanted, at: String(router.at) } : wanted;
    const query = (p: Record<string, string>) => new URLSearchParams(p).toString();
    if (name === this.name && query(parameters) === query(this.#parameters)) return;
    const moved = name === this.name && query({ ...parameters, at: "" }) === query({ ...this.#parameters, at: "" });
    if (name !== this.name || (parameters.keep !== "yes" && !moved)) this.data = null;
    this.name = name;
    this.#parameters = parameters;
    this.#etag = "";
    this.problem = "";
    if (!this.frozen) this.status = "loading";
    this.reconnect();
  }

  reconnect(): void {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = new AbortController();
    this.retryAt = 0;
    void this.#read(this.#abort.signal);
  }

  #tick(): void {
    this.local = Date.now() / 1000;
    if (this.status === "live" && performance.now() - this.#beat > SILENCE_MS) {
      this.status = "frozen";
      this.problem = "the stream is silent";
    }
    if (this.status === "live") this.now = this.local + this.#offset;
  }

  async #read(signal: AbortSignal): Promise<void> {
    const release = await streamSeat();
    if (signal.aborted) return release?.();
    try {
      if (this.#parameters.at) await this.#moment(signal);
      else while (await this.#request(signal, release === null)) await new Promise((done) => setTimeout(done, POLL_MS));
    } finally {
      release?.();
    }
  }

  /** A page as it was: read once, because the past does not change. */
  async #moment(signal: AbortSignal): Promise<void> {
    try {
      const response = await fetch(`/console/api/pages/${this.name}?${new URLSearchParams(this.#parameters)}`, { headers: session.headers(), signal });
      const found = await response.json();
      if (response.status === 401) {
        this.status = "signed-out";
        session.current = null;
        return;
      }
      this.status = "past";
      if (!response.ok) {
        this.problem = found.message ?? `status ${response.status}`;
        return;
      }
      this.problem = "";
      this.data = found.data;
      this.regionTimes = timesOf(found.data);
      this.asOf = this.now = found.asOf;
      this.revision = found.revision;
    } catch (error) {
      if (!signal.aborted) this.#lost(error instanceof Error ? error.message : "the connection failed");
    }
  }

  /** One request: a stream, or a single event. Returns whether to ask again. */
  async #request(signal: AbortSignal, once: boolean): Promise<boolean> {
    const query = new URLSearchParams({ ...this.#parameters, page: this.name, from: this.#etag });
    if (once) query.set("once", "true");
    try {
      if (signal.aborted) return false;
      const response = await fetch(`/console/api/stream?${query}`, { headers: session.headers(), signal });
      if (response.status === 401) {
        this.status = "signed-out";
        this.problem = "the session has ended";
        session.current = null;
        return false;
      }
      if (!response.ok || !response.body) {
        const found = await response.json().catch(() => ({}));
        this.problem = found.message ?? `status ${response.status}`;
        if (response.status >= 400 && response.status < 500 && response.status !== 429) {
          this.status = "live";
          this.#beat = performance.now() + 1e9;
          return false;
        }
        throw new Error(this.problem);
      }
      await this.#events(response.body, signal);
      if (once) return true;
      throw new Error("the cell ended the stream");
    } catch (error) {
      if (!signal.aborted) this.#lost(error instanceof Error ? error.message : "the connection failed");
    }
    return false;
  }

  async #events(body: ReadableStream<Uint8Array>, signal: AbortSignal): Promise<void> {
    const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || signal.aborted) return;
      rest += value;
      let end = rest.indexOf("\n\n");
      while (end >= 0) {
        this.#event(rest.slice(0, end));
        rest = rest.slice(end + 2);
        end = rest.indexOf("\n\n");
      }
    }
  }

  #event(block: string): void {
    let kind = "";
    let text = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      if (line.startsWith("data: ")) text += line.slice(6);
    }
    const found = JSON.parse(text || "{}");
    this.#beat = performance.now();
    this.#retry = RETRY_FIRST_MS;
    if (kind === "fault") {
      this.problem = found.message;
      this.status = "live";
      return;
    }
    this.problem = "";
    this.asOf = found.asOf;
    this.revision = found.revision;
    this.#offset = found.asOf - Date.now() / 1000;
    if (kind === "page") {
      this.data = found.data;
      this.#etag = found.etag;
    }
    this.regionTimes = found.regionTimes ?? timesOf(found.data);
    this.status = "live";
    this.now = found.asOf;
  }

  #lost(why: string): void {
    this.status = "frozen";
    this.problem = why;
    this.retryAt = Date.now() / 1000 + this.#retry / 1000;
    this.#timer = setTimeout(() => this.reconnect(), this.#retry);
    this.#retry = Math.min(RETRY_MAX_MS, this.#retry * 2);
  }
}

/** The times of the regions' parts, as the page had them when it was sent. Heartbeats carry newer ones. */
function timesOf(data: unknown): Record<string, number> {
  const regions = (data as { regions?: unknown } | null)?.regions;
  return Array.isArray(regions) ? Object.fromEntries(regions.map((region) => [region.name, region.asOf])) : {};
}

export const live = new Live();

/** A seat among the tabs that hold a stream, until it is released or the tab closes; null if all are taken. */
async function streamSeat(): Promise<(() => void) | null> {
  for (let i = 0; i < STREAMS && navigator.locks; i++) {
    const release = await new Promise<(() => void) | null>((found) => {
      void navigator.locks.request(`holdfast-stream-${i}`, { ifAvailable: true }, (lock) => {
        if (!lock) return found(null);
        return new Promise<void>((done) => found(done));
      });
    });
    if (release) return release;
  }
  return null;
}

/** One page, read once. */
export async function readPage<T>(name: string, parameters: Record<string, string> = {}): Promise<T> {
  const query = new URLSearchParams(router.at ? { ...parameters, at: String(router.at) } : parameters);
  const response = await fetch(`/console/api/pages/${name}?${query}`, {
    headers: session.headers(),
  });
  const found = await response.json();
  if (!response.ok) throw new Error(found.message ?? `status ${response.status}`);
  return found.data as T;
}
