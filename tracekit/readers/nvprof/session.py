"""Unpack the database that a session of the NVIDIA Visual Profiler contains.

The database is compressed with gzip and encoded with Base64. It is the text of the elements ``split`` in the element
``pdm`` of the element ``timelinepdm``. A session without these elements refers to a file that was imported.
"""

from __future__ import annotations

import binascii
import re
import zlib
from typing import TYPE_CHECKING, BinaryIO

from tracekit.errors import CorruptTraceError, UnknownFormatError
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.unpacking import open_unpacked_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

SAVE_AGAIN = "open the session in the NVIDIA Visual Profiler and save it again, or record the profile again"
_CHUNK_BYTES, _END_BYTES = 1 << 20, 1 << 10
_SPACE = b" \t\r\n"
SPLIT = re.compile(rb"<split[^<>]{0,200}>")


def open_session(source: Source, open_database: Callable[[Source], Capture]) -> Capture:
    """Unpack the database of a session to a temporary file, and open that file.

    Raises:
        UnknownFormatError: The session contains no database, or those of several processes.
        CorruptTraceError: The session is truncated or damaged.
    """
    content = read_session(source)
    timeline = content.partition(b"<timelinepdm")[2].partition(b"</timelinepdm>")[0]
    profiles = timeline.count(b"<pdm>")
    if profiles != 1:
        what = f"this session of the NVIDIA Visual Profiler contains {profiles or 'no'} profiles of processes"
        raise UnknownFormatError(what, path=source.path, hint="pass a file that was imported into the session")
    budget = Budget(source.size)
    return open_unpacked_file(source, lambda target: unpack_database(source, timeline, budget, target), open_database)


def read_session(source: Source) -> bytes:
    """Return the content of a session.

    Raises:
        CorruptTraceError: The session is truncated.
        TracekitError: The file changed while it was read.
    """
    with source.open() as file:
        content = file.read(0, file.size)
        file.check_unchanged()
    if not content[-_END_BYTES:].rstrip().endswith(b"</session>"):
        raise CorruptTraceError("the session is truncated", path=source.path, hint=SAVE_AGAIN)
    return content


def unpack_database(source: Source, elements: bytes, budget: Budget, target: BinaryIO) -> None:
    """Write the database that the elements ``split`` in a part of a session contain.

    Args:
        source: The session, for error messages.
        elements: The part of the session.
        budget: Budget that limits the size of the database.
        target: File to which the database is written.

    Raises:
        CorruptTraceError: The part is truncated or damaged.
    """
    try:
        _unpack(elements, budget, target)
    except (Damage, zlib.error, binascii.Error) as e:
        what = str(e) if isinstance(e, Damage) else "the profile in the session is damaged"
        raise CorruptTraceError(what, path=source.path, hint=SAVE_AGAIN) from e


def _unpack(timeline: bytes, budget: Budget, target: BinaryIO) -> None:
    """Write the decompressed database.

    Raises:
        Damage: The data is truncated, or larger than the budget allows.
    """
    stream, size, is_complete = zlib.decompressobj(zlib.MAX_WBITS | 16), 0, False
    for decoded in _decode_splits(timeline):
        packed = decoded
        while packed:
            part = stream.decompress(packed, _CHUNK_BYTES)
            size += len(part)
            budget.check_temporary_memory(size, 1, "bytes of the profile in the session")
            target.write(part)
            packed, is_complete = stream.unconsumed_tail, stream.eof
            if is_complete:
                packed, stream = stream.unused_data, zlib.decompressobj(zlib.MAX_WBITS | 16)
    if not is_complete:
        raise Damage("the profile in the session is truncated")


def _decode_splits(timeline: bytes) -> Iterator[bytes]:
    """Yield the bytes that are encoded with Base64, in chunks."""
    for start in SPLIT.finditer(timeline):
        end = timeline.find(b"</split>", start.end())
        if end < 0:
            raise Damage("the profile in the session is truncated")
        text = timeline[start.end() : end].translate(None, _SPACE)
        for at in range(0, len(text), _CHUNK_BYTES):
            yield binascii.a2b_base64(text[at : at + _CHUNK_BYTES], strict_mode=True)
