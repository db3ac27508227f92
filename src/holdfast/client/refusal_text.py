"""Words for a refusal of the API: object, what is wrong, next step. Commands and the Python client use the same."""

from __future__ import annotations

import re
from urllib.parse import unquote

NOT_FOUND = 404
NEXT = "; next: "
"""Separates what is wrong from the next step, in every message of a server."""
_NAMED = re.compile(r"^/apis/[^/]+/v1/(?:namespaces/([^/]+)/)?([a-z]+)/([^/]+)(?:/[a-z]+)?$")
"""Path of one object: tenant (optional), plural and name."""


def cell_label(name: str) -> str:
    """The cell as messages name it: `global cell` or `region NAME`."""
    return "global cell" if name == "global" else f"region {name}"


def refusal_text(cell: str, path: str, status: int, why: str) -> tuple[str, str]:
    """What is wrong, naming the object, and the next step. `why` is the message of the server."""
    message, _, step = why.partition(NEXT)
    if (named := _NAMED.search(path)) is None:
        return message or f"{cell_label(cell)}: request refused (status {status})", step
    tenant, plural, name = (unquote(part or "") for part in named.groups())
    subject = f"{_singular(plural)} {f'{tenant}/' if tenant else ''}{name}"
    if status == NOT_FOUND:
        return f"{subject}: not found", f"holdfast get {plural}{f' -n {tenant}' if tenant else ''}"
    # Only as a whole word: a short name is part of many messages that do not mean it.
    is_named = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", message) is not None
    return (message if is_named else f"{subject}: {message}"), step


def _singular(plural: str) -> str:
    from holdfast.model.kinds import ALL

    return next((kind.singular for kind in ALL if kind.plural == plural), plural)
