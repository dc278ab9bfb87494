"""Read GPU profiler files into Arrow tables, attribute kernels to NVTX ranges, export what other tools open."""

from __future__ import annotations

from tracekit import errors
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.registry import Exporter, Reader
from tracekit.trace import Trace, convert, load, redact, stats, unredacted

__version__ = "0.1.0"
__all__ = [
    "Exporter",
    "Reader",
    "Trace",
    "TracekitError",
    "TracekitWarning",
    "convert",
    "errors",
    "formats",
    "load",
    "redact",
    "stats",
    "unredacted",
]


def formats() -> dict[str, tuple[bool, bool]]:
    """Return every format by name, and whether it can be read and written.

    Example:
        >>> import tracekit as tk
        >>> tk.formats()["nsys-sqlite"]
        (True, False)
    """
    from tracekit import registry

    read, write = registry.readers(), registry.exporters()
    return {name: (name in read, name in write) for name in sorted({*read, *write})}
