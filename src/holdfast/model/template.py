"""Template of a replica: command, resources, ports, probes and restart policy."""

from __future__ import annotations

import enum
import hashlib
from functools import lru_cache

import msgspec

from holdfast.model.meta import ApiStruct, visible_default
from holdfast.model.quantity import Amount, Amounts, BadQuantity, amounts, amounts_text
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_labels,
    check_range,
    check_resources,
    check_unique,
    forbidden,
    invalid,
    required,
    unsupported,
)

# Ports of a template. More are refused. A node has 1,000 ports by default, so 16 leave room for 60 replicas.
PORTS_PER_REPLICA_MAX = 16
# Template hashes cached. Replicas by the thousand share a template, so each is hashed once.
TEMPLATE_HASHES_CACHED_MAX = 4096
# Default delay between removing a replica from the Endpoint and stopping it, for proxies to notice.
DRAIN_DELAY_S = 2.0


class DriverName(enum.StrEnum):
    PROCESS = "process"
    OCI = "oci"
    HOLLOW = "hollow"


class RestartPolicy(enum.StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class Artifact(ApiStruct, frozen=True):
    """A file or archive that the task needs. Fetched once per node and cached by digest."""

    name: str
    source: str
    digest: str = ""


class Port(ApiStruct, frozen=True):
    """A port that the task listens on. 0: the node chooses one and passes it as `PORT` or `PORT_<NAME>`."""

    name: str
    port: int = 0


class HttpProbe(ApiStruct, frozen=True):
    path: str = visible_default("/")
    port: str = ""
    scheme: str = "HTTP"


class TcpProbe(ApiStruct, frozen=True):
    port: str = ""


class ExecProbe(ApiStruct, frozen=True):
    command: tuple[str, ...] = ()


class Probe(ApiStruct, frozen=True):
    """Exactly one of http, tcp and exec. `port` names a port of the template; empty: the first."""

    http: HttpProbe | None = None
    tcp: TcpProbe | None = None
    exec: ExecProbe | None = None
    period_seconds: float = visible_default(2.0)
    timeout_seconds: float = visible_default(1.0)
    initial_delay_seconds: float = 0.0
    success_threshold: int = visible_default(1)
    failure_threshold: int = visible_default(3)


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
    """`checkpointSignal` asks a task that must stop to write a checkpoint. SIGTERM follows after half the grace period.

    `drainDelaySeconds` is the time between removal from the Endpoint and the stop, for proxies to notice."""


CHECKPOINT_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")
_encoder = msgspec.json.Encoder(order="sorted")


@lru_cache(TEMPLATE_HASHES_CACHED_MAX)
def _digest(canonical: bytes) -> str:
    return hashlib.sha256(canonical).hexdigest()[:10]


def template_hash(template: Template) -> str:
    """Hash of the canonical JSON in ten hex digits. Cached, because many replicas share a template."""
    return _digest(_encoder.encode(template))


def requests(template: Template) -> Amounts:
    """Resource requests of one replica, in base units."""
    return amounts(template.resources)


def canonical_template(template: Template) -> Template:
    """The template with canonical quantities, so that `1000m` and `1` give the same hash."""
    try:
        text: dict[str, Amount] = dict(amounts_text(amounts(template.resources)))
    except BadQuantity:
        return template  # validation reports it
    return template if text == template.resources else msgspec.structs.replace(template, resources=text)


def validate_template(field: str, template: Template) -> Causes:
    if template.driver is DriverName.PROCESS and not template.command:
        yield required(f"{field}.command", 'the program to run, as a list: ["python3", "-m", "http.server"]')
    if template.driver is DriverName.OCI and not template.bundle:
        yield required(f"{field}.bundle", "the OCI bundle directory to run")
    if any("\0" in word for word in (*template.command, *template.args, *template.env, *template.env.values())):
        yield invalid(f"{field}.command", "\\0", "must not contain NUL bytes")
    for name in template.env:
        if not name or "=" in name:
            yield invalid(f"{field}.env", name, "must not be empty or contain '='")
    yield from check_resources(f"{field}.resources", template.resources)
    yield from check_labels(f"{field}.labels", template.labels)
    if len(template.ports) > PORTS_PER_REPLICA_MAX:
        yield invalid(f"{field}.ports", len(template.ports), f"must have at most {PORTS_PER_REPLICA_MAX} items")
    yield from check_unique(f"{field}.ports", (p.name for p in template.ports))
    for index, port in enumerate(template.ports):
        yield from check_dns_label(f"{field}.ports[{index}].name", port.name)
        yield from check_range(f"{field}.ports[{index}].port", port.port, 0, 65535)
    for index, artifact in enumerate(template.artifacts):
        if not artifact.source:
            yield required(f"{field}.artifacts[{index}].source")
        if artifact.digest and not artifact.digest.startswith("sha256:"):
            yield invalid(f"{field}.artifacts[{index}].digest", artifact.digest, "must start with sha256:")
    if template.checkpoint_signal and template.checkpoint_signal not in CHECKPOINT_SIGNALS:
        yield unsupported(f"{field}.checkpointSignal", template.checkpoint_signal, CHECKPOINT_SIGNALS)
    yield from check_range(f"{field}.drainDelaySeconds", template.drain_delay_seconds, 0, 3600)
    yield from check_range(f"{field}.terminationGraceSeconds", template.termination_grace_seconds, 0, 3600)
    for name in ("startup", "readiness", "liveness"):
        probe: Probe | None = getattr(template.probes, name)
        if probe is not None:
            yield from _validate_probe(f"{field}.probes.{name}", probe, template)


def _validate_probe(field: str, probe: Probe, template: Template) -> Causes:
    ways = [w for w in ("http", "tcp", "exec") if getattr(probe, w) is not None]
    if len(ways) != 1:
        yield invalid(field, ways, "exactly one of http, tcp, exec must be set")
    ports = [p.name for p in template.ports]
    for way in (probe.http, probe.tcp):
        if way is None:
            continue
        if not ports:
            yield forbidden(field, "the template declares no ports to probe")
        elif way.port and way.port not in ports:
            yield unsupported(f"{field}.port", way.port, ports)
    if probe.http is not None and not probe.http.path.startswith("/"):
        yield invalid(f"{field}.http.path", probe.http.path, "must start with '/'")
    if probe.exec is not None and not probe.exec.command:
        yield required(f"{field}.exec.command")
    yield from check_range(f"{field}.periodSeconds", probe.period_seconds, 0.1, 3600)
    yield from check_range(f"{field}.timeoutSeconds", probe.timeout_seconds, 0.1, 600)
    yield from check_range(f"{field}.initialDelaySeconds", probe.initial_delay_seconds, 0, 3600)
    yield from check_range(f"{field}.successThreshold", probe.success_threshold, 1, 100)
    yield from check_range(f"{field}.failureThreshold", probe.failure_threshold, 1, 1000)
