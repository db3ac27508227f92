"""Spans of the stages that an agent carries out: start and ready.

The Binding carries the trace context, with the authority's bind as parent. Only Bindings that this process received
first are traced: the tasks that a restarted agent adopts began before it.
"""

from __future__ import annotations

from holdfast.agent.config import AgentConfig
from holdfast.agent.task_decision import TaskObservation, TaskState
from holdfast.foundation.otlp import Attribute, Span
from holdfast.foundation.ports import Clock
from holdfast.foundation.tracing import Tracer, observes
from holdfast.model import trace_ids
from holdfast.model.binding import Binding
from holdfast.model.trace_ids import TraceContext, span_id


class TaskSpans:
    def __init__(self, tracer: Tracer, config: AgentConfig, clock: Clock) -> None:
        self._tracer = tracer
        self._config = config
        self._clock = clock

    @observes
    def received(self, binding: Binding) -> None:
        """A Binding whose task does not run yet."""
        if self._tracer.is_sampled(trace_ids.context_of(binding)):
            self._tracer.remember(self._clock.now(), trace_ids.START, binding.uid)

    @observes
    def observed(self, binding: Binding, local: TaskObservation) -> None:
        """The task changed. Its first run is traced until it is ready, or has ended before."""
        context = trace_ids.context_of(binding)
        if context is None or not self._tracer.is_sampled(context):
            return
        running = local.state is TaskState.RUNNING
        if running or local.state is TaskState.ENDED:
            began_s = self._tracer.recall(trace_ids.START, binding.uid)
            if began_s is not None:
                ended_s = local.started_at_s if running and local.started_at_s else self._clock.now()
                why = "" if running or local.exit is None else f"{local.exit.reason}: {local.exit.message}"
                self._emit(binding, context, trace_ids.START, (began_s, ended_s), error=why)
                if running:
                    self._tracer.remember(ended_s, trace_ids.READY, binding.uid)
        if running and local.ready and local.run <= 1:
            began_s = self._tracer.recall(trace_ids.READY, binding.uid)
            if began_s is not None:
                self._emit(binding, context, trace_ids.READY, (began_s, local.ready_since_s))

    def _emit(
        self, binding: Binding, context: TraceContext, stage: str, times: tuple[float, float], *, error: str = ""
    ) -> None:
        spec, trace = binding.spec, context.trace_id
        id_ = (spec.intent.replica_uid, spec.intent.attempt)
        parent = context.span_id if stage == trace_ids.START else span_id(trace, trace_ids.START, *id_)
        attributes: dict[str, Attribute] = {
            "holdfast.tenant": binding.metadata.namespace,
            "holdfast.workload": spec.workload,
            "holdfast.revision": spec.revision,
            "holdfast.replica": spec.replica,
            "holdfast.replica.uid": spec.intent.replica_uid,
            "holdfast.attempt": spec.intent.attempt,
            "holdfast.binding": binding.metadata.name,
            "holdfast.node": self._config.name,
            "cloud.region": self._config.region,
            "cloud.availability_zone": self._config.zone,
        }
        here = span_id(trace, stage, *id_)
        began_s, ended_s = times
        self._tracer.emit(
            Span(
                stage,
                trace,
                here,
                began_s,
                ended_s,
                "holdfast.agent",
                parent_id=parent,
                attributes=attributes,
                error=error,
            )
        )
