"""Export a TensorBoard event file with a graph of the ops, the op times per iteration, scalars and tables.

The exported data is ``model("graph")`` of the trace. Each node of the graph is an op. Node names are paths, by which
TensorBoard groups the nodes. The file does not contain the user, host or command of the capture.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from tracekit.errors import ExportError
from tracekit.registry.analyses import Option
from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.registry.analyses import Value
    from tracekit.registry.interface import Progress, View

_RESERVED = "tfevents"
_MAX_DIGITS = 19
_SUFFIX = ".tracekit"


def write(view: View, path: Path, progress: Progress, *, options: Mapping[str, Value]) -> None:
    """Write a trace to a TensorBoard event file in a new folder.

    Raises:
        ExportError: The name of the folder contains ``tfevents``, or the trace has no ops.
    """
    from tracekit.exporters.tfevents.events import encode_events, encode_record

    if _RESERVED in path.name:
        hint = "choose another name; TensorBoard treats a folder with this name as a file"
        raise ExportError(f"the name of the output folder must not contain {_RESERVED!r}", path=path, hint=hint)
    tables = view.model("graph")
    if not tables["nodes"].height:
        missing = view.explain_missing_tables(("kernels",))
        raise ExportError(f"the trace has no ops to draw, because {missing.reason}", path=path, hint=missing.hint)
    origin = _parse_origin_ns(view.info.get("origin_utc_ns", ""))
    records = encode_events(tables, origin, time_kind=str(options["time"]), max_steps=cast("int", options["steps"]))
    path.mkdir()
    with (path / f"events.out.tfevents.{origin // 10**9:010d}{_SUFFIX}").open("wb") as sink:
        for number, record in enumerate(records, 1):
            sink.write(encode_record(record))
            progress(number, len(records))


def is_own_file(path: Path) -> bool:
    """Return whether this exporter probably wrote a file: it is named like an event file that ends in ``.tracekit``."""
    return re.fullmatch(r"events\.out\.tfevents\.\d+" + re.escape(_SUFFIX), path.name) is not None


def _parse_origin_ns(text: str) -> int:
    """Return the trace origin in ns since 1970, or 0 if the text is not a number of at most ``_MAX_DIGITS`` digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0


EXPORTER = Exporter(
    "tfevents",
    "TensorBoard event file in a folder: ops as a graph with compute times, scalars and tables",
    (".tensorboard",),
    write=write,
    folder=True,
    options=(
        Option(
            "time",
            "time that TensorBoard shows as compute time: gpu (default) or cpu",
            default="gpu",
            choices=("gpu", "cpu"),
        ),
        Option(
            "steps",
            "number of iterations for which separate statistics are written (default 10)",
            "integer",
            10,
            maximum=10_000,
        ),
    ),
    wrote=is_own_file,
)
