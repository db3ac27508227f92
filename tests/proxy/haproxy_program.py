"""Where tests find HAProxy."""

from __future__ import annotations

import shutil

from tests.platforms import ROOT
from tests.requirements import skip_or_fail


def haproxy_program() -> str:
    tools = ROOT / ".tools" / "bin" / "haproxy"
    program = str(tools) if tools.exists() else shutil.which("haproxy")
    if program is None:
        skip_or_fail("haproxy is missing; next: make tools")
    return program
