// Words and numbers as every page writes them.

/** A duration: 38 ms, 1.4 s, 48 s, 12 min, 2 h, 3 d. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds) || seconds < 0) return "";
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** When something comes: now, in 12 s. */
export function soon(seconds: number): string {
  return seconds < 1 ? "now" : `in ${duration(seconds)}`;
}

/** How old something is: never finer than a tenth of a second. */
export function age(seconds: number): string {
  return seconds < 10 ? `${Math.max(0, seconds).toFixed(1)} s` : duration(seconds);
}

/** A clock: 01:12, or 1:02:03 from an hour on. */
export function clock(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (n: number) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  return (hours ? `${hours}:` : "") + `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

/** Seconds since the Unix epoch of an API time; 0 for an empty one. */
export function seconds(time: string | undefined | null): number {
  return time ? Date.parse(time) / 1000 : 0;
}

/** 12:42:07, in UTC. */
export function timeOfDay(time: string | number): string {
  const at = typeof time === "number" ? new Date(time * 1000) : new Date(time);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().slice(11, 19);
}

/** 2026-11-16 12:42:07 UTC. */
export function fullTime(time: string | number): string {
  const at = typeof time === "number" ? new Date(time * 1000) : new Date(time);
  return Number.isNaN(at.getTime()) ? "" : `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

export function count(n: number, one: string, many = `${one}s`): string {
  return `${whole(n)} ${n === 1 ? one : many}`;
}

export function whole(n: number): string {
  return n.toLocaleString("en-US");
}

export function percent(part: number, total: number): string {
  return total ? `${Math.round((part / total) * 100)} %` : "0 %";
}

/** An amount in base units: thousandths of a CPU or GPU, bytes of memory. */
export function amount(resource: string, value: number): string {
  if (resource === "memory" || resource === "disk") {
    const gi = value / 2 ** 30;
    return gi >= 10 || Number.isInteger(gi) ? `${Math.round(gi)}Gi` : `${gi.toFixed(1)}Gi`;
  }
  const units = value / 1000;
  return Number.isInteger(units) ? String(units) : units.toFixed(units < 10 ? 2 : 1).replace(/0$/, "");
}

/** A quantity of the API in the units that people use: 1.5 for 1500m, 2.7Gi for 2863311530. */
export function pretty(resource: string, value: string | number | undefined): string {
  if (value === undefined) return "";
  const base = quantity(value);
  return amount(resource, resource === "memory" || resource === "disk" ? base : base * 1000);
}

export const RESOURCE_NAMES: Record<string, string> = { cpu: "CPU", memory: "Memory", gpu: "GPU" };

const SUFFIX: Record<string, number> = {
  m: 0.001, k: 1e3, M: 1e6, G: 1e9, T: 1e12, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40,
};

/** A quantity of the API ("500m", "64Gi", 16) as a number, to compare two of one resource. */
export function quantity(value: string | number | undefined): number {
  if (value === undefined) return 0;
  const found = /^([0-9.]+)([A-Za-z]*)$/.exec(String(value));
  return found ? Number(found[1]) * (SUFFIX[found[2] ?? ""] ?? 1) : 0;
}
