"""Patches of production code: attributes are replaced, their calls are counted, and the originals are restored.

A mutation that was never called, or that failed itself, is reported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

PACKAGE = "holdfast/sim/mutations"


class Patch:
    """Replaces attributes and restores them. `calls` counts the calls of each replacement."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []
        self.calls: dict[str, int] = {}
        self.mutation_error = ""
        """Error inside a replacement itself, such as a changed signature."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._saved.append((owner, name, owner.__dict__[name]))
        label = f"{getattr(owner, '__name__', owner).rpartition('.')[2]}.{name}"
        if isinstance(value, property):
            assert value.fget is not None
            value = property(self._counted(label, value.fget))
        elif inspect.isfunction(value):
            value = self._counted(label, value)
        setattr(owner, name, value)

    def _counted(self, label: str, work: Callable[..., Any]) -> Callable[..., Any]:
        self.calls.setdefault(label, 0)
        if inspect.iscoroutinefunction(work):

            @functools.wraps(work)
            async def counted_later(*arguments: Any, **named: Any) -> Any:
                self.calls[label] += 1
                try:
                    return await work(*arguments, **named)
                except (TypeError, AttributeError, NameError, LookupError) as error:
                    self._note(label, error)
                    raise

            return counted_later

        @functools.wraps(work)
        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[label] += 1
            try:
                return work(*arguments, **named)
            except (TypeError, AttributeError, NameError, LookupError) as error:
                self._note(label, error)
                raise

        return counted

    def _note(self, label: str, error: Exception) -> None:
        """Records the error if its last frame is in this package, not in mutated production code."""
        last: TracebackType | None = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if last is not None and PACKAGE in last.tb_frame.f_code.co_filename:
            self.mutation_error = f"{label}: {type(error).__name__}: {error}"

    @property
    def executed(self) -> bool:
        """Whether a replacement was called. True if only data was replaced, because that cannot be observed."""
        return not self.calls or any(self.calls.values())

    def undo(self) -> None:
        for owner, name, value in reversed(self._saved):
            setattr(owner, name, value)
        self._saved.clear()


class Mutation(msgspec.Struct, frozen=True):
    """One mutation: `description` describes the mistake, `apply` applies it.

    `catalogue_entry` is the entry that it covers, if any. `scenario` is the scenario that exposes it, if drawn runs
    hardly reach it. `equivalent` explains why the mutation cannot be observed; a caught mutation with it is reported.
    """

    name: str
    description: str
    apply: Callable[[Patch], None]
    catalogue_entry: str = ""
    scenario: str = ""
    equivalent: str = ""
