import type { StageCount } from "./types";

/** Replicas that are at work or on their way to it: not those that have ended and are only remembered. */
export function present(stages: StageCount[]): number {
  return stages.filter((s) => !["Released", "Succeeded"].includes(s.stage)).reduce((n, s) => n + s.count, 0);
}
