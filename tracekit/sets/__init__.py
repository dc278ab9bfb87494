"""Treat the captures of all ranks of a job as one set, and open them one at a time.

``paths`` lists the files of a set, ``member`` reads the metadata that each file records about its rank, and ``ranks``
determines one rank per file. ``engines`` apply a function to every member, and ``trace_set`` defines ``TraceSet``.
"""

from tracekit.system.lazy import create_lazy_getattr_and_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tracekit.sets.engines import Engine, LocalEngine
    from tracekit.sets.member import Member
    from tracekit.sets.trace_set import TraceSet, load_many

__all__ = ["Engine", "LocalEngine", "Member", "TraceSet", "load_many"]

if not TYPE_CHECKING:  # so that type checkers report unknown attributes
    __getattr__, __dir__ = create_lazy_getattr_and_dir(
        globals(),
        {
            "engines": ("Engine", "LocalEngine"),
            "member": ("Member",),
            "trace_set": ("TraceSet", "load_many"),
        },
    )
