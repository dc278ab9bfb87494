"""Event files of TensorBoard: the ops as a graph, what they took in each iteration, scalars and tables.

What they hold is the trace's ``model("graph")``. Nodes are ops, called by their paths, so that TensorBoard groups them.
Who made the capture, where and by which command stands nowhere in the file.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from tracekit.errors import ExportError, UnknownFormatError
from tracekit.registry import Exporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.registry import Progress, View

OPTIONS = {
    "time": "what TensorBoard shows as compute time: gpu or cpu, gpu if left out",
    "steps": "how many iterations get statistics of their own beside those of all together, 10 if left out",
}
STEPS = 10
_MOST_STEPS = 10_000
_RESERVED = "tfevents"
_DIGITS = 19
_MARK = ".tracekit"


def write(view: View, path: Path, progress: Progress, *, options: Mapping[str, str] | None = None) -> None:
    """Write the folder, with one event file."""
    from tracekit.exporters.tfevents.events import events
    from tracekit.exporters.tfevents.records import framed

    if _RESERVED in path.name:
        hint = "choose a folder's name without it; TensorBoard takes one with it for a file"
        raise ExportError(f"its name has {_RESERVED!r} in it", path=path, hint=hint)
    tables = view.model("graph")
    if not tables["nodes"].height:
        hint = "record ranges or kernels: nsys profile -t cuda,nvtx"
        raise ExportError("there are no ops to draw", path=path, hint=hint)
    told = options or {}
    origin = _origin_ns(view.info.get("origin_utc_ns", ""))
    records = events(tables, origin, time=told.get("time", "gpu"), steps=int(told.get("steps", STEPS)))
    path.mkdir()
    with (path / f"events.out.tfevents.{origin // 10**9:010d}{_MARK}").open("wb") as sink:
        for done, record in enumerate(records, 1):
            sink.write(framed(record))
            progress(done, len(records))


def wrote(path: Path) -> bool:
    """Return whether a file is named as the event files that tracekit writes, which end in its own name."""
    return re.fullmatch(r"events\.out\.tfevents\.\d+" + re.escape(_MARK), path.name) is not None


def _origin_ns(told: str) -> int:
    """Trace origin in ns since 1970; 0 if the capture does not tell, or tells none of our time."""
    return int(told) if told.isascii() and told.isdecimal() and len(told) <= _DIGITS else 0


def _configured(options: Mapping[str, str]) -> Exporter:
    """Set options.

    Raises:
        UnknownFormatError: One has no such value.
    """
    if options.get("time", "gpu") not in ("gpu", "cpu"):
        raise UnknownFormatError(f"time={options['time']!r} is unknown", hint="time: gpu, cpu")
    steps = options.get("steps", "0")
    if not steps.isdecimal() or len(steps) > len(str(_MOST_STEPS)) or int(steps) > _MOST_STEPS:
        raise UnknownFormatError(f"steps={steps!r} is no number up to {_MOST_STEPS}", hint="steps: 0 to 10000")
    return Exporter(
        "tfevents",
        "Event file of TensorBoard, in a folder: ops as a graph with compute times, scalars, tables",
        (".tensorboard",),
        write=functools.partial(write, options=options),
        folder=True,
        options=OPTIONS,
        configure=_configured,
        wrote=wrote,
    )


EXPORTER = _configured({})
