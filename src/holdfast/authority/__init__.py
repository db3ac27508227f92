"""The elected writer of placement in a region: ledger, reserve, bind, release, leases and fences."""
