"""Whether the ports of a new platform overlap with those of another platform that runs on this machine.

Ports of tasks are bound only when a task starts, so an overlap would show itself later.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.layout import PORT_SPACING, Layout, Platform
from holdfast.platform.processes import running_platforms


def overlap_warnings(layout: Layout, platform: Platform) -> Iterator[str]:
    first, last = platform.port_range
    for other in running_platforms():
        if other == layout.root:
            continue
        try:
            low, high = Layout(other).load().port_range
        except CommandError:
            continue
        if low <= last and first <= high:
            yield (
                f"warning: ports {first}-{last} of this platform overlap with {low}-{high} of platform {other}; tasks "
                f"may find their ports in use; next: holdfast up --port-base {low + PORT_SPACING}, in a new directory"
            )
