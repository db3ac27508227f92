"""Readiness: claims with the evidence that each needs, and the review of a running fleet."""
