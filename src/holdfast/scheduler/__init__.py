"""The scheduler process of a region: queues requests, plans them, and proposes placements to the authority."""
