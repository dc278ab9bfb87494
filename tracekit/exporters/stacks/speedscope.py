"""Export call stacks for speedscope, with one profile per group of events, such as a thread.

Equal stacks are combined into one sample with the sum of their weights. Samples are therefore not ordered by time.

Source: the file format of speedscope, https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracekit.exporters.stacks.profile import create_stack_exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.exporters.stacks.profile import StackSelection
    from tracekit.registry.interface import Progress, View

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(view: View, path: Path, progress: Progress, selection: StackSelection) -> None:
    """Write the call stacks of a trace in the JSON format of speedscope.

    Raises:
        MissingTableError: The trace has no call stacks.
        TracekitError: The selection contains no events.
    """
    import polars as pl

    from tracekit.exporters.stacks.profile import read_nonempty_profile

    profile = read_nonempty_profile(view.tables, selection)
    unit = "none" if profile.unit == "samples" else profile.unit
    frames = [{"name": text} for text in profile.texts.to_pylist()]
    head = {"$schema": _SCHEMA, "exporter": "tracekit", "name": profile.events, "shared": {"frames": frames}}
    done = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1] + ',"profiles":[')
        for nth, name in enumerate(profile.groups):
            rows = profile.weights.filter(pl.col("group") == nth)
            weights = rows["weight"].to_list()
            about = {"type": "sampled", "name": name or profile.events, "unit": unit, "startValue": 0}
            text = json.dumps({**about, "endValue": sum(weights), "weights": weights}, separators=(",", ":"))
            file.write((",\n" if nth else "\n") + text[:-1] + ',"samples":[')
            for part, edges, indices in profile.iterate_frame_batches(rows["node"].to_numpy()):
                lists = pl.Series(indices).cast(pl.String)
                batch = ",".join(
                    f"[{','.join(lists[a:b])}]" for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
                )
                file.write(("," if part.start else "") + batch)
            file.write("]}")
            done += rows.height
            progress(done, profile.weights.height)
        file.write("\n]}\n")


EXPORTER = create_stack_exporter(
    "speedscope",
    "Call stacks (JSON) for speedscope",
    (".speedscope.json",),
    write,
)
