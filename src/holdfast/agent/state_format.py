"""The format of an agent's state directory. A change of its files needs a row here.

Caches of artifacts and images are not part of it: the agent fetches them again. Nor are the files of a task's runs,
which belong to its shim, and the task's own files.
"""

from __future__ import annotations

from holdfast.foundation.state_format import StateFormat

AGENT_STATE = StateFormat("agent", files=("agent.json", "identity/*", "tasks/*/task.json", "oci/tasks/*/task.json"))
