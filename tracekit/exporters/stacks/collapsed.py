"""Export call stacks as collapsed stacks, for flamegraph.pl, inferno and speedscope.

Each line contains the frames of a stack, separated by semicolons, from the outermost to the innermost frame. The weight
of the stack follows after a space.

Source: the format that ``stackcollapse-perf.pl`` of Brendan Gregg's FlameGraph writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.exporters.stacks.profile import create_stack_exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.exporters.stacks.profile import StackSelection
    from tracekit.registry.interface import Progress, View


def write(view: View, path: Path, progress: Progress, selection: StackSelection) -> None:
    """Write the call stacks of a trace as collapsed stacks.

    If events are grouped by thread or process, the name of the group is the outermost frame of a stack.

    Raises:
        MissingTableError: The trace has no call stacks.
        TracekitError: The selection contains no events.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from tracekit.exporters.stacks.profile import read_nonempty_profile, replace_separators

    profile = read_nonempty_profile(view.tables, selection)
    texts = replace_separators(profile.texts)
    heads = replace_separators(pa.array(["" if name is None else name for name in profile.groups]))
    if selection.by != "none":
        heads = pc.binary_join_element_wise(heads, "", ";")
    groups, nodes, weights = (profile.weights[c].to_numpy() for c in ("group", "node", "weight"))
    with path.open("wb") as file:
        for rows, edges, frames in profile.iterate_frame_batches(nodes.astype(np.int64)):
            stacks = pa.ListArray.from_arrays(pa.array(edges, pa.int32()), texts.take(pa.array(frames)))
            joined = pc.binary_join_element_wise(heads.take(pa.array(groups[rows])), pc.binary_join(stacks, ";"), "")
            lines = pc.binary_join_element_wise(joined, pa.array(weights[rows]).cast(pa.string()), " ")
            file.write(pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_buffer())
            file.write(b"\n")
            progress(rows.stop, len(nodes))


EXPORTER = create_stack_exporter(
    "collapsed",
    "Collapsed call stacks, one per line, for flamegraph.pl, inferno and speedscope",
    (".collapsed", ".folded"),
    write,
)
