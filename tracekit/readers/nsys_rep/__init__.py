"""Reader of reports (``.nsys-rep``, ``.qdrep``) that Nsight Systems 2019.5 to 2026.2 wrote. nsys is not required."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_MAGIC = b"NVIDIA Tegra Profiler Report"


def sniff(source: Source) -> bool:
    """Return whether a file begins with the magic bytes of an Nsight Systems report."""
    return source.head.startswith(_MAGIC)


def open_report(source: Source) -> Capture:
    """Open an Nsight Systems report."""
    from tracekit.readers.nsys_rep.capture import RepCapture

    return RepCapture(source)


def redact_report(source: Source, target: Path, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of an Nsight Systems report without values that identify people and machines.

    The key determines the pseudonyms in the copy. If the key is None, a random key is used.

    Returns:
        The number of replaced values of each kind.
    """
    from tracekit.readers.nsys_rep.redact import write_redacted

    return write_redacted(source, target, key)


def count_private_values(source: Source) -> dict[str, int]:
    """Return the number of values in an Nsight Systems report that identify people and machines, by kind."""
    from tracekit.readers.nsys_rep import redact

    return redact.count_private_values(source)


READER = Reader(
    "nsys-rep",
    "Nsight Systems report (.nsys-rep, .qdrep)",
    (".nsys-rep", ".qdrep"),
    sniff,
    open_report,
    redact_report,
    redact_report,
    count_private_values,
)
