"""Reader of reports (``.nsys-rep``, ``.qdrep``) that Nsight Systems 2019.5 to 2026.2 wrote. nsys is not required."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_MAGIC = b"NVIDIA Tegra Profiler Report"


def sniff(source: Source) -> bool:
    """Return whether a file begins with the magic bytes of an Nsight Systems report."""
    return source.head.startswith(_MAGIC)


def open_report(source: Source) -> Capture:
    """Open an Nsight Systems report."""
    from tracekit.readers.nsys_rep.report import NsysReportCapture

    return NsysReportCapture(source)


_redact = create_lazy_function("tracekit.readers.redaction.nsys_rep", "redact")
READER = Reader(
    "nsys-rep",
    "Nsight Systems report (.nsys-rep, .qdrep)",
    (".nsys-rep", ".qdrep"),
    sniff,
    open_report,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
