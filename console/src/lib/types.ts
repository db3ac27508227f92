// The answers of /console/api. The Python types of src/holdfast/console are the source.

export interface Capacity { total: number; allocated: number; held: number }
export type Resources = Record<string, Capacity>;
export interface RegionState {
  name: string; health: string; since: string; reason: string; message: string; lastContactAt: string;
  lostAfterS: number; nodes: number; live: number; zones: string[]; resources: Resources; pending: number;
  policy: string; holding: string; unreachableFrom: string[]; asOf: number; problem: string;
}
export interface Proof { recovery: string; seconds: number; at: string; cause: string }
export interface LossState {
  region: string; zone: string; backed: number; of: number; bottleneck: string; proof: Proof | null;
}
export interface Objective { deadlineS: number; minServing: number; critical: number; backed: number; losses: LossState[] }
export interface StageCount { stage: string; count: number; atWork: number; oldestSinceS: number; oldest: string }
export interface StageSpan {
  name: string; count: number; p50S: number; p90S: number; p99S: number; maxS: number; slowest: string;
  histogram: number[];
}
export interface Wait {
  region: string; tenant: string; workload: string; request: string; reason: string; message: string;
  replicas: number; since: string; position: number; attempts: number; priority: number; nextRetryAt: string;
  retryOn: string[]; decision: string; gang: boolean;
}
export interface OverrideRow {
  name: string; kind: string; scope: string; reason: string; requester: string; approver: string; phase: string;
  expiresAt: string; ttlS: number; revoked: boolean; createdAt: string; conditions: Condition[]; waitsFor: string;
}
export interface Alert { severity: string; reason: string; subject: string; message: string; path: string }
export interface EventRow {
  at: string; type: string; reason: string; message: string; object: string; count: number; by: string; region: string;
}
export interface Overview {
  objective: Objective; regions: RegionState[]; stages: StageCount[]; spans: StageSpan[]; replicas: number;
  wanted: number; waits: Wait[]; waiting: number; overrides: OverrideRow[]; alerts: Alert[]; changes: EventRow[];
  changed: number; recoveries: RecoveryLine[]; budgets: BudgetLine[]; remaining: string[]; counts: Record<string, number>; servedLastHour: number;
  failedLastHour: number; failing: WorkloadLine[]; failingTotal: number;
}
export interface WorkloadLine {
  tenant: string; name: string; type: string; priority: string; wanted: number; assigned: number; bound: number;
  ready: number; serving: number; succeeded: number; failed: number; regions: string[]; state: string;
  reason: string; message: string; rollout: string; critical: boolean; backed: boolean | null; createdAt: string;
}
export interface WorkloadPage {
  rows: WorkloadLine[]; total: number; matching: number; nextOffset: number; counts: Record<string, number>;
  tenants: string[];
}
export interface Condition {
  type: string; status: string; reason?: string; message?: string; lastTransitionTime?: string;
  observedGeneration?: number;
}
export interface AssignmentLine {
  name: string; region: string; purpose: string; replicas: number; queued: number; bound: number; ready: number;
  serving: number; epoch: number; observedEpoch: number; suspended: boolean; reason: string; revision: string;
  pending: { reason: string; count: number; message?: string }[];
  failing: { reason: string; count: number; message?: string }[]; asOf: number; problem: string;
}
export interface ReplicaRow {
  tenant: string; name: string; workload: string; region: string; assignment: string; purpose: string;
  stage: string; revision: string; attempt: number; node: string; zone: string; binding: string;
  decision: string; priority: number; reclaimable: boolean; restarts: number; address: string; reason: string;
  message: string; queuedAt: string; decidedAt: string; reservedAt: string; boundAt: string; startedAt: string;
  readyAt: string; servingAt: string; endedAt: string; since: string; nextOwner: string; nextStep: string;
}
export interface DecisionLine {
  region: string; tenant: string; name: string; workload: string; at: string; placed: number; of: number;
  nodes: number; feasible: number; reason: string; policy: string;
}
export interface Rollout {
  revision: string; previousRevision: string; lastGoodRevision: string; phase: string; message: string;
  regions: string[]; serving: number; progressedAt: string; unreachableRegions: string[];
  history: { revision: string; at: string; outcome: string }[];
}
export interface WorkloadDetail {
  line: WorkloadLine; sentence: { state: string; why: string; next: string; nextAt: string }; generation: number;
  observedGeneration: number; revision: string; command: string[]; conditions: Condition[];
  assignments: AssignmentLine[]; replicas: ReplicaRow[]; totalReplicas: number; nextOffset: number; waits: Wait[];
  decisions: DecisionLine[]; events: EventRow[]; rollout: Rollout | null; undo: { revision: string; image: string } | null; rollsBack: boolean;
  rolloutSpec: { maxSurge: number; maxUnavailable: number; progressDeadlineSeconds: number; paused?: boolean; autoRollback: boolean; waveRegions: number } | null; waves: string[][];
  recovery: { minServing: number; deadlineSeconds: number } | null;
  backing: { backed: boolean; reason?: string; message?: string } | null;
  disruption: { maxUnavailable: number } | null; scale: { replicas: number; reason?: string } | null; usualReadyS: number;
  array: { completions: number; succeeded: string; failed: string; failures: { index: number; failures: number; replica: string; exitCode?: number | null; reason: string; message: string }[] } | null;
}
export interface MatrixRow {
  node: string; zone: string; refused: Record<string, string>; messages: string[]; scores: number[]; total: number;
}
export interface Matrix {
  filters: { name: string; left: number }[]; scores: { name: string; weight: number }[]; feasible: MatrixRow[];
  feasibleCount: number; groups: { reason: string; filter: string; nodes: number; message: string; rows: MatrixRow[] }[];
  nodes: number; nearest: string; passes: number;
}
export interface DecisionEntry {
  replica: string; uid: string; attempt: number; node?: string; score?: number; result?: string; reason?: string;
  message?: string; victims?: string[]; runnerUp?: string; runnerUpScore?: number;
}
export interface DecisionDetail {
  name: string; tenant: string; workload: string; request: string; at: string; queuedAt: string; nodes: number;
  feasible: number; policy: string; seed: number; planner: string; snapshotHash: string; snapshotRevision: number;
  resources: Record<string, string>; priority: number; position: number; waiting: number; attempts: number;
  entries: DecisionEntry[]; refusals: { reason: string; nodes: number; examples?: string[]; message?: string }[];
  overrides: string[]; matrix: Matrix | null; replay: string; replayMessage: string; differences: string[];
  evidence: { input: string; ageS: number; limitS: number }[]; nextRetryAt: string; retryOn: string[];
  stillPending: number; remedies: string[];
}
export interface ZoneColumns {
  zone: string; prefix: string; names: string[]; allocated: number[]; held: number[]; states: string;
  renewed: number[]; replicas: number[]; used?: number[];
}
export interface ZoneTotal { zone: string; nodes: number; live: number; attention: number; resources: Resources }
export interface RegionMap {
  nodes: number; zones: ZoneColumns[]; totals: ZoneTotal[];
  attention: { zone: string; state: string; reason: string; count: number; examples: string[]; since: string }[];
}
export interface MapPage {
  regions: RegionState[]; maps: Record<string, RegionMap | null>; nodes: number; resource: string;
  overrides: OverrideRow[];
}
export interface NodeDetail {
  name: string; region: string; zone: string; pool: string; state: string; reason: string; since: string;
  renewedAt: number; epoch: number; agentVersion: string; isolation: string; resources: Resources; drain: string;
  taints: string[]; replicas: ReplicaRow[]; slots: number; unschedulable: boolean; draining: boolean; images: string[];
}
export interface UsageRow { namespace: string; workload: string; replica: string; cpu: number; cpuRequested: number; memory: number; memoryRequested: number }
export interface RecoveryLine {
  name: string; region: string; zone: string; cause: string; phase: string; startedAt: string; deadlineS: number;
  servedS: number; met: boolean | null; workloads: number; serving: number; closedAt: string;
}
export interface BudgetLine { name: string; region: string; wanted: number; admitted: number; consumed: number; tenants: string[]; startsPerSecond: number }
export interface RecoveryPage { rows: RecoveryLine[]; objective: Objective; proofs: Record<string, Proof | null>; budgets: BudgetLine[] }
export interface RecoveryDetail {
  line: RecoveryLine; evidence: string[]; marks: { name: string; seconds: number }[]; elapsedS: number;
  workloads: { tenant: string; workload: string; target?: string; priority?: number; wanted: number; recoveryReplicas: number; assigned: number; bound: number; ready: number; serving: number; reason?: string; message?: string }[];
  remaining: string[]; conditions: Condition[]; answers: { question: string; facts: string[] }[]; events: EventRow[];
  next: string;
}
export interface Placing {
  region: string; replica: string; tenant: string; workload: string; node: string; victims: string[]; reason: string; message: string; toFit: string;
}
export interface Removal { region: string; replica: string; tenant: string; workload: string; node: string }
export interface Place { tenant: string; workload: string; region?: string; replicas?: number; why?: string; reassignAfterSeconds?: number; canRunElsewhere?: boolean }
/** What a loss does to one workload, in the words of `holdfast plan --lose-region`. */
export interface LossEffect { tenant: string; workload: string; effect: "short" | "recovers" | "safe" | "unprotected"; text: string }
export interface LossOutcome {
  effects: LossEffect[];
  lost: { region: string; zone: string }; recovers: Place[]; safe: Place[]; short: Place[]; unprotected: Place[]; decided: boolean;
}
export interface WhatIfPage {
  losses: { region: string; zones: string[] }[]; regions: RegionState[]; outcome: LossOutcome | null; objective: Objective;
  drain: { region: string; node: string; placings: Placing[] } | null;
}
export interface ApplyOutcome {
  refused: { workload: string; why: string }[]; changes: { workload: string; new: boolean; fields: string[] }[];
  placings: Placing[]; removals: Removal[]; placed: number; waiting: number; evicted: number; removed: number;
}
export interface SearchHit { kind: string; name: string; note: string; path: string; stage: string }
