"""How a bug is planted: attributes of production code are replaced from outside, counted as they are called, and put
back. A mutation that is never called proves nothing, and one that trips over itself proves less: both are told.
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
    """Replaces attributes and remembers what was there. `calls` counts how often each replacement was called."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []
        self.calls: dict[str, int] = {}
        self.mutation_error = ""
        """The error of a replacement that failed by its own fault, such as a signature that has changed since."""

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
            async def counted_later(*given: Any, **named: Any) -> Any:
                self.calls[label] += 1
                try:
                    return await work(*given, **named)
                except (TypeError, AttributeError, NameError, LookupError) as error:
                    self._note(label, error)
                    raise

            return counted_later

        @functools.wraps(work)
        def counted(*given: Any, **named: Any) -> Any:
            self.calls[label] += 1
            try:
                return work(*given, **named)
            except (TypeError, AttributeError, NameError, LookupError) as error:
                self._note(label, error)
                raise

        return counted

    def _note(self, label: str, error: Exception) -> None:
        """Whose mistake it is shows the last frame: this package's, or the code's that the bug made stumble."""
        last: TracebackType | None = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if last is not None and PACKAGE in last.tb_frame.f_code.co_filename:
            self.mutation_error = f"{label}: {type(error).__name__}: {error}"

    @property
    def executed(self) -> bool:
        """Whether any replacement was called; where only data was replaced that cannot be told, and counts as so."""
        return not self.calls or any(self.calls.values())

    def undo(self) -> None:
        for owner, name, value in reversed(self._saved):
            setattr(owner, name, value)
        self._saved.clear()


class Mutation(msgspec.Struct, frozen=True):
    """One bug to plant: `says` is the mistake in words, `plant` makes it.

    `entry` is the mistake of the catalogue that it stands for, empty for those beyond it. `scenario` names the declared
    worlds (`sim/scenarios`) in which it can show, for what drawn worlds hardly reach. `equivalent` is the proof that
    nobody can tell it from the code as it is; a bug that has one and is caught all the same is told.
    """

    name: str
    description: str
    apply: Callable[[Patch], None]
    catalogue_entry: str = ""
    scenario: str = ""
    equivalent: str = ""
