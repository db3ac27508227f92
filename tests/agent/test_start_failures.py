"""When start failures quarantine a node, and when the quarantine ends."""

from __future__ import annotations

import pytest

from holdfast.agent.start_failures import QUARANTINE_S, START_FAILURES_WINDOW_S, StartFailures


def failed(book: StartFailures, workload: str, at_s: float, reason: str = "StartError") -> None:
    book.record_failure(workload, reason, "no", mono_s=at_s, wall_s=1_700_000_000.0 + at_s)


def test_start_failures_of_one_workload_cause_no_quarantine() -> None:
    book = StartFailures()
    for n in range(20):
        failed(book, "acme/a", float(n))
    assert book.quarantine(20.0) is None


def test_start_failures_of_several_workloads_quarantine_until_expiry() -> None:
    book = StartFailures()
    for n, name in enumerate(("acme/a", "acme/b", "acme/a")):
        failed(book, name, float(n), "DiskFull")
    found = book.quarantine(3.0)
    assert found is not None and found.reason == "DiskFull" and "acme/a, acme/b" in found.message and found.until
    assert book.recheck_in_s(3.0) == QUARANTINE_S - 1.0
    assert book.quarantine(2.0 + QUARANTINE_S) is None


def test_successful_start_ends_quarantine() -> None:
    book = StartFailures()
    for n, name in enumerate(("acme/a", "acme/b", "acme/c")):
        failed(book, name, float(n), "CommandNotFound")
    assert book.quarantine(3.0) is None
    for n, name in enumerate(("acme/a", "acme/b", "acme/c")):
        failed(book, name, float(n))
    assert book.quarantine(3.0) is not None
    book.record_success()
    assert book.quarantine(3.0) is None


def test_start_failures_outside_window_do_not_count() -> None:
    book = StartFailures()
    failed(book, "acme/a", 0.0)
    failed(book, "acme/b", 1.0)
    failed(book, "acme/a", START_FAILURES_WINDOW_S + 2.0)
    assert book.quarantine(START_FAILURES_WINDOW_S + 3.0) is None


@pytest.mark.parametrize("reason", ["CommandNotFound", "TemplateUnusable", "UserNotAllowed", "ArtifactMissing"])
def test_failures_that_templates_cause_never_quarantine(reason: str) -> None:
    book = StartFailures()
    for n in range(20):
        failed(book, f"acme/{n}", float(n), reason)
    assert book.quarantine(20.0) is None
