// Actions use the API that kubectl uses, with the session of this page: the same roles, the same gate, the same audit.

import { live } from "./live.svelte";
import { session } from "./session.svelte";

/** Every action that a page offers in a dialog. `tests/console/test_console_coverage.py` fails if a browser test does not carry one out. */
export const ACTIONS = [
  "scale", "pause-rollout", "resume-rollout", "undo-rollout",
  "cordon", "uncordon", "drain",
  "promote-policy", "roll-back-policy",
  "avoid-region", "declare-region-lost", "approve-override", "revoke-override",
  "suspend-schedule", "resume-schedule",
  "drill",
] as const;
export type ActionName = (typeof ACTIONS)[number];

export interface Action {
  name: ActionName;
  title: string;
  /** The word on the button that acts. */
  verb: string;
  /** Below /console/api. Empty for what only a command can do: the dialog then shows `plan` and offers no button. */
  path: string;
  /** PATCH changes the object at the path; POST creates one in the collection. */
  method?: "PATCH" | "POST";
  body?: unknown;
  type?: "application/merge-patch+json" | "application/json-patch+json" | "application/json";
  command: string;
  /** What a command would do, for what has no object to compare. */
  plan?: Line[];
  /** Called after it acted. */
  done?: () => void;
  /** For an action that is recorded with a reason: body and command with it. */
  reasoned?: (reason: string) => { body: unknown; command: string };
  /** Who restarts, moves, waits or is evicted: a glyph, a sentence and a number. */
  radius: { glyph: string; text: string; note?: string }[];
  /** A name that must be typed before an action that reaches beyond one workload. */
  confirm?: string;
}

export const MERGE_PATCH = "application/merge-patch+json";

/** Whether actions are offered: to operators, and to a tenant's users for its own objects; never in the past. */
export function mayAct(tenant = ""): boolean {
  if (live.past) return false;
  return session.current?.role === "operator" || (!!tenant && (session.current?.tenants?.includes(tenant) ?? false));
}

type Tree = Record<string, unknown>;

async function call(method: string, path: string, action?: Action): Promise<Tree> {
  const headers: Record<string, string> = session.headers();
  if (action) headers["Content-Type"] = action.type ?? MERGE_PATCH;
  const response = await fetch(`/console/api${path}`, {
    method, headers, body: action ? JSON.stringify(action.body) : undefined,
  });
  const found = await response.json();
  if (!response.ok) throw new Error(found.message ?? `status ${response.status}`);
  return found;
}

export interface Line { kind: "gone" | "added"; text: string }

/** Changes nothing: what the object would become, as the fields of `spec` that differ. */
export async function dryRun(action: Action): Promise<Line[]> {
  if (action.path && action.plan) await call("POST", `${action.path}?dryRun=All`, action);
  if (action.plan) return action.plan;
  const creates = action.method === "POST";
  const before = creates ? {} : await call("GET", action.path);
  const after = await call(action.method ?? "PATCH", `${action.path}?dryRun=All&fieldManager=console`, action);
  const [old, next] = [flat(before.spec), flat(after.spec)];
  const lines: Line[] = [];
  for (const key of [...new Set([...old.keys(), ...next.keys()])].sort()) {
    if (old.get(key) === next.get(key)) continue;
    if (old.has(key)) lines.push({ kind: "gone", text: `spec${key}: ${old.get(key)}` });
    if (next.has(key)) lines.push({ kind: "added", text: `spec${key}: ${next.get(key)}` });
  }
  return lines;
}

export async function act(action: Action): Promise<void> {
  await call(action.method ?? "PATCH", `${action.path}?fieldManager=console`, action);
  action.done?.();
}

export function readObject(path: string): Promise<Tree> {
  return call("GET", path);
}

function flat(value: unknown, path = "", into = new Map<string, string>()): Map<string, string> {
  if (value === undefined) return into;
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, part] of Object.entries(value)) flat(part, `${path}.${key}`, into);
  } else if (Array.isArray(value) && value.some((part) => typeof part === "object")) {
    value.forEach((part, i) => flat(part, `${path}[${i}]`, into));
  } else into.set(path, JSON.stringify(value));
  return into;
}

export function workloadPath(tenant: string, name: string): string {
  return `/resources/apis/holdfast.dev/v1/namespaces/${encodeURIComponent(tenant)}/workloads/${encodeURIComponent(name)}`;
}

/** An object of the global cell without a tenant. */
export function globalPath(plural: string, name: string): string {
  return `/resources/apis/holdfast.dev/v1/${plural}${name ? `/${encodeURIComponent(name)}` : ""}`;
}

export function nodePath(region: string, node: string): string {
  return `/regions/${encodeURIComponent(region)}/nodes/${encodeURIComponent(node)}`;
}

/** A new override for a region, with a reason and an end. */
export function overrideAction(name: ActionName, kind: string, region: string, ttlS: number, radius: Action["radius"]): Action {
  const override = `${kind.toLowerCase()}-${crypto.randomUUID().slice(0, 8)}`;
  return {
    name, title: `${kind}: ${region}`, verb: `Create ${kind}`, path: globalPath("overrides", ""), method: "POST", type: "application/json",
    command: `holdfast override create ${kind} --region ${region} --ttl ${ttlS} --reason …`, confirm: region, radius,
    reasoned: (reason) => ({
      body: { apiVersion: "holdfast.dev/v1", kind: "Override", metadata: { name: override }, spec: { kind, scope: { region }, reason, ttlSeconds: ttlS } },
      command: `holdfast override create ${kind} --region ${region} --ttl ${ttlS} --reason '${reason.replaceAll("'", "'\\''")}'`,
    }),
  };
}
