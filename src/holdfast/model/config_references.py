"""References of a template to Secrets and ConfigMaps of its own tenant: environment and files. Pure.

A reference has no namespace, so it cannot name an object of another tenant. Values are resolved by the region, for the
agent of the node that runs the replica, and never become part of a template.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.model.meta import ApiStruct
from holdfast.model.registry_login import PullSecret
from holdfast.model.secret import KEY_CHARS_MAX
from holdfast.model.validation import Causes, check_subdomain, check_unique, invalid, required, too_long

# References of one template. More are refused; the agent resolves all of them before each start.
REFERENCES_PER_TEMPLATE_MAX = 64
# Length of the path of a file. A longer one is refused.
FILE_PATH_CHARS_MAX = 512
# Permissions of a file, unless the template sets them: its owner, the user of the task, may read it.
FILE_MODE = 0o400

SECRET_KIND, CONFIG_MAP_KIND = "Secret", "ConfigMap"
_CONTAINER_SYSTEM = ("/proc", "/sys", "/dev")
_ENV_NAME = re.compile(r"[A-Za-z_][-._A-Za-z0-9]*")
_PATH_PART = re.compile(r"[-._A-Za-z0-9]+")


class OnChange(enum.StrEnum):
    """What happens to running replicas when the content changes: files are updated in place, replicas are replaced
    by a rollout, or nothing happens until the next restart."""

    UPDATE = "Update"
    RESTART = "Restart"
    IGNORE = "Ignore"


class EnvSource(ApiStruct, frozen=True):
    """Every key of one Secret or ConfigMap as an environment variable, as `envFrom` in Kubernetes."""

    secret: str = ""
    config_map: str = ""
    prefix: str = ""
    optional: bool = False
    on_change: OnChange = OnChange.UPDATE


class EnvValue(ApiStruct, frozen=True):
    """One key of a Secret or ConfigMap as the environment variable `name`."""

    name: str
    key: str
    secret: str = ""
    config_map: str = ""
    optional: bool = False
    on_change: OnChange = OnChange.UPDATE


class ConfigFile(ApiStruct, frozen=True):
    """A file with one key, or without `key` a directory with a file for each key, in memory and not on disk."""

    path: str
    secret: str = ""
    config_map: str = ""
    key: str = ""
    mode: int = FILE_MODE
    optional: bool = False
    on_change: OnChange = OnChange.UPDATE


ConfigReference = EnvSource | EnvValue | ConfigFile


class ReferencingTemplate(Protocol):
    """The fields of a template that refer to Secrets and ConfigMaps."""

    @property
    def env(self) -> dict[str, str]: ...
    @property
    def env_from(self) -> tuple[EnvSource, ...]: ...
    @property
    def env_values(self) -> tuple[EnvValue, ...]: ...
    @property
    def files(self) -> tuple[ConfigFile, ...]: ...
    @property
    def content_versions(self) -> dict[str, str]: ...
    @property
    def image_pull_secrets(self) -> tuple[PullSecret, ...]: ...


class ConfigObject(msgspec.Struct, frozen=True, order=True, gc=False):
    """Kind and name of a referenced object, in the namespace of the template."""

    kind: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.kind}/{self.name}"


def references(template: ReferencingTemplate) -> tuple[ConfigReference, ...]:
    """References to values, in the order in which a later environment variable replaces an earlier one."""
    return (*template.env_from, *template.env_values, *template.files)


def has_values(template: ReferencingTemplate) -> bool:
    """Whether the task gets values: environment or files."""
    return bool(template.env_from or template.env_values or template.files)


def has_references(template: ReferencingTemplate) -> bool:
    """Whether the template needs any Secret or ConfigMap, also to pull its image."""
    return bool(template.image_pull_secrets) or has_values(template)


def target(reference: ConfigReference) -> ConfigObject:
    if reference.secret:
        return ConfigObject(SECRET_KIND, reference.secret)
    return ConfigObject(CONFIG_MAP_KIND, reference.config_map)


def referenced_objects(template: ReferencingTemplate) -> frozenset[ConfigObject]:
    """Everything that a region needs a copy of."""
    logins = (ConfigObject(SECRET_KIND, secret.name) for secret in template.image_pull_secrets)
    return frozenset((*(target(reference) for reference in references(template)), *logins))


def restarting_objects(template: ReferencingTemplate) -> tuple[ConfigObject, ...]:
    """The objects whose changes replace the replicas by a rollout."""
    found = {target(r) for r in references(template) if r.on_change is OnChange.RESTART}
    return tuple(sorted(found))


def validate_references(field: str, template: ReferencingTemplate, *, in_container: bool) -> Causes:
    every = references(template)
    if len(every) > REFERENCES_PER_TEMPLATE_MAX:
        yield invalid(field, f"{len(every)} references", f"at most {REFERENCES_PER_TEMPLATE_MAX}")
    named: dict[str, Sequence[ConfigReference]] = {
        "envFrom": template.env_from,
        "envValues": template.env_values,
        "files": template.files,
    }
    for name, rows in named.items():
        for index, row in enumerate(rows):
            yield from _validate_reference(f"{field}.{name}[{index}]", row)
    yield from check_unique(f"{field}.envValues", (value.name for value in template.env_values))
    for index, value in enumerate(template.env_values):
        if value.name in template.env:
            yield invalid(f"{field}.envValues[{index}].name", value.name, "is also set by env")
    yield from _validate_paths(f"{field}.files", template.files, in_container=in_container)


def _validate_reference(field: str, row: ConfigReference) -> Causes:
    if bool(row.secret) == bool(row.config_map):
        yield invalid(field, target(row).text if row.secret else "", "exactly one of secret, configMap must be set")
    elif row.secret:
        yield from check_subdomain(f"{field}.secret", row.secret)
    else:
        yield from check_subdomain(f"{field}.configMap", row.config_map)
    match row:
        case EnvSource(prefix=prefix):
            if prefix and (not _ENV_NAME.fullmatch(prefix) or len(prefix) > KEY_CHARS_MAX):
                yield invalid(f"{field}.prefix", prefix, "must be letters, digits, '_', '-' or '.', not a digit first")
        case EnvValue(name=name, key=key):
            if not _ENV_NAME.fullmatch(name) or len(name) > KEY_CHARS_MAX:
                yield invalid(f"{field}.name", name, "must be letters, digits, '_', '-' or '.', not a digit first")
            if not key:
                yield required(f"{field}.key", "the key whose value the variable gets")
        case ConfigFile(mode=mode):
            if not 0 <= mode <= 0o777 or not mode & 0o400:
                yield invalid(f"{field}.mode", oct(mode), "must be between 0400 and 0777 and readable by its owner")


def container_path_error(path: str) -> str:
    """Why no file can be mounted at this absolute path of a container; empty if one can."""
    for folder in _CONTAINER_SYSTEM:
        if f"{path}/".startswith(f"{folder}/"):
            return f"must not be at or below {folder}"
    return "must not be the root directory" if not path.strip("/") else ""


def file_place(path: str) -> str:
    """The path below the directory that holds the files of a task, also of an absolute path in a container."""
    return path.removeprefix("/")


def _validate_paths(field: str, files: Sequence[ConfigFile], *, in_container: bool) -> Causes:
    seen: list[str] = []
    for index, file in enumerate(files):
        where = f"{field}[{index}].path"
        if len(file.path) > FILE_PATH_CHARS_MAX:
            yield too_long(where, FILE_PATH_CHARS_MAX)
            continue
        if in_container and file.path.startswith("/") and (rule := container_path_error(file.path)):
            yield invalid(where, file.path, rule)
            continue
        place = file_place(file.path) if in_container else file.path
        if not all(_PATH_PART.fullmatch(part) and part not in (".", "..") for part in place.split("/")):
            yield invalid(where, file.path, "must be relative to the task's directory, such as secrets/token")
            continue
        for other in seen:
            if f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/"):
                yield invalid(where, file.path, f"overlaps with the path {other}")
        seen.append(place)


def is_older_than_wanted(template: ReferencingTemplate, found: ConfigObject, uid: str, generation: int) -> bool:
    """Whether a copy has older content than the revision of the template was made for (`onChange: Restart`)."""
    wanted_uid, _, wanted = template.content_versions.get(found.text, "").rpartition(".")
    return wanted_uid == uid and wanted.isdigit() and generation < int(wanted)


def missing_text(reference: ConfigReference, key: str = "") -> str:
    """Names what is missing. Never a value."""
    found = target(reference)
    noun = "Secret" if found.kind == SECRET_KIND else "ConfigMap"
    if key:
        return f'{noun} {found.name}: has no key "{key[:KEY_CHARS_MAX]}"'
    return f"{noun} {found.name}: does not exist in the tenant, or has not reached this region yet"
