"""Limits that several modules of the agent share: its calls to the region, their retries and its resync."""

from __future__ import annotations

# Delay in which the agent batches status reports.
AGENT_FLUSH_EVERY_S = 0.1
# Time for one call of the agent. After that, the call is retried.
AGENT_CALL_TIMEOUT_S = 10.0
# First pause between retries of the agent.
AGENT_RETRY_FIRST_S = 0.2
# Longest pause between retries of the agent.
AGENT_RETRY_MAX_S = 5.0
# Interval at which the agent lists its Bindings. Below the stage deadline of Bound, so that a Binding missed by the
# watch is started before the replica counts as stuck.
AGENT_RESYNC_S = 40.0
