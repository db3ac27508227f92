"""What a runbook is: parameters, steps in order, and what to tell users at the end."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

Words = tuple[str, ...]
"""A `holdfast` command without the program's name. `{parameter}` in a word is replaced by its value."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Parameter(msgspec.Struct, frozen=True):
    name: str
    help: str
    default: str = ""
    """Empty: the parameter is required."""


class Fact(msgspec.Struct, frozen=True):
    """A field of an object in the global cell, and the values that count. A missing object has the value ``."""

    plural: str
    name: str
    path: tuple[str, ...]
    one_of: tuple[str, ...]
    namespace: str = ""


class Look(msgspec.Struct, frozen=True, tag="look"):
    """A command that changes nothing. Its exit code is shown and ends nothing: a finding is not a failure."""

    title: str
    command: Words


class Act(msgspec.Struct, frozen=True, tag="act"):
    """A command that changes something, after a question. `dry_run` shows its effect first. It is skipped unless
    `only_if` holds."""

    title: str
    command: Words
    dry_run: Words = ()
    only_if: Fact | None = None


class Person(msgspec.Struct, frozen=True, tag="person"):
    """What only a person can do: on a machine, with another identity, or by waiting. `text` says what."""

    title: str
    text: str


class WaitUntil(msgspec.Struct, frozen=True, tag="wait"):
    """Waits until a fact holds. The run fails if it does not within the time."""

    title: str
    until: Fact
    within_s: float = 120.0


class Verify(msgspec.Struct, frozen=True, tag="verify"):
    """A command that must succeed within the time; it is repeated until then."""

    title: str
    command: Words
    within_s: float = 120.0


Step = Look | Act | Person | WaitUntil | Verify


class Runbook(msgspec.Struct, frozen=True):
    name: str
    title: str
    page: str
    """The page of the documentation that explains the cause and the choices, below docs/."""
    parameters: tuple[Parameter, ...]
    steps: tuple[Step, ...]
    tell_users: str

    def parameter_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)


def nothing_left(subject: str) -> Verify:
    """The last check of a runbook: other incidents that go on meanwhile do not count."""
    return Verify("Nothing of this incident is left", ("cleanup-check", "--only", subject), within_s=300.0)


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with the values of its parameters. An unknown parameter is a fault of the catalogue."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def filled_words(words: Words, values: Mapping[str, str]) -> Words:
    return tuple(filled(word, values) for word in words)


def filled_fact(fact: Fact, values: Mapping[str, str]) -> Fact:
    return msgspec.structs.replace(fact, name=filled(fact.name, values), namespace=filled(fact.namespace, values))


def texts_of(step: Step) -> tuple[str, ...]:
    """All texts of a step in which parameters may stand."""
    match step:
        case Look(title, command) | Verify(title, command, _):
            return (title, *command)
        case Act(title, command, dry_run, only_if):
            return (title, *command, *dry_run, *(() if only_if is None else (only_if.name, only_if.namespace)))
        case Person(title, text):
            return (title, text)
        case WaitUntil(title, until, _):
            return (title, until.name, until.namespace)


def placeholders(step: Step) -> set[str]:
    return {name for text in texts_of(step) for name in _PLACEHOLDER.findall(text)}
