"""Seal the files of the cache, so that damaged files, files of other users and files of other programs are detected.

A sealed file begins with a header of 64 bytes:

- a constant, by which the file is recognized (16 bytes),
- a digest of the place of the file in the cache (48 bytes): tracekit wrote the file at this place.

It ends with a trailer of 64 bytes:

- the same constant (16 bytes),
- the size of the content in bytes (8 bytes, little-endian),
- a digest of the size and of the place of the file in the cache (16 bytes): tracekit wrote the file at this place,
- a digest of the place and of the content (24 bytes): the content is what tracekit wrote.

A file is only used if all digests match. It is deleted if the header or the digest of the place in the trailer matches,
even if the file is truncated or its content is damaged. Files that have only a trailer, with another constant, were
written by an earlier version, and are deleted as well.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from typing import IO, TYPE_CHECKING, NamedTuple

from tracekit.system import threads
from tracekit.system.files import FileState
from tracekit.system.platform import ownership
from tracekit.system.platform.open_files import open_entry_for_reading
from tracekit.system.platform.positional_reads import read_at

if TYPE_CHECKING:
    from pathlib import Path


HEADER_BYTES = TRAILER_BYTES = 64
_MAGIC, _OLD_MAGIC = b"tracekit-cache\x02\n", b"tracekit-cache\x01\n"
_LEAST_HEADER_BYTES = 32
"""Number of bytes of the header that prove that tracekit wrote a file, if the file is truncated within the header."""
_PLACE_BYTES, _CONTENT_BYTES, _SEALED_BYTES = 16, 24, 40
_BLOCK_BYTES, _READ_BYTES = 4 << 20, 1 << 18


class NotSealedError(Exception):
    """A file of the cache cannot be used. The message is the reason."""


class Sealed(NamedTuple):
    """A file of the cache that tracekit wrote. It may be damaged.

    Attributes:
        file: The open file.
        state: State of the file.
        content_digest: The digest of the content according to the trailer. None if the header or the trailer is
            damaged, or if an earlier version wrote the file.
    """

    file: IO[bytes]
    state: FileState
    content_digest: bytes | None

    @property
    def size(self) -> int:
        """Size of the content in bytes, without the header and the trailer."""
        return self.state.size - HEADER_BYTES - TRAILER_BYTES


def is_private(status: os.stat_result, *, ignore_mode: bool = False) -> bool:
    """Return whether this user owns a file or folder and no other user can write to it.

    Args:
        status: The status of the file or folder.
        ignore_mode: Whether other users may be able to write to it.
    """
    return ownership.is_own(status) and (ignore_mode or not ownership.can_others_write(status))


def create_header(place: str) -> bytes:
    """Return the header of a file.

    Args:
        place: The place of the file in the cache, as a relative path.
    """
    size = HEADER_BYTES - len(_MAGIC)
    return _MAGIC + hashlib.blake2b(place.encode(), digest_size=size).digest()


def append_trailer(path: Path, place: str) -> None:
    """Append the trailer to a new file, which consists of the header and the content.

    Args:
        path: The file.
        place: The place of the file in the cache, as a relative path.
    """
    size = path.stat().st_size - HEADER_BYTES
    content = compute_content_digest(path.open("rb"), size, place)
    with path.open("ab") as file:
        file.write(_create_place_seal(_MAGIC, place, size) + content)
        file.flush()
        os.fsync(file.fileno())


def open_sealed(path: Path, place: str, *, must_be_private: bool = True) -> Sealed:
    """Open a file of the cache, and check that tracekit wrote it at this place for this user.

    Args:
        path: The file. A symbolic link is not followed.
        place: The place of the file in the cache, as a relative path.
        must_be_private: Whether the file is rejected if other users can write to it.

    Raises:
        NotSealedError: The file is a link, belongs to another user, can be written by other users, or has neither a
            header nor a trailer for this place.
        OSError: The file cannot be opened.
    """
    file = os.fdopen(open_entry_for_reading(path), "rb")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size < _LEAST_HEADER_BYTES:
        reason = "it is not a regular file, or too short"
    elif not is_private(status, ignore_mode=not must_be_private):
        reason = "another user owns it or can write to it"
    elif (proofs := _check_header_and_trailer(file.fileno(), status.st_size, place)) == (False, None):
        reason = "it has neither a header nor a trailer for this place in the cache"
    else:
        return Sealed(file, FileState.from_status(status), proofs[1] if all(proofs) else None)
    file.close()
    raise NotSealedError(reason)


def _check_header_and_trailer(file_number: int, file_bytes: int, place: str) -> tuple[bool, bytes | None]:
    """Return whether the header of a file is that of its place, and the digest of the content in its trailer.

    The digest is None if the trailer is not that of this place and size, and empty if an earlier version wrote it.
    """
    has_header = create_header(place).startswith(read_at(file_number, 0, HEADER_BYTES))
    trailer = read_at(file_number, max(file_bytes - TRAILER_BYTES, 0), TRAILER_BYTES)
    size = file_bytes - TRAILER_BYTES
    if size >= 0 and trailer[:_SEALED_BYTES] == _create_place_seal(_OLD_MAGIC, place, size):
        return has_header, b""
    size -= HEADER_BYTES
    is_sealed = size >= 0 and trailer[:_SEALED_BYTES] == _create_place_seal(_MAGIC, place, size)
    return has_header, trailer[_SEALED_BYTES:] if is_sealed else None


def is_intact(sealed: Sealed, place: str) -> bool:
    """Return whether the content of a file of the cache is what tracekit wrote. The file stays open."""
    if sealed.content_digest is None:
        return False
    copy = os.fdopen(os.dup(sealed.file.fileno()), "rb")
    return compute_content_digest(copy, sealed.size, place) == sealed.content_digest


def compute_content_digest(file: IO[bytes], size: int, place: str) -> bytes:
    """Return the digest of the ``size`` bytes that follow the header of a file, and close the file.

    The digest covers the CRC-32 of each block of 4 MiB. The blocks are read in several threads.
    """
    end = HEADER_BYTES + size
    with file:
        checksums = threads.map_in_order(
            lambda start: _checksum_block(file.fileno(), start, min(_BLOCK_BYTES, end - start)),
            range(HEADER_BYTES, end, _BLOCK_BYTES),
        )
        text = b"".join(checksum.to_bytes(4, "little") for checksum in checksums)
    return hashlib.blake2b(text, digest_size=_CONTENT_BYTES, key=_compute_place_digest(place, size)).digest()


def _checksum_block(file_number: int, start: int, size: int) -> int:
    """Return the CRC-32 of a block of a file. If the file is shorter, the CRC-32 of the shorter block."""
    checksum = 0
    for offset in range(start, start + size, _READ_BYTES):
        checksum = zlib.crc32(read_at(file_number, offset, min(_READ_BYTES, start + size - offset)), checksum)
    return checksum


def _create_place_seal(magic: bytes, place: str, size: int) -> bytes:
    """Return the part of the trailer that proves that tracekit wrote a file of this size at this place."""
    return magic + size.to_bytes(8, "little") + _compute_place_digest(place, size)


def _compute_place_digest(place: str, size: int) -> bytes:
    """Return the digest of the place of a file in the cache and of its size."""
    return hashlib.blake2b(f"{place}\0{size}".encode(), digest_size=_PLACE_BYTES).digest()
