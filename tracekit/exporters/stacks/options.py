"""Parse the options that all exporters of call stacks share, and create these exporters."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.errors import UnknownFormatError
from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EVENTS = ("cpu_samples", "osrt_calls", "api_calls", "python_samples", "python_calls")
"""Names of the events that can have call stacks: names of tables, and ``python_calls`` for stacks of CUDA API calls."""
_CHOICES = {
    "events": EVENTS,
    "weight": ("samples", "time"),
    "by": ("none", "thread", "process"),
    "modules": ("yes", "no"),
}
OPTIONS = {
    "events": "events whose stacks are exported: cpu_samples, osrt_calls, api_calls, python_samples (periodic samples "
    "of Python) or python_calls (Python stacks of CUDA API calls); by default, the first of them that have stacks",
    "weight": "weight of a stack: samples (the number of events, default) or time (the duration of calls, or the "
    "sampling period of each sample)",
    "by": "thread or process: export the stacks of each thread or process separately; none (default): merge "
    "the stacks of all threads",
    "thread": "id of the thread whose stacks are exported (default: all threads)",
    "process": "id of the process whose stacks are exported (default: all processes)",
    "range": "name of NVTX push/pop ranges: export only stacks of a thread while it is inside such a range",
    "modules": "yes (default) or no: write the name of the program or library after the function",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed option values of an exporter of call stacks.

    Attributes:
        events: One of ``EVENTS``, or None for the first of them that has call stacks.
        weight: Weight of the stacks: ``samples`` or ``time``.
        by: Grouping of the events: ``none``, ``thread`` or ``process``.
        thread: Id of the thread to export, or None to export all threads.
        process: Id of the process to export, or None to export all processes.
        range: Name of the NVTX ranges during which events are exported, or None to export all events.
        modules: Whether frames contain the name of their module.
    """

    events: str | None = None
    weight: str = "samples"
    by: str = "none"
    thread: int | None = None
    process: int | None = None
    range: str | None = None
    modules: bool = True

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Options:
        """Parse the values of options, by option name. Options missing from ``values`` have their defaults.

        Raises:
            UnknownFormatError: A value is invalid.
        """
        for name, choices in _CHOICES.items():
            if values.get(name, choices[0]) not in choices:
                raise _create_invalid_option_error(
                    name, values[name], " or ".join(f"{name}={choice}" for choice in choices)
                )
        ids = {name: _parse_id_option(name, values[name]) for name in ("thread", "process") if name in values}
        return cls(
            events=values.get("events"),
            weight=values.get("weight", "samples"),
            by=values.get("by", "none"),
            thread=ids.get("thread"),
            process=ids.get("process"),
            range=values.get("range"),
            modules=values.get("modules", "yes") == "yes",
        )


def create_stack_exporter(
    format: str,  # noqa: A002 - the name of the attribute
    description: str,
    suffixes: tuple[str, ...],
    write: Callable[..., None],
    option_values: Mapping[str, str] | None = None,
) -> Exporter:
    """Return an exporter of call stacks in one format, configured with the given option values.

    Raises:
        UnknownFormatError: The value of an option is invalid.
    """
    return Exporter(
        format,
        description,
        suffixes,
        write=functools.partial(write, options=Options.parse(option_values or {})),
        options=OPTIONS,
        configure=functools.partial(create_stack_exporter, format, description, suffixes, write),
    )


def _parse_id_option(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 18:  # noqa: PLR2004 - fits into 64 bits
        raise _create_invalid_option_error(name, value, f"{name}=NUMBER")
    return int(value)


def _create_invalid_option_error(name: str, value: str, allowed: str) -> UnknownFormatError:
    return UnknownFormatError(f"{value!r} is not a valid value of the option {name}", hint=f"use {allowed}")
