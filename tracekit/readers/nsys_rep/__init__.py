"""Nsight Systems reports (``.nsys-rep``, ``.qdrep``), 2019.5 to 2026.2, read without nsys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry import Capture, Source

_MAGIC = b"NVIDIA Tegra Profiler Report"


def sniff(source: Source) -> bool:
    """Whether a file begins as a report does."""
    return source.head.startswith(_MAGIC)


def open_(source: Source) -> Capture:
    """Open a report."""
    from tracekit.readers.nsys_rep.capture import RepCapture

    return RepCapture(source)


def redact_(source: Source, target: Path, key: bytes | None = None) -> dict[str, int]:
    """Write a copy without what identifies people and machines; the same key makes the same pseudonyms."""
    from tracekit.readers.nsys_rep.redact import redacted

    return redacted(source, target, key)


def unredacted_(source: Source) -> dict[str, int]:
    """Count what identifies people and machines, by kind."""
    from tracekit.readers.nsys_rep.redact import remaining

    return remaining(source)


READER = Reader(
    "nsys-rep",
    "Nsight Systems report (.nsys-rep, .qdrep)",
    (".nsys-rep", ".qdrep"),
    sniff,
    open_,
    redact_,
    redact_,
    unredacted_,
)
