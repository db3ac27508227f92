import { seconds } from "./format";
import type { RecoveryLine } from "./types";

/** How far the clock of a recovery went, in seconds: to the serving of every workload, else to its end, else to now. */
export function recoveryClock(line: RecoveryLine, now: number): number {
  if (line.servedS >= 0) return line.servedS;
  return Math.max(0, (seconds(line.closedAt) || now) - seconds(line.startedAt));
}
