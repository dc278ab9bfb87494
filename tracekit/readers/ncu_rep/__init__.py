"""Read Nsight Compute reports (``.ncu-rep``) of 2018 to 2025.3 without Nsight Compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_MAGIC = b"NVR\0"


def sniff(source: Source) -> bool:
    """Return whether a file begins with the magic bytes of an Nsight Compute report."""
    return source.head.startswith(_MAGIC)


def open_capture(source: Source) -> Capture:
    """Open an Nsight Compute report."""
    from tracekit.readers.ncu_rep.capture import NcuReportCapture

    return NcuReportCapture(source)


READER = Reader(
    "ncu-rep", "Nsight Compute report (.ncu-rep)", (".ncu-rep", ".nsight-cuprof-report"), sniff, open_capture
)
