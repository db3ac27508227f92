"""Pure decisions of the global cell: Assignments, Grants, Recoveries, rollouts, autoscaling, policies, overrides."""
