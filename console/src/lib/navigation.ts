// The pages, their groups and keys.

export interface Entry { page: string; title: string; path: string; key: string; tab?: boolean; count?: string }
export const GROUPS: { title: string; entries: Entry[] }[] = [
  {
    title: "Observe",
    entries: [
      { page: "overview", title: "Overview", path: "/", key: "o", tab: true },
      { page: "map", title: "Map", path: "/map", key: "m", tab: true, count: "nodes" },
      { page: "workloads", title: "Workloads", path: "/workloads", key: "w", tab: true, count: "workloads" },
      { page: "schedules", title: "Schedules", path: "/schedules", key: "c" },
      { page: "pipeline", title: "Pipeline", path: "/pipeline", key: "p" },
      { page: "queues", title: "Queues", path: "/queues", key: "q", count: "queues" },
    ],
  },
  {
    title: "Understand",
    entries: [
      { page: "decisions", title: "Decisions", path: "/decisions", key: "d", tab: true },
      { page: "what-if", title: "What if", path: "/what-if", key: "i" },
      { page: "audit", title: "Audit", path: "/audit", key: "a" },
    ],
  },
  {
    title: "Protect",
    entries: [
      { page: "recoveries", title: "Recovery", path: "/recovery", key: "r", tab: true },
      { page: "quotas", title: "Quotas and budgets", path: "/quotas", key: "u" },
      { page: "policies", title: "Policies", path: "/policies", key: "l" },
      { page: "overrides", title: "Overrides", path: "/overrides", key: "v", count: "overrides" },
      { page: "repairs", title: "Repairs", path: "/repairs", key: "e", count: "repairs" },
    ],
  },
  {
    title: "Platform",
    entries: [
      { page: "config", title: "Secrets and config", path: "/config", key: "f" },
      { page: "access", title: "Access", path: "/access", key: "x" },
      { page: "system", title: "System", path: "/system", key: "s" },
    ],
  },
];

export const ALL_ENTRIES = GROUPS.flatMap((group) => group.entries);
