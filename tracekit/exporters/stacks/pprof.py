"""Export call stacks as a gzipped profile for pprof.

If events are grouped by thread or process, the name of the group is a label of each sample.

Source: ``profile.proto`` of https://github.com/google/pprof.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.exporters.stacks.profile import create_stack_exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.exporters.stacks.profile import Profile, StackSelection
    from tracekit.registry.interface import Progress, View


def write(view: View, path: Path, progress: Progress, selection: StackSelection) -> None:
    """Write the call stacks of a trace as a gzipped pprof profile.

    Raises:
        MissingTableError: The trace has no call stacks.
        TracekitError: The selection contains no events.
    """
    from tracekit.exporters.stacks.profile import read_nonempty_profile

    profile = read_nonempty_profile(view.tables, selection)
    strings = _StringTable()
    message = schemas.load_message_class("pprof", "Profile")()
    kind = "samples" if profile.unit == "samples" else "time"
    message.sample_type.add(type=strings[kind], unit=strings["count" if kind == "samples" else profile.unit])
    message.time_nanos = int(view.info.get("origin_utc_ns", 0))
    message.duration_nanos = int(view.info.get("duration_ns", 0))
    names = [None if name is None else (strings[selection.by], strings[name]) for name in profile.groups]
    _add_functions_and_locations(message, profile, strings)
    groups, weights = (profile.weights[c].to_list() for c in ("group", "weight"))
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        packed.write(message.SerializeToString(deterministic=True))
        for part, edges, frames in profile.iterate_frame_batches(profile.weights["node"].to_numpy()):
            batch = schemas.load_message_class("pprof", "Profile")()
            locations, ends = (frames + 1).tolist(), edges.tolist()
            for nth, row in enumerate(range(part.start, part.stop)):
                stack = locations[ends[nth] : ends[nth + 1]]
                sample = batch.sample.add(location_id=stack[::-1], value=[weights[row]])
                label = names[groups[row]]
                if label is not None:
                    sample.label.add(key=label[0], str=label[1])
            packed.write(batch.SerializeToString(deterministic=True))
            progress(part.stop, len(weights))


class _StringTable(dict[str, int]):
    """String table of a profile: maps each string to its index. Looking up a new string adds it to the table."""

    def __init__(self) -> None:
        super().__init__({"": 0})

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def _add_functions_and_locations(message: Any, profile: Profile, strings: _StringTable) -> None:
    """Add to a profile one function and location per distinct frame, one mapping per module, and the string table."""
    mappings: dict[str, int] = {}
    functions, modules = profile.functions.to_pylist(), profile.modules.to_pylist()
    for nth, (function, module) in enumerate(zip(functions, modules, strict=True), 1):
        file = 0 if module is None else strings[module]
        message.function.add(id=nth, name=strings[function], system_name=strings[function], filename=file)
        mapping = 0 if module is None else mappings.setdefault(module, len(mappings) + 1)
        message.location.add(id=nth, mapping_id=mapping).line.add(function_id=nth)
    for module, number in mappings.items():
        message.mapping.add(id=number, filename=strings[module], has_functions=True)
    message.string_table.extend(strings)


EXPORTER = create_stack_exporter(
    "pprof",
    "Call stacks as a gzipped profile for pprof",
    (".pb.gz", ".pprof"),
    write,
)
