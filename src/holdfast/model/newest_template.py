"""Whether the newest template of a service is what it runs, and what an undo returns to.

The one predicate of every surface that says how a workload stands: the condition RolledOut, the table of kubectl, the
commands and the console. While `unserved_template` returns a reason, none of them may say that all is well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.model.image import with_digest
from holdfast.model.reasons import Reason
from holdfast.model.template import Template, template_hash
from holdfast.model.workload import (
    RolloutBlock,
    RolloutPhase,
    Workload,
    WorkloadType,
    resolved_template,
    wanted_template,
)
from holdfast.model.workload_blocks import ImageBlock

ROLLOUT_REASONS: Mapping[str, Reason] = {
    RolloutPhase.PROGRESSING: Reason.ROLLOUT_PROGRESSING,
    RolloutPhase.PAUSED: Reason.ROLLOUT_PAUSED,
    RolloutPhase.COMPLETE: Reason.ROLLOUT_COMPLETE,
    RolloutPhase.ROLLING_BACK: Reason.ROLLING_BACK,
    RolloutPhase.ROLLED_BACK: Reason.ROLLED_BACK,
    RolloutPhase.FAILED: Reason.ROLLOUT_FAILED,
}
_STOPPED_PHASES = (RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK, RolloutPhase.FAILED)


class UnservedTemplate(NamedTuple):
    """Why the newest template is not what serves. `needs_change`: it never will be, unless somebody changes it or what
    the reason names."""

    reason: str
    message: str
    next_step: str
    needs_change: bool = False


def unserved_template(workload: Workload) -> UnservedTemplate | None:
    """None if the newest template serves everywhere, and for a batch, which has no rollout."""
    if workload.spec.type is WorkloadType.BATCH or workload.metadata.terminating:
        return None
    block = workload.status.rollout
    undo = f"correct the template, or return to what serves: holdfast rollout undo {workload.key}"
    if resolved_template(workload) is None:
        return _unresolved_image(workload, undo if undo_revision(workload) else "correct spec.template.image")
    if block is None or block.revision != target_revision(workload):
        return UnservedTemplate(
            Reason.UPDATE_PENDING, "the rollout of the newest template has not started", "rollout starts it"
        )
    if block.phase == RolloutPhase.COMPLETE:
        return None
    reason = ROLLOUT_REASONS.get(block.phase, Reason.UPDATE_PENDING)
    if block.phase in _STOPPED_PHASES:
        step = undo if undo_revision(workload) else "correct the template"
        return UnservedTemplate(reason, block.message, step, needs_change=True)
    step = "resume the rollout" if block.phase == RolloutPhase.PAUSED else "rollout updates the next region"
    return UnservedTemplate(reason, block.message, step)


def _unresolved_image(workload: Workload, next_step: str) -> UnservedTemplate:
    image = _image_attempt(workload)
    message = f"the newest template is not applied: {image_problem(workload)}"
    if image is None:
        return UnservedTemplate(Reason.IMAGE_UNRESOLVED, message, "the image resolver asks the registry")
    return UnservedTemplate(image.reason or Reason.IMAGE_UNRESOLVED, message, next_step, needs_change=True)


def _image_attempt(workload: Workload) -> ImageBlock | None:
    """The last attempt to resolve the image of the newest template."""
    image = workload.status.image
    return image if image is not None and image.revision == template_hash(workload.spec.template) else None


def image_problem(workload: Workload) -> str:
    """Why the tag of the newest template's image has no digest."""
    image = _image_attempt(workload)
    return image.message if image is not None else "the global cell has not asked the registry yet"


def target_revision(workload: Workload) -> str:
    """The revision of the newest template, whether or not its rollout has started."""
    return template_hash(wanted_template(workload))


def undo_revision(workload: Workload) -> str:
    """The revision that an undo returns to: the last good one, or the one before if that is what the spec says.

    Empty if there is none. A template whose image has no digest has no revision: the last good one then serves.
    """
    block, current = workload.status.rollout or RolloutBlock(), target_revision(workload)
    if block.last_good_revision not in ("", current):
        return block.last_good_revision
    entries = (r for r in block.history if r.revision != current and r.outcome == RolloutPhase.COMPLETE)
    return next((r.revision for r in entries), "")


def undo_template(workload: Workload, revision: str) -> Template | None:
    """The template of an earlier revision for the spec, None if the history does not have it.

    It is the template that the user wrote, and the history keeps its digest. Only if other contents of Secrets and
    ConfigMaps make another revision of it, the digest becomes part of the image: it runs what ran.
    """
    block = workload.status.rollout
    entry = next((r for r in block.history if r.revision == revision), None) if block is not None else None
    if entry is None:
        return None
    digest = entry.template.image_digest
    template = msgspec.structs.replace(entry.template, image_digest="", content_versions={})
    spec = msgspec.structs.replace(workload.spec, template=template)
    resolved = resolved_template(msgspec.structs.replace(workload, spec=spec))
    if digest and (resolved is None or resolved.image_digest != digest):
        return msgspec.structs.replace(template, image=with_digest(template.image, digest))
    return template
