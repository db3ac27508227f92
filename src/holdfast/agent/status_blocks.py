"""Builds what the agent reports about a task: the driver's Task, the execution block, the acknowledgement. Pure.

Nothing here decides; it only renders what `task_decision` and the driver know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.agent.capacity_detection import GPU_UUID_PREFIX
from holdfast.agent.config import AgentConfig
from holdfast.agent.drivers.contract import Task
from holdfast.agent.program_watch import start_progress
from holdfast.agent.task_decision import Acknowledge, TaskObservation, TaskState, final_phase, restart_backoff_s
from holdfast.model import times
from holdfast.model.binding import Binding
from holdfast.model.image import with_digest
from holdfast.model.meta import Key
from holdfast.model.quantity import Amount, Amounts, add, amounts, amounts_text, shortfall
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase, ordinal_in
from holdfast.model.template import Template, listening_ports
from holdfast.model.writes import SetStatus

# How long the report "starting" of a first start waits for "running". Most starts are faster, and one write is saved.
# Far below the stage deadline of Bound.
STARTING_REPORT_DELAY_S = 2.0

_PROBE_REASONS = (Reason.STARTUP_FAILED, Reason.LIVENESS_FAILED)


def task_id(binding: Binding) -> str:
    """Readable and unique: a recreated Binding of the same name has another uid."""
    return f"{binding.metadata.namespace}_{binding.metadata.name}_{binding.uid}"


def task_from_binding(binding: Binding, run: int, config: AgentConfig, *, until_mono_s: float | None = None) -> Task:
    spec = binding.spec
    return Task(
        id=task_id(binding),
        run=run,
        namespace=binding.metadata.namespace,
        replica=spec.replica,
        replica_uid=spec.intent.replica_uid,
        workload=spec.workload,
        binding=binding.metadata.name,
        binding_uid=binding.uid,
        attempt=spec.intent.attempt,
        epoch=spec.epoch,
        node_epoch=spec.node_epoch,
        template=spec.template,
        env=environment(binding, config),
        ports=spec.ports,
        devices=spec.devices,
        resources=amounts(spec.resources),
        exclusive=spec.exclusive is not None,
        run_until_mono_s=until_mono_s,
        volumes=spec.volumes,
    )


def environment(binding: Binding, config: AgentConfig) -> dict[str, str]:
    """Environment of the task. HOLDFAST_* variables override the template, so the task's identity is always right."""
    spec = binding.spec
    env = dict(spec.template.env)
    ports = listening_ports(spec.template, spec.ports)
    if ports:
        env["PORT"] = str(next(iter(ports.values())))
    for name, port in ports.items():
        env[f"PORT_{name.upper().replace('-', '_')}"] = str(port)
    env["HOLDFAST_REPLICA"] = spec.replica
    env["HOLDFAST_WORKLOAD"] = spec.workload
    env["HOLDFAST_TENANT"] = binding.metadata.namespace
    env["HOLDFAST_REGION"] = config.region
    env["HOLDFAST_ZONE"] = config.zone
    env["HOLDFAST_NODE"] = config.name
    env["HOLDFAST_ADDRESS"] = config.address
    env["HOLDFAST_EPOCH"] = str(spec.epoch)
    env.pop("HOLDFAST_DNS", None)
    if config.dns:
        env["HOLDFAST_DNS"] = config.dns
    if spec.fencing_token:
        env["HOLDFAST_FENCING_TOKEN"] = spec.fencing_token
        env["HOLDFAST_ORDINAL"] = ordinal_in(spec.replica)
    if spec.index is not None:
        # The second name is that of Kubernetes, so that programs written for its indexed Jobs run unchanged.
        env["HOLDFAST_INDEX"] = env["JOB_COMPLETION_INDEX"] = str(spec.index)
    env["HOLDFAST_DEVICES"] = ",".join(claim.id for claim in spec.devices)
    if any(device.id.startswith(GPU_UUID_PREFIX) for device in config.devices):
        # On a node with GPUs, a task sees only the GPUs that it was assigned.
        own_gpus = ",".join(claim.id for claim in spec.devices if claim.id.startswith(GPU_UUID_PREFIX))
        env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"] = own_gpus, own_gpus or "void"
    return env


def execution_block(binding: Binding, local: TaskObservation, config: AgentConfig) -> ExecutionBlock | None:
    """The block to report, or None if there is nothing to report yet."""
    if local.state is TaskState.ABSENT or (local.ready is None and local.state is TaskState.RUNNING):
        return None
    phase, reason, message = _phase_and_reason(binding, local)
    runs = local.state is TaskState.RUNNING
    ready = runs and bool(local.ready)
    return ExecutionBlock(
        phase=phase,
        attempt=binding.spec.intent.attempt,
        ready=ready,
        address=config.address,
        ports=binding.spec.ports,
        pid=local.pid if runs else 0,
        restarts=max(0, local.run - 1),
        started_at=times.micro_text(local.started_at_s) if local.started_at_s else "",
        ready_since=times.micro_text(local.ready_since_s) if ready else "",
        last_exit=local.exit,
        reason=reason,
        message=message,
        image=image_id(binding.spec.template),
        programs=local.programs,
    )


def image_id(template: Template) -> str:
    """The image with the digest that runs, as `imageID` of a Kubernetes container; empty without an image."""
    return with_digest(template.image, template.image_digest) if template.image else ""


def _phase_and_reason(binding: Binding, local: TaskObservation) -> tuple[Phase, str, str]:
    match local.state:
        case TaskState.RUNNING if local.startup_passed:
            if local.ready:
                return Phase.RUNNING, Reason.BECAME_READY, ""
            reason = Reason.BECAME_UNREADY if local.probe_message else Reason.STARTED
            return Phase.RUNNING, reason, local.probe_message
        case TaskState.STARTING if local.fetching:
            pulls = Reason.IMAGE_PULLING if binding.spec.template.image else Reason.FETCHING_ARTIFACTS
            return Phase.STARTING, pulls, local.fetch_message
        case TaskState.RUNNING if waits_for := start_progress(local.programs):
            return Phase.STARTING, Reason.INITIALIZING, waits_for
        case TaskState.RUNNING | TaskState.STARTING:
            return Phase.STARTING, Reason.STARTED, local.probe_message
        case TaskState.STOPPING:
            phase = Phase.BACKING_OFF if local.stop_reason in _PROBE_REASONS else Phase.STOPPING
            return phase, local.stop_reason, local.probe_message
        case _:
            return _ended_phase_and_reason(binding, local)


def _ended_phase_and_reason(binding: Binding, local: TaskObservation) -> tuple[Phase, str, str]:
    exit_ = local.exit or ExitStatus()
    finished = final_phase(binding, local)
    if finished is not None:
        return finished, exit_.reason, exit_.message
    if local.stop_reason and local.stop_reason not in _PROBE_REASONS:
        return Phase.STOPPED, local.stop_reason, exit_.message
    pause_s = restart_backoff_s(local.failures)
    message = f"{exit_.message or exit_.reason}; restarts {pause_s:g} s after the exit"
    return Phase.BACKING_OFF, exit_.reason or Reason.BACKING_OFF, message


def execution_write(binding: Binding, block: ExecutionBlock) -> SetStatus:
    key = Key(binding.metadata.namespace, binding.spec.replica)
    return SetStatus(kind="Replica", key=key, uid=binding.spec.intent.replica_uid, blocks={"execution": block})


def max_delay_s(block: ExecutionBlock) -> float:
    """How long this report may be delayed so that a newer one replaces it.

    A first `Starting` report waits 2 s: most tasks run by then, and one commit is enough. Two commits per start were a
    tenth of a region's cost of starting a replica. All other reports are sent at once.
    """
    first = block.phase is Phase.STARTING and not block.restarts and not block.message
    return STARTING_REPORT_DELAY_S if first else 0.0


def acknowledgement(binding: Binding, acknowledge: Acknowledge, now_s: float) -> SetStatus:
    blocks = {
        "phase": acknowledge.phase,
        "last_exit": with_exit_time(acknowledge.exit, now_s),
        "acknowledged_at": times.micro_text(now_s),
    }
    return SetStatus(
        kind="Binding", key=binding.key, uid=binding.uid, blocks=blocks, observed_generation=binding.metadata.generation
    )


def overcommit_message(capacity: Mapping[str, Amount], bindings: Iterable[Binding | None]) -> str:
    """Message that says by how much bound claims exceed the node's capacity, which may shrink; empty if they fit."""
    claimed: Amounts = {}
    for binding in bindings:
        if binding is not None:
            add(claimed, amounts(binding.spec.resources))
    there = amounts(capacity)
    over = shortfall({name: amount for name, amount in claimed.items() if name in there}, there)
    if not over:
        return ""
    named = ", ".join(f"{name} by {text}" for name, text in amounts_text(over).items())
    return f"bound claims exceed the node's capacity ({named}); no new replicas are placed here until they fit"


def with_exit_time(exit_: ExitStatus, now_s: float) -> ExitStatus:
    return exit_ if exit_.at else msgspec.structs.replace(exit_, at=times.micro_text(now_s))
