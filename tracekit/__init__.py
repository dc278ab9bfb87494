"""Read GPU profiler files into Arrow tables, attribute kernels to NVTX ranges, and export to formats of other tools."""

from tracekit.system import forks as _forks  # noqa: F401 - it must be imported before any fork
from tracekit.system.lazy import create_lazy_getattr_and_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tracekit import errors
    from tracekit.answers.ask import answer
    from tracekit.answers.envelope import Envelope
    from tracekit.errors import TracekitError, TracekitWarning
    from tracekit.readers.redaction import redact, unredacted
    from tracekit.registry import Capture, Exporter, Reader, Undecoded, formats
    from tracekit.sets import TraceSet, load_many
    from tracekit.sets.analysis import analyze, stats
    from tracekit.sets.check import check, save_runs
    from tracekit.sets.comparison import diff, save_baseline
    from tracekit.trace import Trace, convert, load
    from tracekit.watching.watcher import watch
else:  # hidden from type checkers, so that they report unknown attributes
    __getattr__, __dir__ = create_lazy_getattr_and_dir(
        globals(),
        {
            "answers.ask": ("answer",),
            "answers.envelope": ("Envelope",),
            "errors": ("TracekitError", "TracekitWarning"),
            "readers.redaction": ("redact", "unredacted"),
            "registry": ("Capture", "Exporter", "Reader", "Undecoded", "formats"),
            "sets": ("TraceSet", "load_many"),
            "sets.analysis": ("analyze", "stats"),
            "sets.check": ("check", "save_runs"),
            "sets.comparison": ("diff", "save_baseline"),
            "trace": ("Trace", "convert", "load"),
            "watching.watcher": ("watch",),
        },
    )

__version__ = "1.0.0"
__all__ = [
    "Capture",
    "Envelope",
    "Exporter",
    "Reader",
    "Trace",
    "TraceSet",
    "TracekitError",
    "TracekitWarning",
    "Undecoded",
    "analyze",
    "answer",
    "check",
    "convert",
    "diff",
    "errors",
    "formats",
    "load",
    "load_many",
    "redact",
    "save_baseline",
    "save_runs",
    "stats",
    "unredacted",
    "watch",
]
