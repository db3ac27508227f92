"""Pure decisions inside a region: filters, scores, plan, preemption, replication, eviction, node health."""
