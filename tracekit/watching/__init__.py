"""Watch a folder to which the ranks of a job write captures.

``files`` lists the folder, ``reduction`` reads one capture, ``state`` stores the progress, ``watcher`` compares the
ranks of complete windows, and ``outputs`` writes alarms and metrics.
"""

from tracekit.system.lazy import create_lazy_getattr_and_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tracekit.core.watch import Alarm
    from tracekit.watching.watcher import watch

__all__ = ["Alarm", "watch"]

if not TYPE_CHECKING:  # so that type checkers report unknown attributes
    __getattr__, __dir__ = create_lazy_getattr_and_dir(globals(), {"watcher": ("watch", "Alarm")})
