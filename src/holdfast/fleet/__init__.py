"""Pure decisions above regions: assignment, spillover, grants, recovery, rollout, autoscaling, policy and overrides."""
