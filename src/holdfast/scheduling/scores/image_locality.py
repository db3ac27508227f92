"""Prefers nodes that have the template's image: 100 for a node that need not pull it."""

from __future__ import annotations

import numpy as np

from holdfast.model.image import BadReference, parse_reference
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts


def score(candidate: CandidateState) -> Counts:
    return candidate.cached_for_request("image locality", _score)


def _score(candidate: CandidateState) -> Counts:
    static, template = candidate.scratch.snapshot.static, candidate.requirements.template
    digest = template.image_digest
    if template.image and not digest:
        try:
            digest = parse_reference(template.image).digest
        except BadReference:
            digest = ""
    if not digest:
        return np.zeros(len(static.has_node), dtype=np.int64)
    return static.cached_artifacts.numbers(lambda there: 100 if digest in there else 0)
