"""core/v1 Pod: the view of a Binding and of its Replica, as kubectl and typed clients expect it. Not stored. Pure.

The Binding is the pod: its uid disappears with it, which is what `kubectl drain` waits for. The Replica adds what the
agent reports about this attempt: readiness, restarts and why the container waits. A report about another attempt, or
about another Replica of the same name, is not shown.
"""

from __future__ import annotations

import msgspec

from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.core_views import shown_text
from holdfast.model.image import with_digest
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.meta import API_VERSION, ApiStruct, Condition, Object, ObjectMeta, OwnerReference, visible_default
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase, Replica, ReplicaContact
from holdfast.model.task_programs import MAIN_PROGRAM, ProgramKind, ProgramState, ProgramStatus
from holdfast.model.template import listening_ports, udp_ports


class ContainerResources(ApiStruct, frozen=True):
    requests: dict[str, str] = {}


class ContainerPort(ApiStruct, frozen=True):
    """A port of the task, so that `kubectl port-forward` can use its name. `hostPort` is the node's."""

    name: str
    container_port: int
    protocol: str = "TCP"
    host_port: int = 0


class Container(ApiStruct, frozen=True):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    resources: ContainerResources = msgspec.field(default_factory=ContainerResources)
    args: tuple[str, ...] = ()
    restart_policy: str = ""
    ports: tuple[ContainerPort, ...] = ()
    """`restartPolicy: Always` in `initContainers` is a sidecar, as in Kubernetes."""


class PodSpec(ApiStruct, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    termination_grace_period_seconds: int = 0


class WaitingState(ApiStruct, frozen=True):
    reason: str = ""
    message: str = ""


class RunningState(ApiStruct, frozen=True):
    started_at: str = ""


class TerminatedState(ApiStruct, frozen=True):
    exit_code: int = visible_default(0)
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str = ""
    finished_at: str = ""


class ContainerState(ApiStruct, frozen=True):
    """One of the three, or none of them for a `lastState` without an earlier run."""

    waiting: WaitingState | None = None
    running: RunningState | None = None
    terminated: TerminatedState | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """The first five fields are always written: typed clients refuse a status that lacks one."""

    name: str
    image: str = shown_text("image")
    image_id: str = shown_text("imageID")
    ready: bool = visible_default(False)
    restart_count: int = visible_default(0)
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)


class PodIP(ApiStruct, frozen=True):
    ip: str


class PodStatus(ApiStruct, frozen=True):
    """`podIP` and `hostIP` are the node's address, at which the ports of the replica are reached."""

    phase: str = visible_default("Pending")
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    start_time: str = ""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object, frozen=True):
    """Read-only view of a Binding and its Replica. `kubectl get replicas` shows the replicas themselves."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


CRASH_LOOP = "CrashLoopBackOff"
_ENDED = {Phase.SUCCEEDED: "Succeeded", Phase.FAILED: "Failed", Phase.STOPPED: "Succeeded"}
_WAITING: dict[str, str] = {
    Reason.IMAGE_PULLING: "ContainerCreating",
    Reason.FETCHING_ARTIFACTS: "ContainerCreating",
    Reason.INITIALIZING: "PodInitializing",
}
"""Our reasons for which Kubernetes has a name of its own. All others are shown as they are."""
_SIGNALS = {"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGSEGV": 11, "SIGTERM": 15}
_UNKNOWN_EXIT = 255


def pod_of(binding: Binding, replica: Replica | None = None) -> Pod:
    """The Pod of a Binding. Without its Replica, the agent's report is not known: the container waits."""
    spec, meta = binding.spec, binding.metadata
    own = replica if replica is not None and replica.uid == spec.intent.replica_uid else None
    owner = OwnerReference(
        api_version=API_VERSION, kind="Replica", name=spec.replica, uid=spec.intent.replica_uid, controller=True
    )
    revision = max(meta.resource_version, own.metadata.resource_version if own else "", key=_number)
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=revision,
            creation_timestamp=meta.creation_timestamp,
            owner_references=(owner,),
            labels={LABEL_WORKLOAD: spec.workload, "holdfast.dev/replica": spec.replica},
        ),
        spec=_pod_spec(binding),
        status=_pod_status(binding, own),
    )


def _number(revision: str) -> int:
    return int(revision or 0)


def _pod_spec(binding: Binding) -> PodSpec:
    spec, template = binding.spec, binding.spec.template
    requests = {name: str(value) for name, value in spec.resources.items() if name in ("cpu", "memory")}
    udp = udp_ports(template)
    container = Container(
        name=MAIN_PROGRAM,
        image=template.image or template.bundle,
        command=template.command,
        resources=ContainerResources(requests),
        ports=tuple(
            ContainerPort(name, inside, "UDP" if name in udp else "TCP", spec.ports[name])
            for name, inside in listening_ports(template, spec.ports).items()
        ),
    )
    return PodSpec(
        node_name=spec.node,
        containers=(container,),
        init_containers=(
            *(Container(name=one.name, command=one.command, args=one.args) for one in template.init_tasks),
            *(
                Container(name=one.name, command=one.command, args=one.args, restart_policy="Always")
                for one in template.sidecars
            ),
        ),
        termination_grace_period_seconds=int(template.termination_grace_seconds),
    )


def _pod_status(binding: Binding, replica: Replica | None) -> PodStatus:
    attempt = binding.spec.intent.attempt
    ran = replica.status.execution if replica is not None else None
    ran = ran if ran is not None and ran.attempt == attempt else None
    contact = replica.status.contact if replica is not None else None
    lost = contact if contact is not None and contact.lost and contact.attempt == attempt else None
    main = _main_status(binding, ran)
    phase = _phase(binding, ran, main, lost)
    stopping = binding.spec.desired is DesiredRunState.STOP
    address, programs = (ran.address, ran.programs) if ran is not None else ("", ())
    return PodStatus(
        phase=phase,
        conditions=(
            Condition("PodScheduled", "True", last_transition_time=binding.metadata.creation_timestamp),
            _ready_condition(ran, phase, lost),
        ),
        reason=lost.reason if lost is not None else binding.spec.stop_reason if stopping else "",
        host_ip=address,
        pod_ip=address,
        pod_ips=(PodIP(address),) if address else (),
        start_time=binding.metadata.creation_timestamp,
        init_container_statuses=tuple(
            _program_status(program) for program in programs if program.kind is not ProgramKind.MAIN
        ),
        container_statuses=(main,),
    )


def _phase(binding: Binding, ran: ExecutionBlock | None, main: ContainerStatus, lost: ReplicaContact | None) -> str:
    ended = _ENDED.get(binding.status.phase) if binding.status.phase is not None else None
    ended = ended or (_ENDED.get(ran.phase) if ran is not None else None)
    if ended is not None:
        return ended
    if lost is not None:
        return "Unknown"
    has_started = main.state.running is not None or main.restart_count or main.last_state.terminated is not None
    return "Running" if has_started else "Pending"


def _ready_condition(ran: ExecutionBlock | None, phase: str, lost: ReplicaContact | None) -> Condition:
    if phase in ("Succeeded", "Failed"):
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
        return Condition("Ready", "False", reason)
    if lost is not None:
        return Condition("Ready", "Unknown", lost.reason, "the node is out of contact", lost.since)
    if ran is None:
        return Condition("Ready", "False", "ContainersNotReady", "the agent has not reported this attempt")
    if ran.ready:
        return Condition("Ready", "True", last_transition_time=ran.ready_since)
    return Condition("Ready", "False", "ContainersNotReady", _joined_text(ran.reason, ran.message))


def _main_status(binding: Binding, ran: ExecutionBlock | None) -> ContainerStatus:
    template = binding.spec.template
    image = template.image or template.bundle
    last_exit = ran.last_exit if ran is not None else None
    state = _main_state(binding, ran)
    ran_before = last_exit if state.terminated is None and _has_run(last_exit) else None
    return ContainerStatus(
        name=MAIN_PROGRAM,
        image=image,
        image_id=with_digest(image, template.image_digest) if template.image else "",
        ready=ran is not None and ran.ready and state.running is not None,
        restart_count=ran.restarts if ran is not None else 0,
        state=state,
        last_state=ContainerState(terminated=_terminated(ran_before, ran)) if ran_before else ContainerState(),
    )


def _main_state(binding: Binding, ran: ExecutionBlock | None) -> ContainerState:
    if binding.status.phase in _ENDED:
        last_exit = binding.status.last_exit or (ran.last_exit if ran is not None else None)
        return ContainerState(terminated=_terminated(last_exit or ExitStatus(), ran))
    if ran is None:
        return ContainerState(waiting=WaitingState("ContainerCreating"))
    if ran.phase in _ENDED:
        return ContainerState(terminated=_terminated(ran.last_exit or ExitStatus(), ran))
    if ran.phase is Phase.BACKING_OFF:
        crashed = _has_run(ran.last_exit)
        message = _joined_text(ran.reason, ran.message) if crashed else ran.message
        return ContainerState(waiting=WaitingState(CRASH_LOOP if crashed else ran.reason, message))
    if ran.phase is Phase.STARTING and (ran.reason in _WAITING or not ran.pid):
        reason = _WAITING.get(ran.reason, "ContainerCreating")
        return ContainerState(waiting=WaitingState(reason, _joined_text(ran.reason, ran.message)))
    return ContainerState(running=RunningState(ran.started_at))


def _has_run(last_exit: ExitStatus | None) -> bool:
    """Whether a process of the task has run and ended. A start that failed has neither an exit code nor a signal."""
    return last_exit is not None and (last_exit.code is not None or bool(last_exit.signal))


def _terminated(last_exit: ExitStatus, ran: ExecutionBlock | None = None) -> TerminatedState:
    """`ran` tells when the run began, unless a later run has begun since."""
    started_at = ran.started_at if ran is not None and ran.started_at <= last_exit.at else ""
    signal = _SIGNALS.get(last_exit.signal, 0)
    code = last_exit.code
    if code is None:
        code = 128 + signal if signal else _UNKNOWN_EXIT if last_exit.signal else 0
    reason = "OOMKilled" if last_exit.reason == Reason.OUT_OF_MEMORY else "Error" if code else "Completed"
    return TerminatedState(
        exit_code=code,
        signal=signal,
        reason=reason,
        message=last_exit.termination_message or _joined_text(last_exit.reason, last_exit.message),
        started_at=started_at,
        finished_at=last_exit.at,
    )


def _program_status(program: ProgramStatus) -> ContainerStatus:
    """An init task or a sidecar."""
    match program.state:
        case ProgramState.RUNNING:
            state = ContainerState(running=RunningState(program.started_at))
        case ProgramState.ENDED:
            last_exit = ExitStatus(program.exit_code, program.signal, message=program.message, at=program.ended_at)
            ended = msgspec.structs.replace(_terminated(last_exit), started_at=program.started_at)
            state = ContainerState(terminated=ended)
        case ProgramState.WAITING:
            state = ContainerState(waiting=WaitingState("PodInitializing", program.message))
    succeeded = program.state is ProgramState.ENDED and program.exit_code == 0
    ready = succeeded if program.kind is ProgramKind.INIT else program.ready
    return ContainerStatus(name=program.name, ready=ready, restart_count=program.restarts, state=state)


def _joined_text(reason: str, message: str) -> str:
    return ": ".join(text for text in (reason, message) if text)
