"""Declare the options that all exporters of call stacks share, and create these exporters."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.registry.analyses import FIGURE, Option, parse_name
from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tracekit.registry.interface import Progress, View

EVENTS = {
    "cpu_samples": "CPU samples",
    "osrt_calls": "Operating system calls",
    "api_calls": "CUDA API calls",
    "python_samples": "Python samples",
    "python_calls": "Python stacks of CUDA calls",
}
"""Titles of the events that can have call stacks, by name: that of a table, or ``python_calls``."""
_EVENTS, _WEIGHT, *_IDS = parse_name("functions", kinds=[FIGURE])[0].options
OPTIONS = (
    _EVENTS,
    _WEIGHT,
    Option(
        "by",
        "thread or process: export the stacks of each thread or process separately; none (default): merge "
        "the stacks of all threads",
        default="none",
        choices=("none", "thread", "process"),
    ),
    *_IDS,
    Option("range", "name of NVTX push/pop ranges: export only stacks of a thread while it is inside such a range"),
    Option(
        "modules",
        "yes (default) or no: write the name of the program or library after the function",
        "flag",
        default=True,
    ),
)


class StackSelection(NamedTuple):
    """The values of the options of an exporter of call stacks.

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


def create_stack_exporter(
    format: str,  # noqa: A002 - the name of the attribute
    description: str,
    suffixes: tuple[str, ...],
    write: Callable[[View, Path, Progress, StackSelection], None],
) -> Exporter:
    """Return an exporter of call stacks in one format."""
    return Exporter(format, description, suffixes, write=functools.partial(_write, write), options=OPTIONS)


def _write(
    write: Callable[[View, Path, Progress, StackSelection], None],
    view: View,
    path: Path,
    progress: Progress,
    *,
    options: Mapping[str, Any],
) -> None:
    write(view, path, progress, StackSelection(**options))
