"""What helps a replica that does not stay up, and what its program said about its end. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.meta import Condition
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, ExitStatus, Replica

# Lines of a termination message that an explanation shows: the last ones. The status has all of them.
TERMINATION_LINES_MAX = 10

_GENERAL = "kubectl --context global -n {tenant}"
_STARTS = "; the replica then starts by itself"
_FIXES: dict[str, str] = {
    Reason.SECRET_MISSING: f"add the key: {_GENERAL} edit secret {{name}}{_STARTS}",
    Reason.CONFIG_MISSING: f"add the key: {_GENERAL} edit configmap {{name}}{_STARTS}",
    Reason.CONFIG_UNUSABLE: "change the Secret, the ConfigMap or the template, as the reason says",
    Reason.CONFIG_UNREACHABLE: "check the agent's connection to its region: holdfast get nodes",
    Reason.IMAGE_NOT_FOUND: "correct the image of the template, or push it to its registry",
    Reason.TEMPLATE_UNUSABLE: "correct the template's command, directory, bundle or user, as the reason says",
    Reason.COMMAND_NOT_FOUND: "correct the template's command, or use an image or bundle that contains it",
    Reason.REGISTRY_DENIED: "check the image's name, the allowed registries and the credentials, as the reason says",
    Reason.IMAGE_NEVER_PULLED: "set imagePullPolicy to IfNotPresent",
}
_OBJECT_FIXES: dict[str, str] = {
    Reason.SECRET_MISSING: f"create it: {_GENERAL} create secret generic {{name}} --from-literal=KEY=VALUE{_STARTS}",
    Reason.CONFIG_MISSING: f"create it: {_GENERAL} create configmap {{name}} --from-literal=KEY=VALUE{_STARTS}",
}


def failed_start_fix(replica: Replica, execution: ExecutionBlock) -> str:
    """A program that never ran has no output to read."""
    tenant, last = replica.metadata.namespace, execution.last_exit
    if last is None or last.code is not None or last.signal or last.reason not in _FIXES:
        return f"read its output: holdfast logs {tenant}/{replica.metadata.name}"
    fixes = _OBJECT_FIXES if "does not exist" in last.message else _FIXES
    name = last.message.partition(":")[0].partition(" ")[2]
    return fixes.get(last.reason, _FIXES[last.reason]).format(tenant=tenant, name=name)


def image_fix(conditions: Sequence[Condition]) -> tuple[str, ...]:
    """What helps a workload whose image has no digest, so that it has no replica."""
    found = next((c for c in conditions if c.type == "ImageResolved" and c.status != "True"), None)
    return (f"fix: {_FIXES[found.reason]}",) if found is not None and found.reason in _FIXES else ()


def termination_lines(last: ExitStatus | None) -> tuple[str, ...]:
    if last is None or not last.termination_message:
        return ()
    return tuple(f"it said: {line}" for line in last.termination_message.splitlines()[-TERMINATION_LINES_MAX:])
