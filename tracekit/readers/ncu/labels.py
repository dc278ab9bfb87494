"""Look up the identifiers of sections and metrics by the display names that Nsight Compute prints."""

from __future__ import annotations

import functools
import re

from tracekit import schemas

DURATION = "gpu__time_duration.sum"
COMMAND_LINE = "Command line profiler metrics"
_METRIC_NAME = re.compile(r"[\w.:]*[A-Za-z]__\w+[\w.:]*")


def find_metric_and_label(section: str | None, printed_text: str) -> tuple[str | None, str | None]:
    """Return the name and the label of a metric, given what Nsight Compute prints for the metric.

    Nsight Compute prints either the name of a metric, such as ``gpu__time_duration.sum``, or the label, such as
    ``Duration``.

    Args:
        section: Display name of the section that contains the metric, or None outside of sections.
        printed_text: The printed name or label.

    Returns:
        A tuple of the name and the label of the metric. The name is None if the printed label is unknown. The label is
        None if the name is printed.
    """
    if section in (None, COMMAND_LINE) or _METRIC_NAME.fullmatch(printed_text):
        return printed_text, None
    return _load_metrics_by_label().get((section, printed_text)), printed_text


def find_section_id(display_name: str | None) -> str | None:
    """Return the identifier of the section with the given display name, or None if the name is unknown."""
    return next((id_ for id_, name in _load_section_ids_and_names() if name == display_name), None)


def find_section_name(identifier: str | None) -> str | None:
    """Return the name that recent versions of ncu display for a section, or None if the identifier is unknown."""
    return next((name for id_, name in _load_section_ids_and_names() if id_ == identifier), None)


@functools.cache
def _load_metrics_by_label() -> dict[tuple[str | None, str], str]:
    return {(section, label): metric for section, label, metric in _read_tsv("labels")}


@functools.cache
def _load_section_ids_and_names() -> tuple[tuple[str, str], ...]:
    return tuple((id_, name) for id_, name in _read_tsv("sections"))


def _read_tsv(name: str) -> list[list[str]]:
    lines = (schemas.FOLDER / "ncu" / f"{name}.tsv").read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]
