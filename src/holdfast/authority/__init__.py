"""The elected writer of a region: the ledger, reserve, bind, release, leases and fences."""
