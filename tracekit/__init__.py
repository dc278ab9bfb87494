"""Read GPU profiler files into Arrow tables, attribute kernels to NVTX ranges, and export to formats of other tools."""

from tracekit import forks as _forks  # noqa: F401 - it must be imported before any fork
from tracekit.lazy import create_lazy_getattr_and_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tracekit import errors
    from tracekit.analysis import analyze, stats
    from tracekit.comparison import diff, save_baseline
    from tracekit.errors import TracekitError, TracekitWarning
    from tracekit.interface import Capture, Exporter, Reader, Undecoded
    from tracekit.redacting import redact, unredacted
    from tracekit.registry import formats
    from tracekit.sets import TraceSet, load_many
    from tracekit.trace import Trace, convert, load
else:  # hidden from type checkers, so that they report unknown attributes
    __getattr__, __dir__ = create_lazy_getattr_and_dir(
        globals(),
        analysis=("analyze", "stats"),
        comparison=("diff", "save_baseline"),
        errors=("TracekitError", "TracekitWarning"),
        redacting=("redact", "unredacted"),
        interface=("Capture", "Exporter", "Reader", "Undecoded"),
        registry=("formats",),
        sets=("TraceSet", "load_many"),
        trace=("Trace", "convert", "load"),
    )

__version__ = "0.1.0"
__all__ = [
    "Capture",
    "Exporter",
    "Reader",
    "Trace",
    "TraceSet",
    "TracekitError",
    "TracekitWarning",
    "Undecoded",
    "analyze",
    "convert",
    "diff",
    "errors",
    "formats",
    "load",
    "load_many",
    "redact",
    "save_baseline",
    "stats",
    "unredacted",
]
