// The blast radius of an action, from the answer to the what-if question.

import type { Action } from "./actions";
import type { LossEffect, LossOutcome, Placing } from "./types";

type Radius = Action["radius"];
/** Replicas named one by one. The rest is counted. */
const NAMED = 6;

export function drainRadius(placings: Placing[] | null): Radius {
  if (!placings) return [{ glyph: "Unknown", text: "Asking the region where the replicas would go" }];
  const moving = placings.filter((p) => p.node);
  const waiting = placings.filter((p) => !p.node);
  const evicted = placings.flatMap((p) => p.victims);
  const found: Radius = [
    ...waiting.slice(0, NAMED).map((p) => ({ glyph: "Failed", text: `${p.tenant}/${p.replica} would wait: ${p.message || p.reason}` })),
    ...moving.slice(0, NAMED).map((p) => ({ glyph: "Starting", text: `${p.tenant}/${p.replica} moves to ${p.node}` })),
    ...evicted.slice(0, NAMED).map((v) => ({ glyph: "Stopping", text: `${v} is evicted for it` })),
  ];
  const total = waiting.length + moving.length + evicted.length;
  if (total > found.length) found.push({ glyph: "near", text: `and ${total - found.length} more` });
  if (!total) found.push({ glyph: "yes", text: "Nothing runs there: no replica moves" });
  return found;
}

/** The glyph of what a loss does to a workload. */
export const EFFECT_GLYPHS: Record<LossEffect["effect"], string> = { short: "Failed", recovers: "Starting", safe: "Serving", unprotected: "Queued" };

export function lossRadius(out: LossOutcome | null): Radius {
  if (!out) return [{ glyph: "Unknown", text: "Asking what its loss would mean" }];
  return out.effects.map((e) => ({ glyph: EFFECT_GLYPHS[e.effect], text: `${e.tenant}/${e.workload}: ${e.text}` }));
}
