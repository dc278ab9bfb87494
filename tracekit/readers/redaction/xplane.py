"""Write a copy of a profile of XLA without values that identify people and machines.

Host names become pseudonyms. Values whose names say that they are private, such as command lines, private folders in
the paths of source files, and private values in all other strings, also in those of compiled programs, are overwritten.
Overwriting keeps the length of a string, so that all other bytes of the profile are unchanged.
"""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import convert_damage
from tracekit.readers.redaction import kineto
from tracekit.readers.redaction.nsys_rep.messages import (
    FieldEdit,
    Overwriter,
    StepBudget,
    create_message_editor,
    find_innermost_fields,
)
from tracekit.readers.redaction.patterns import COMMAND, ENVIRONMENT, HOST, PATH, USER
from tracekit.readers.redaction.state import Redaction
from tracekit.readers.xplane import is_viewer_trace, space
from tracekit.readers.xplane.programs import METADATA, PROGRAM
from tracekit.readers.xplane.values import EVENT_VALUES, METADATA_VALUES, EventValues

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.readers.xplane.space import Plane
    from tracekit.registry.source import Source

_HOST_NAMES = 4
_MODULE, _COMPUTATIONS, _STACK_FRAMES, _INSTRUCTIONS, _OP_METADATA, _SOURCE_FILE, _FILE_NAMES = 1, 3, 25, 2, 7, 3, 1
"""Numbers of fields of compiled programs: hlo_module, computations, stack_frame_index, instructions, metadata,
source_file, and file_names."""
_COMPRESSION_LEVEL = 6
_STEPS_PER_BYTE = 4
_PRIVATE_NAMES = (
    (ENVIRONMENT, r"env(ironment)?([_ ]?var(iable)?s?)?"),
    (COMMAND, r"(launch[_ ]?)?(cmd|command)[_ ]?(line)?([_ ]?arg(ument)?s)?|argv|program[_ ]?arg(ument)?s"),
    (COMMAND, r"cwd|work(ing)?[_ ]?dir(ectory)?"),
    (USER, r"user([_ ]?name)?|owner|login"),
    (PATH, r"source(_(stack|info|file))?"),
    (HOST, r"(\w{0,40}_)?host[_ ]?names?|node[_ ]?names?|machine[_ ]?name"),
)
"""Kinds of private values, each with a regular expression for their names."""


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a profile without values that identify people and machines.

    The copy is gzipped if the profile is.

    Args:
        source: Profile to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        CorruptTraceError: The profile is damaged, or redacting it takes more steps than allowed for its size.
        TracekitError: The profile changed while it was read.
    """
    if is_viewer_trace(source):
        return kineto.redact(source, target, key)
    with source.open() as file, convert_damage(source.path, file=file):
        buffer, size = space.read_content(file)
        redaction = Redaction(source.path, key)
        profile = space.read_space(buffer, size, Budget(size))
        data = bytearray(buffer.data.data[:size])
        edit_program = _create_program_editor(redaction)
        for plane in profile.planes:
            for kind, start, stop in _iterate_private_values(plane):
                _overwrite(redaction, kind, data, start, stop)
            for start, stop in _find_programs(plane):
                data[start:stop] = edit_program(bytes(data[start:stop]))
        redacted = _redact_content(redaction, bytes(data))
        file.check_unchanged()
    if target is not None:
        is_compressed = source.head.startswith(space.GZIP)
        target.write_bytes(gzip.compress(redacted, _COMPRESSION_LEVEL, mtime=0) if is_compressed else redacted)
    return dict(redaction.counts)


def _iterate_private_values(plane: Plane) -> Iterator[tuple[str, int, int]]:
    """Yield the kind, start and end offset of each string whose name says that it is private."""
    kinds: dict[str, str] = {}
    for name in plane.value_names.texts.to_pylist():
        kind = next((kind for kind, pattern in _PRIVATE_NAMES if re.fullmatch(pattern, name, re.IGNORECASE)), None)
        if kind is not None:
            kinds[name] = kind
    if not kinds:
        return
    batches = plane.iterate_encoded_events()
    of_events = (EventValues.of_messages(plane, batch.starts, batch.stops, EVENT_VALUES) for batch in batches)
    for values in (EventValues.of_plane(plane), _read_values_of_metadata(plane), *of_events):
        for name, kind in kinds.items():
            yield from ((kind, start, stop) for start, stop in values.find_texts(name))


def _read_values_of_metadata(plane: Plane) -> EventValues:
    metadata = plane.event_names.metadata
    order = np.argsort(metadata.starts, kind="stable")
    return EventValues.of_messages(plane, metadata.starts[order], metadata.stops[order], METADATA_VALUES)


def _find_programs(plane: Plane) -> list[tuple[int, int]]:
    """Return the start and end offset of each compiled program."""
    if plane.name != METADATA:
        return []
    return [(start, stop) for _, start, stop in _read_values_of_metadata(plane).find_bytes(PROGRAM)]


def _create_program_editor(redaction: Redaction) -> FieldEdit:
    """Return a function that overwrites private folders in the paths of source files in a compiled program."""
    overwrite = {_SOURCE_FILE: redaction.redact_folders}
    instruction = create_message_editor({_OP_METADATA: create_message_editor(overwrite)})
    computation = create_message_editor({_INSTRUCTIONS: instruction})
    frames = create_message_editor({_FILE_NAMES: redaction.redact_folders})
    module = create_message_editor({_COMPUTATIONS: computation, _STACK_FRAMES: frames})
    return create_message_editor({_MODULE: module})


def _overwrite(redaction: Redaction, kind: str, data: bytearray, start: int, stop: int) -> None:
    """Overwrite a private value, unless it is overwritten already."""
    value = bytes(data[start:stop])
    if kind == PATH:
        data[start:stop] = b"\n".join(map(redaction.redact_folders, value.split(b"\n")))
    elif value.strip(b"x"):
        redaction.collect_names(kind, value)
        redaction.counts[kind] += 1
        data[start:stop] = b"x" * len(value)


def _redact_content(redaction: Redaction, data: bytes) -> bytes:
    """Return the content of a profile with pseudonyms of hosts, and without private values in other strings."""
    budget = StepBudget(_STEPS_PER_BYTE * len(data))
    places = budget.find_environment_candidates(data, include_homes=True)
    for start, stop, _ in find_innermost_fields(data, places, budget):
        redaction.collect_names_from_string(data[start:stop])
    renamed = create_message_editor({_HOST_NAMES: lambda name: redaction.replace_value(HOST, name)})(data)
    return Overwriter(redaction, budget, redaction.build_matcher()).overwrite_private_values(renamed)
