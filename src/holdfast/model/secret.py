"""Secret and ConfigMap in their core/v1 form, with the rules of Kubernetes. Pure.

A stored Secret is sealed: `sealed` holds its data and annotations as ciphertext, and both are empty. The gate seals
what it stores, and the API opens what it shows (`gate/sealing.py`). No message here repeats a value.
`metadata.generation` counts changes of the content, so that a reference can name the content without hashing it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.validation import Causes, forbidden, invalid, required, too_long

# Size of all values of one Secret or ConfigMap, decoded. More is refused. The same limit as in Kubernetes.
CONTENT_BYTES_MAX = 1024 * 1024
# Length of a key. A longer one is refused. The same limit as in Kubernetes.
KEY_CHARS_MAX = 253
# Length of the type of a Secret. A longer one is refused.
SECRET_TYPE_CHARS_MAX = 253

OPAQUE = "Opaque"
SERVICE_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
DOCKER_CONFIG_JSON = "kubernetes.io/dockerconfigjson"
_DOCKER_CONFIG = "kubernetes.io/dockercfg"
_BASIC_AUTH = "kubernetes.io/basic-auth"
# Type → keys that it needs. Of the keys of basic-auth one is enough.
REQUIRED_KEYS: dict[str, tuple[str, ...]] = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    _DOCKER_CONFIG: (".dockercfg",),
    DOCKER_CONFIG_JSON: (".dockerconfigjson",),
}
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_RULE = "must be letters, digits, '-', '_' or '.', and must not be '.' or start with '..'"


class Sealed(ApiStruct, frozen=True):
    """Ciphertext of a Secret: a data key wrapped by the key `key`, and the content encrypted with the data key."""

    key: str
    wrapped: bytes
    content: bytes


class Secret(Object, frozen=True):
    """core/v1 Secret."""

    immutable: bool = False
    data: dict[str, bytes] = {}
    string_data: dict[str, str] = {}
    type: str = visible_default(OPAQUE)
    sealed: Sealed | None = None

    def __repr__(self) -> str:
        """Without the data: representations end up in logs and tracebacks."""
        return f"Secret({self.key})"


class ConfigMap(Object, frozen=True):
    """core/v1 ConfigMap."""

    immutable: bool = False
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}


def default_secret(secret: Secret) -> Secret:
    """`stringData` is write-only: it is merged into `data`. An empty type means Opaque."""
    if not secret.string_data and secret.type:
        return secret
    merged = {**secret.data, **{key: text.encode() for key, text in secret.string_data.items()}}
    return msgspec.structs.replace(secret, data=merged, string_data={}, type=secret.type or OPAQUE)


def validate_secret(secret: Secret, old: Secret | None) -> Causes:
    yield from _validate_content("data", secret.data)
    if len(secret.type) > SECRET_TYPE_CHARS_MAX:
        yield too_long("type", SECRET_TYPE_CHARS_MAX)
    yield from _validate_type(secret)
    if old is None:
        return
    if secret.type != old.type:
        yield invalid("type", secret.type, "field is immutable")
    if old.immutable:
        yield from _validate_immutable("data", secret.immutable, changed=secret.data != old.data)


def _validate_type(secret: Secret) -> Causes:
    """The keys that the type needs, as in Kubernetes."""
    for key in REQUIRED_KEYS.get(secret.type, ()):
        if key not in secret.data:
            yield required(f"data[{key}]")
    if secret.type == _BASIC_AUTH and not {"username", "password"} & secret.data.keys():
        yield required("data[username]")
        yield required("data[password]")
    if secret.type == SERVICE_ACCOUNT_TOKEN:
        yield forbidden("type", "Holdfast has no service accounts; next: use the type Opaque")
    for kind, key in ((_DOCKER_CONFIG, ".dockercfg"), (DOCKER_CONFIG_JSON, ".dockerconfigjson")):
        if secret.type == kind and key in secret.data:
            try:
                msgspec.json.decode(secret.data[key], type=dict[str, msgspec.Raw])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield invalid(f"data[{key}]", "<secret contents redacted>", "must be a JSON object")


def validate_config_map(config: ConfigMap, old: ConfigMap | None) -> Causes:
    yield from _validate_content("data", {key: text.encode() for key, text in config.data.items()}, beside="binaryData")
    yield from _validate_content("binaryData", config.binary_data)
    for key in sorted(config.data.keys() & config.binary_data.keys()):
        yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    if content_bytes(config) > CONTENT_BYTES_MAX:
        yield too_long("", CONTENT_BYTES_MAX)
    if old is not None and old.immutable:
        changed = config.data != old.data or config.binary_data != old.binary_data
        yield from _validate_immutable("data", config.immutable, changed=changed)


def content_bytes(config: ConfigMap) -> int:
    texts = sum(len(text.encode()) for text in config.data.values())
    return texts + sum(map(len, config.binary_data.values()))


def _validate_content(field: str, content: Mapping[str, bytes], *, beside: str = "") -> Causes:
    for key in content:
        if len(key) > KEY_CHARS_MAX:
            yield too_long(f"{field}[{key[:40]}…]", KEY_CHARS_MAX)
        elif not _KEY.fullmatch(key) or key == "." or key.startswith(".."):
            yield invalid(f"{field}[{key}]", key, _KEY_RULE)
    if not beside and sum(map(len, content.values())) > CONTENT_BYTES_MAX:
        yield too_long(field, CONTENT_BYTES_MAX)


def _validate_immutable(field: str, immutable: bool, *, changed: bool) -> Causes:
    if not immutable:
        yield forbidden("immutable", "field is immutable when `immutable` is set")
    if changed:
        yield forbidden(field, "field is immutable when `immutable` is set")


def config_content(config: ConfigMap) -> dict[str, bytes]:
    """All values of a ConfigMap as bytes."""
    return {**{key: text.encode() for key, text in config.data.items()}, **config.binary_data}
