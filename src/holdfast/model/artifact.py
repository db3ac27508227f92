"""Artifacts of a template: a file or archive under a name in the task's working directory.

An artifact's name is one path component, so the node writes it into the working directory and nowhere else. Admission
and the agent apply the same rules. Which sources a node may read is decided by the node's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.model.meta import ApiStruct
from holdfast.model.validation import Causes, check_unique, has_control_characters, invalid, required, too_long

# Artifacts of a template. More are refused.
ARTIFACTS_PER_REPLICA_MAX = 32
# Length of an artifact's name. File systems allow 255 bytes.
ARTIFACT_NAME_MAX = 128
# Length of an artifact's source. A longer one is refused.
ARTIFACT_SOURCE_BYTES_MAX = 2048

NAME_RULE = "must be one file name: letters, digits, '-', '_' or '.', and must not start with '-' or '.'"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Stricter than RFC 3986, so that all parsers agree on the host.
_URL = re.compile(
    r"(?i:https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?([/?][!-\[\]-~]*)?", re.ASCII
)
_FILE_URL = re.compile(r"file:(//(localhost)?)?(?P<path>/([^/].*)?)", re.DOTALL)
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Artifact(ApiStruct, frozen=True):
    """A file or archive that the task needs. Fetched once per tenant and node, and cached by digest."""

    name: str
    source: str
    digest: str = ""


def artifact_error(artifact: Artifact) -> str:
    """The first rule that the artifact violates, for the agent; empty if there is none."""
    return next((f"{cause.field} {cause.message}" for cause in _validate("", artifact)), "")


def validate_artifacts(field: str, artifacts: Sequence[Artifact]) -> Causes:
    if len(artifacts) > ARTIFACTS_PER_REPLICA_MAX:
        yield invalid(field, len(artifacts), f"must have at most {ARTIFACTS_PER_REPLICA_MAX} items")
    yield from check_unique(field, (artifact.name for artifact in artifacts))
    for index, artifact in enumerate(artifacts):
        yield from _validate(f"{field}[{index}].", artifact)


def _validate(field: str, artifact: Artifact) -> Causes:
    if len(artifact.name) > ARTIFACT_NAME_MAX:
        yield too_long(f"{field}name", ARTIFACT_NAME_MAX)
    elif not _NAME.fullmatch(artifact.name):
        yield invalid(f"{field}name", artifact.name, NAME_RULE)
    if not artifact.source:
        yield required(f"{field}source")
    elif len(artifact.source.encode(errors="replace")) > ARTIFACT_SOURCE_BYTES_MAX:
        yield too_long(f"{field}source", ARTIFACT_SOURCE_BYTES_MAX)
    elif rule := source_error(artifact.source):
        yield invalid(f"{field}source", artifact.source, rule)
    if artifact.digest and not _DIGEST.fullmatch(artifact.digest):
        yield invalid(f"{field}digest", artifact.digest, "must be sha256: and 64 hexadecimal digits in lower case")


def is_url(source: str) -> bool:
    return source[:8].lower().startswith(("http://", "https://"))


def source_error(source: str) -> str:
    """Why the source is malformed; empty if it is well-formed. A source is a path or a file:, http: or https: URL."""
    if has_control_characters(source):
        return "must not contain control characters"
    if is_url(source):
        found = _URL.fullmatch(source)
        if found is None:
            return "must be a URL such as https://example.com:8443/app.tgz, without user name, spaces and backslashes"
        return "" if int(found["port"] or 1) in range(1, 65536) else "must have a port between 1 and 65535"
    path = source_path(source)
    if not path.startswith("/") or has_control_characters(path):
        return "must be an absolute path, or a file:, http: or https: URL"
    return "must not contain '..'" if ".." in path.split("/") else ""


def source_file_name(source: str) -> str:
    """The path of a source without query and fragment. Its ending says whether the file is an archive."""
    return re.split("[?#]", source, maxsplit=1)[0] if is_url(source) else source_path(source)


def source_path(source: str) -> str:
    """The path on the node of a source without a host; empty if it is malformed."""
    if not source.startswith("file:"):
        return source
    found = _FILE_URL.fullmatch(source)
    if found is None:
        return ""
    encoded = found["path"].encode(errors="replace")
    return _PERCENT.sub(lambda byte: bytes([int(byte[1], 16)]), encoded).decode(errors="replace")
