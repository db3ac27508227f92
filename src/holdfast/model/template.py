"""Template of a replica: command, resources, ports, probes and restart policy."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache

import msgspec

from holdfast.model.artifact import Artifact, validate_artifacts
from holdfast.model.config_references import ConfigFile, EnvSource, EnvValue, validate_references
from holdfast.model.image import BadReference, PullPolicy, default_pull_policy, parse_reference, validate_image
from holdfast.model.meta import ApiStruct, visible_default
from holdfast.model.probe import Probe, validate_probe
from holdfast.model.quantity import STORAGE, Amount, Amounts, BadQuantity, amounts, amounts_text
from holdfast.model.registry_login import PullSecret, validate_pull_secrets
from holdfast.model.task_programs import InitTask, Lifecycle, Sidecar, validate_programs
from holdfast.model.template_volume import ClaimVolume, TemplateVolume, claim_bytes, validate_volumes, with_claim_terms
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_labels,
    check_range,
    check_resources,
    check_unique,
    forbidden,
    has_control_characters,
    invalid,
    required,
    too_long,
    unsupported,
)

# Ports of a template. More are refused. A node has 1,000 ports by default, so 16 leave room for 60 replicas.
PORTS_PER_REPLICA_MAX = 16
# Length of one argument or environment variable. Linux refuses to execute a program with a longer one (MAX_ARG_STRLEN).
ARGUMENT_BYTES_MAX = 128 * 1024 - 1
# Length of all arguments and environment variables. Linux allows a quarter of the stack, 2 MiB by default.
ARGUMENTS_BYTES_MAX = 1024 * 1024
# Length of a path or user name in a template. Linux refuses a longer path (PATH_MAX).
PATH_BYTES_MAX = 4095
# Template hashes cached. Replicas by the thousand share a template, so each is hashed once.
TEMPLATE_HASHES_CACHED_MAX = 4096
# Default delay between removing a replica from the Endpoint and stopping it, for proxies to notice.
DRAIN_DELAY_S = 2.0

_UDP_KEYS = 2**16
"""Keys of UDP ports begin here; the key of a TCP port is its number."""


class DriverName(enum.StrEnum):
    PROCESS = "process"
    OCI = "oci"
    HOLLOW = "hollow"


class RestartPolicy(enum.StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class TerminationMessagePolicy(enum.StrEnum):
    """`File`: the message is what the task wrote to its termination file. `FallbackToLogsOnError`: if it wrote nothing
    and failed, the end of its output, which everybody who may read the replica then sees."""

    FILE = "File"
    FALLBACK_TO_LOGS_ON_ERROR = "FallbackToLogsOnError"


class Protocol(enum.StrEnum):
    TCP = "TCP"
    UDP = "UDP"


class NetworkMode(enum.StrEnum):
    """`Host`: the task uses the network of its node. `Private`: a container has a network of its own. Its ports are
    forwarded from the node, and it connects to others through the node, but not to the node's loopback."""

    HOST = "Host"
    PRIVATE = "Private"


class Port(ApiStruct, frozen=True):
    """A port of the node at which the task is reached. 0: the node chooses one. `containerPort` is the port that the
    program listens on in a network of its own; 0: the same. The program finds it as `PORT` and `PORT_<NAME>`."""

    name: str
    port: int = 0
    protocol: Protocol = Protocol.TCP
    container_port: int = 0


class Probes(ApiStruct, frozen=True):
    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None


class Template(ApiStruct, frozen=True):
    """What one replica runs. Its hash is the workload's revision and part of every placement intent."""

    driver: DriverName = visible_default(DriverName.PROCESS)
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    working_dir: str = ""
    user: str = ""
    bundle: str = ""
    artifacts: tuple[Artifact, ...] = ()
    resources: dict[str, Amount] = {}
    gpu_models: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    probes: Probes = msgspec.field(default_factory=Probes)
    restart_policy: RestartPolicy = visible_default(RestartPolicy.ALWAYS)
    termination_grace_seconds: float = visible_default(10.0)
    drain_delay_seconds: float = DRAIN_DELAY_S
    checkpoint_signal: str = ""
    labels: dict[str, str] = {}
    image: str = ""
    image_pull_policy: PullPolicy | None = None
    image_digest: str = ""
    volumes: tuple[TemplateVolume, ...] = ()
    init_tasks: tuple[InitTask, ...] = ()
    sidecars: tuple[Sidecar, ...] = ()
    lifecycle: Lifecycle | None = None
    env_from: tuple[EnvSource, ...] = ()
    env_values: tuple[EnvValue, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    content_versions: dict[str, str] = {}
    image_pull_secrets: tuple[PullSecret, ...] = ()
    termination_message_policy: TerminationMessagePolicy = TerminationMessagePolicy.FILE
    network: NetworkMode = NetworkMode.HOST
    read_only_root: bool = False
    """`imageDigest` is what the tag of `image` was resolved to, once per revision. Only Holdfast sets it.

    `checkpointSignal` asks a task that must stop to write a checkpoint. SIGTERM follows after half the grace period.

    `drainDelaySeconds` is the time between removal from the Endpoint and the stop, for proxies to notice."""


CHECKPOINT_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")
_encoder = msgspec.json.Encoder(order="sorted")


@lru_cache(TEMPLATE_HASHES_CACHED_MAX)
def _digest(canonical: bytes) -> str:
    return hashlib.sha256(canonical).hexdigest()[:10]


def template_hash(template: Template) -> str:
    """Hash of the canonical JSON in ten hex digits. Cached, because many replicas share a template.

    `imageDigest` and the terms of VolumeClaims are not part of it: the hash names the revision that the user wrote.
    """
    if template.volumes and template_claims(template):
        template = msgspec.structs.replace(template, volumes=with_claim_terms(template.volumes, {}))
    if template.image_digest:
        template = msgspec.structs.replace(template, image_digest="")
    return _digest(_encoder.encode(template))


def requests(template: Template) -> Amounts:
    """Resource requests of one replica, in base units, with the space of its volumes."""
    if not template.volumes or not (size := claim_bytes(template.volumes)):
        return amounts(template.resources)
    return {**amounts(template.resources), STORAGE: size}


def template_claims(template: Template) -> tuple[ClaimVolume, ...]:
    """The VolumeClaims that the template names."""
    return tuple(volume.claim for volume in template.volumes if volume.claim is not None)


IMAGE_DRIVER = "oci-image"
"""Name under which a node lists that it can run images. Driver `oci` alone runs bundles."""


PRIVATE_NETWORK = "-network"
"""Ending of the name under which a node lists that its containers can have a network of their own: `oci-network` for
bundles, `oci-image-network` for images."""


def required_driver(template: Template) -> str:
    """The driver that a node must have to run the template."""
    driver = IMAGE_DRIVER if template.image else template.driver.value
    return driver + PRIVATE_NETWORK if template.network is NetworkMode.PRIVATE else driver


def pull_policy(template: Template) -> PullPolicy:
    return template.image_pull_policy or default_pull_policy(parse_reference(template.image))


def is_unresolved(template: Template) -> bool:
    """Whether the template names its image by a tag that was not resolved to a digest."""
    if not template.image or template.image_digest:
        return False
    try:
        return not parse_reference(template.image).digest
    except BadReference:
        return True


def canonical_template(template: Template) -> Template:
    """The template with canonical quantities, so that `1000m` and `1` give the same hash. An image is run by `oci`."""
    if template.image and template.driver is DriverName.PROCESS:
        template = msgspec.structs.replace(template, driver=DriverName.OCI)
    try:
        text: dict[str, Amount] = dict(amounts_text(amounts(template.resources)))
    except BadQuantity:
        return template  # validation reports it
    return template if text == template.resources else msgspec.structs.replace(template, resources=text)


def validate_template(field: str, template: Template) -> Causes:
    if template.driver is DriverName.PROCESS and not template.command:
        yield required(f"{field}.command", 'the program to run, as a list: ["python3", "-m", "http.server"]')
    yield from _validate_image_source(field, template)
    yield from _validate_texts(field, template)
    yield from check_resources(f"{field}.resources", template.resources)
    if STORAGE in template.resources:
        yield forbidden(f"{field}.resources.storage", "space of volumes is requested by a VolumeClaim")
    yield from check_labels(f"{field}.labels", template.labels)
    if len(template.ports) > PORTS_PER_REPLICA_MAX:
        yield invalid(f"{field}.ports", len(template.ports), f"must have at most {PORTS_PER_REPLICA_MAX} items")
    yield from check_unique(f"{field}.ports", (p.name for p in template.ports))
    yield from check_unique(
        f"{field}.ports", (port_text(port_key(p.port, p.protocol)) for p in template.ports if p.port)
    )
    for index, port in enumerate(template.ports):
        yield from check_dns_label(f"{field}.ports[{index}].name", port.name)
        yield from check_range(f"{field}.ports[{index}].port", port.port, 0, 65535)
    yield from _validate_container_ports(field, template)
    if template.network is NetworkMode.PRIVATE and template.driver is not DriverName.OCI and not template.image:
        yield forbidden(f"{field}.network", "Private is not allowed with this driver; containers alone (oci) have it")
    if template.read_only_root and not template.image:
        yield forbidden(f"{field}.readOnlyRoot", "not allowed without image; a bundle says it itself")
    yield from validate_artifacts(f"{field}.artifacts", template.artifacts)
    yield from validate_references(field, template, in_container=template.driver is DriverName.OCI)
    fetched = {artifact.name for artifact in template.artifacts}
    for index, file in enumerate(template.files):
        if file.path.partition("/")[0] in fetched:
            yield invalid(f"{field}.files[{index}].path", file.path, "is also the name of an artifact")
    if template.checkpoint_signal and template.checkpoint_signal not in CHECKPOINT_SIGNALS:
        yield unsupported(f"{field}.checkpointSignal", template.checkpoint_signal, CHECKPOINT_SIGNALS)
    yield from check_range(f"{field}.drainDelaySeconds", template.drain_delay_seconds, 0, 3600)
    yield from check_range(f"{field}.terminationGraceSeconds", template.termination_grace_seconds, 0, 3600)
    tcp_ports = [p.name for p in template.ports if p.protocol is Protocol.TCP]
    for name in ("startup", "readiness", "liveness"):
        probe: Probe | None = getattr(template.probes, name)
        if probe is not None:
            yield from validate_probe(f"{field}.probes.{name}", probe, tcp_ports)
    yield from validate_programs(field, template.init_tasks, template.sidecars, template.lifecycle, tcp_ports)
    yield from validate_volumes(f"{field}.volumes", template.volumes, template.resources)


def _validate_container_ports(field: str, template: Template) -> Causes:
    inside = [p for p in template.ports if p.container_port]
    yield from check_unique(f"{field}.ports", (port_text(port_key(p.container_port, p.protocol)) for p in inside))
    for index, port in enumerate(template.ports):
        at = f"{field}.ports[{index}].containerPort"
        yield from check_range(at, port.container_port, 0, 65535)
        if template.network is NetworkMode.HOST and port.container_port not in (0, port.port):
            yield forbidden(
                at,
                "differs from port, and with network Host the program listens on the port of the node itself; "
                "set network: Private, or listen on $PORT and remove containerPort",
            )


def _validate_image_source(field: str, template: Template) -> Causes:
    """Driver oci runs an image or a bundle, and no other driver does."""
    if template.driver is DriverName.OCI and not template.bundle and not template.image:
        yield required(f"{field}.image", "the image to run, or `bundle`, an OCI bundle directory of the node")
    if template.image and template.bundle:
        yield forbidden(f"{field}.bundle", "not allowed with image; set one of them")
    if template.image and template.driver is DriverName.HOLLOW:
        yield forbidden(f"{field}.image", "not allowed with driver hollow, which runs nothing")
    if template.image and template.artifacts:
        yield forbidden(f"{field}.artifacts", "not allowed with image, whose container would not see them")
    if template.image:
        yield from validate_image(f"{field}.image", template.image)
    if template.image_pull_policy is not None and not template.image:
        yield forbidden(f"{field}.imagePullPolicy", "not allowed without image")
    secrets = f"{field}.imagePullSecrets"
    yield from validate_pull_secrets(secrets, template.image_pull_secrets, has_image=bool(template.image))
    if template.image_digest:
        yield forbidden(f"{field}.imageDigest", "set by Holdfast; to choose a digest, write image: NAME@sha256:DIGEST")


def _validate_texts(field: str, template: Template) -> Causes:
    """Texts that become arguments, environment, paths and users of a process on the node."""
    words = (*template.command, *template.args)
    pairs = tuple(f"{name}={value}" for name, value in template.env.items())
    for name, texts in (("command", words), ("env", pairs)):
        if any("\0" in text for text in texts):
            yield invalid(f"{field}.{name}", "\\0", "must not contain NUL bytes")
        if any(len(text.encode(errors="replace")) > ARGUMENT_BYTES_MAX for text in texts):
            yield too_long(f"{field}.{name}", ARGUMENT_BYTES_MAX)
    if sum(len(text.encode(errors="replace")) for text in (*words, *pairs)) > ARGUMENTS_BYTES_MAX:
        yield too_long(f"{field}.command", ARGUMENTS_BYTES_MAX)
    for name in template.env:
        if not name or "=" in name:
            yield invalid(f"{field}.env", name, "must not be empty or contain '='")
    for name, text in (("workingDir", template.working_dir), ("user", template.user), ("bundle", template.bundle)):
        if len(text.encode(errors="replace")) > PATH_BYTES_MAX:
            yield too_long(f"{field}.{name}", PATH_BYTES_MAX)
        if has_control_characters(text):
            yield invalid(f"{field}.{name}", text, "must not contain control characters")
    for name, path in (("workingDir", template.working_dir), ("bundle", template.bundle)):
        if ".." in path.split("/"):
            yield invalid(f"{field}.{name}", path, "must not contain '..'")


def port_key(number: int, protocol: Protocol) -> int:
    """A port and its protocol as one number: ports of different protocols never conflict."""
    return number if protocol is Protocol.TCP else number + _UDP_KEYS


def port_number(key: int) -> int:
    return key % _UDP_KEYS


def port_text(key: int) -> str:
    return str(key) if key < _UDP_KEYS else f"{port_number(key)}/UDP"


def udp_ports(template: Template) -> tuple[str, ...]:
    """Names of the UDP ports."""
    return tuple(port.name for port in template.ports if port.protocol is Protocol.UDP)


def listening_ports(template: Template, ports: Mapping[str, int]) -> dict[str, int]:
    """Where the program listens, by name, in the template's order: `ports` are the node's."""
    given = {port.name: port.container_port or ports[port.name] for port in template.ports if port.name in ports}
    return {**given, **{name: port for name, port in ports.items() if name not in given}}


def port_keys(ports: Mapping[str, int], udp: Collection[str]) -> list[int]:
    """Keys of ports by name, of which `udp` are UDP ports."""
    if not udp:
        return list(ports.values())
    return [port_key(port, Protocol.UDP if name in udp else Protocol.TCP) for name, port in ports.items()]
