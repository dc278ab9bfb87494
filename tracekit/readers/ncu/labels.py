"""Names that Nsight Compute prints instead of identifiers: of sections, and of metrics within a section."""

from __future__ import annotations

import functools
import re

from tracekit import schemas

DURATION = "gpu__time_duration.sum"
COMMAND_LINE = "Command line profiler metrics"
_METRIC = re.compile(r"[\w.:]*[A-Za-z]__\w+[\w.:]*")


def metric_of(section: str | None, printed: str) -> tuple[str | None, str | None]:
    """Tell the name of a metric from the label of one.

    Args:
        section: Display name of the section it is printed in; None if in none.
        printed: What is printed as its name.

    Returns:
        The metric, None if it is not known, and the label, None if the name itself is printed.
    """
    if section in (None, COMMAND_LINE) or _METRIC.fullmatch(printed):
        return printed, None
    return _labels().get((section, printed)), printed


def section_id(section: str | None) -> str | None:
    """Return the identifier of a section by its display name; None if it is not known."""
    return next((id_ for id_, name in _sections() if name == section), None)


def section_name(identifier: str | None) -> str | None:
    """Return the display name of a section, in newer versions, by its identifier; None if it is not known."""
    return next((name for id_, name in _sections() if id_ == identifier), None)


@functools.cache
def _labels() -> dict[tuple[str | None, str], str]:
    return {(section, label): metric for section, label, metric in _rows("labels")}


@functools.cache
def _sections() -> tuple[tuple[str, str], ...]:
    return tuple((id_, name) for id_, name in _rows("sections"))


def _rows(name: str) -> list[list[str]]:
    lines = (schemas.FOLDER / "ncu" / f"{name}.tsv").read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]
