"""Fencing token of exclusive work: a text that rises with every placement of an ordinal, on any node of any region.

A task hands it to its database, which refuses a lower one than it has seen. So work that was paused, and wakes up when
its successor already runs, can do no harm. It has two parts of fixed width, and tokens compare as texts:

- the revision of the global cell at which the region's Assignment was copied. An ordinal goes to another region only by
  a later commit of the global cell, so the successor's Assignment has a higher one;
- the revision of the Replica in its region when it was bound. A later bind in the same region reads a later one.
"""

from __future__ import annotations

from holdfast.model.assignment import Assignment
from holdfast.model.replica import Replica

SOURCE_REVISION_ANNOTATION = "holdfast.dev/source-revision"


def fencing_token(assignment: Assignment | None, replica: Replica) -> str:
    """The token of a Binding of this replica; empty if the work is not exclusive."""
    if replica.spec.exclusive is None:
        return ""
    copied = assignment.metadata.annotations.get(SOURCE_REVISION_ANNOTATION, "") if assignment is not None else ""
    return f"{int(copied) if copied.isdigit() else 0:016x}.{replica.revision:016x}"
