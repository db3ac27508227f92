"""Values that a task gets from Secrets and ConfigMaps: what its template refers to, and no more. Pure.

The region resolves them for the agent of the node. `problem` names the object and key that is missing, never a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.model.config_references import (
    SECRET_KIND,
    ConfigFile,
    ConfigObject,
    ConfigReference,
    EnvSource,
    EnvValue,
    OnChange,
    ReferencingTemplate,
    file_place,
    missing_text,
    references,
    target,
)
from holdfast.model.meta import ApiStruct
from holdfast.model.reasons import Reason

# Length of one environment variable from a reference. Linux refuses to execute a program with a longer one.
ENV_VALUE_BYTES_MAX = 128 * 1024 - 1
# Length of all environment variables from references. Linux allows a quarter of the stack for all of them.
ENV_VALUES_BYTES_MAX = 1024 * 1024
# Content of all files of a task. It is held in memory on the node.
TASK_FILES_BYTES_MAX = 8 * 1024 * 1024


class ConfigVersion(ApiStruct, frozen=True):
    """Which content of an object: a change of the content changes the generation, a new object has another uid."""

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int


class ConfigVersions(ApiStruct, frozen=True):
    items: tuple[ConfigVersion, ...] = ()


class TaskFile(ApiStruct, frozen=True):
    path: str
    mode: int
    content: bytes
    updates: bool = False
    """Whether a change is written to the file of the running task."""

    def __repr__(self) -> str:
        return f"TaskFile({self.path})"


class TaskValues(ApiStruct, frozen=True):
    """Environment and files of one task. If `reason` is set, something is missing and the task cannot start."""

    env: dict[str, bytes] = {}
    files: tuple[TaskFile, ...] = ()
    reason: str = ""
    message: str = ""

    def __repr__(self) -> str:
        """Without the values: representations end up in logs and tracebacks."""
        return f"TaskValues({', '.join(self.env)}; {len(self.files)} files; {self.reason})"


FindContent = Callable[[ConfigObject], Mapping[str, bytes] | None]
"""The content of an object of the template's tenant; None if there is none."""


def resolve(template: ReferencingTemplate, find: FindContent) -> TaskValues:
    env: dict[str, bytes] = {}
    files: list[TaskFile] = []
    for reference in references(template):
        content = find(target(reference))
        if content is None:
            if not reference.optional:
                return _missing(reference)
            continue
        key = "" if isinstance(reference, EnvSource) else reference.key
        if key and key not in content:
            if not reference.optional:
                return _missing(reference, key)
            continue
        match reference:
            case EnvSource(prefix=prefix):
                env |= {f"{prefix}{name}": content[name] for name in sorted(content)}
            case EnvValue(name=name):
                env[name] = content[key]
            case ConfigFile():
                files += _files(reference, content)
    return _bounded(TaskValues(env=env, files=tuple(files)))


def _files(reference: ConfigFile, content: Mapping[str, bytes]) -> list[TaskFile]:
    updates, place = reference.on_change is OnChange.UPDATE, file_place(reference.path)
    if reference.key:
        return [TaskFile(place, reference.mode, content[reference.key], updates)]
    return [TaskFile(f"{place}/{key}", reference.mode, content[key], updates) for key in sorted(content)]


def _missing(reference: ConfigReference, key: str = "") -> TaskValues:
    is_secret = target(reference).kind == SECRET_KIND
    reason = Reason.SECRET_MISSING if is_secret else Reason.CONFIG_MISSING
    return TaskValues(reason=reason, message=missing_text(reference, key))


def _bounded(values: TaskValues) -> TaskValues:
    """Values that no process can get are refused here, with the name of the variable."""
    problem = ""
    for name, value in values.env.items():
        if b"\0" in value:
            problem = f"environment variable {name}: its value contains NUL; next: use it as a file"
        elif len(name) + len(value) >= ENV_VALUE_BYTES_MAX:
            problem = f"environment variable {name}: longer than {ENV_VALUE_BYTES_MAX} bytes; next: use it as a file"
    if sum(len(name) + len(value) for name, value in values.env.items()) > ENV_VALUES_BYTES_MAX:
        problem = f"environment from references: longer than {ENV_VALUES_BYTES_MAX} bytes; next: use files"
    if sum(len(file.content) for file in values.files) > TASK_FILES_BYTES_MAX:
        problem = f"files from references: larger than {TASK_FILES_BYTES_MAX} bytes together"
    return TaskValues(reason=Reason.CONFIG_UNUSABLE, message=problem) if problem else values
