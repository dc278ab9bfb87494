"""Seal the files of the cache, so that damaged files, files of other users and files of other programs are detected.

A sealed file ends with a trailer of 64 bytes:

- a constant, by which the file is recognized (16 bytes),
- the size of the content in bytes (8 bytes, little-endian),
- a digest of the size and of the place of the file in the cache (16 bytes): tracekit wrote the file at this place,
- a digest of the place and of the content (24 bytes): the content is what tracekit wrote.

A file is only used if both digests match. It is deleted if the first digest matches, even if its content is damaged.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from typing import IO, TYPE_CHECKING, NamedTuple

from tracekit import threads

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.targets.inputs import Identity

TRAILER_BYTES = 64
_MAGIC = b"tracekit-cache\x01\n"
_PLACE_BYTES, _CONTENT_BYTES, _SEALED_BYTES = 16, 24, 40
_BLOCK_BYTES, _READ_BYTES = 4 << 20, 1 << 18
_OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class NotSealedError(Exception):
    """A file of the cache cannot be used. The message is the reason."""


class Sealed(NamedTuple):
    """A file of the cache with a trailer that proves that tracekit wrote it. Its content may still be damaged.

    Attributes:
        file: The open file.
        identity: Device and inode number of the file.
        size: Size of the content in bytes, without the trailer.
        content_digest: The digest of the content according to the trailer.
    """

    file: IO[bytes]
    identity: Identity
    size: int
    content_digest: bytes


def is_private(status: os.stat_result, *, ignore_mode: bool = False) -> bool:
    """Return whether this user owns a file or folder and no other user can write to it.

    Args:
        status: The status of the file or folder.
        ignore_mode: Whether other users may be able to write to it.
    """
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and (ignore_mode or not status.st_mode & _OTHERS_CAN_WRITE)


def append_trailer(path: Path, place: str) -> None:
    """Append the trailer to a new file.

    Args:
        path: The file.
        place: The place of the file in the cache, as a relative path.
    """
    size = path.stat().st_size
    content = compute_content_digest(path.open("rb"), size, place)
    with path.open("ab") as file:
        file.write(_create_place_seal(place, size) + content)
        file.flush()
        os.fsync(file.fileno())


def open_sealed(path: Path, place: str, *, must_be_private: bool = True) -> Sealed:
    """Open a file of the cache, and check that tracekit wrote it at this place for this user.

    Args:
        path: The file. A symbolic link is not followed.
        place: The place of the file in the cache, as a relative path.
        must_be_private: Whether the file is rejected if other users can write to it.

    Raises:
        NotSealedError: The file is a link, belongs to another user, can be written by other users, or has no trailer
            for this place.
        OSError: The file cannot be opened.
    """
    file = os.fdopen(os.open(path, _FLAGS), "rb")
    status = os.fstat(file.fileno())
    size = status.st_size - TRAILER_BYTES
    trailer = os.pread(file.fileno(), TRAILER_BYTES, size) if stat.S_ISREG(status.st_mode) and size >= 0 else b""
    if not trailer:
        reason = "it is not a regular file, or too short"
    elif not is_private(status, ignore_mode=not must_be_private):
        reason = "another user owns it or can write to it"
    elif trailer[:_SEALED_BYTES] != _create_place_seal(place, size):
        reason = "it has no trailer for this place in the cache"
    else:
        return Sealed(file, (status.st_dev, status.st_ino), size, trailer[_SEALED_BYTES:])
    file.close()
    raise NotSealedError(reason)


def is_intact(sealed: Sealed, place: str) -> bool:
    """Return whether the content of a file of the cache is what tracekit wrote. The file stays open."""
    copy = os.fdopen(os.dup(sealed.file.fileno()), "rb")
    return compute_content_digest(copy, sealed.size, place) == sealed.content_digest


def compute_content_digest(file: IO[bytes], size: int, place: str) -> bytes:
    """Return the digest of the first ``size`` bytes of a file, and close the file.

    The digest covers the CRC-32 of each block of 4 MiB. The blocks are read in several threads.
    """
    with file:
        checksums = threads.map_in_order(
            lambda start: _checksum_block(file.fileno(), start, min(_BLOCK_BYTES, size - start)),
            range(0, size, _BLOCK_BYTES),
        )
        text = b"".join(checksum.to_bytes(4, "little") for checksum in checksums)
    return hashlib.blake2b(text, digest_size=_CONTENT_BYTES, key=_compute_place_digest(place, size)).digest()


def _checksum_block(file_number: int, start: int, size: int) -> int:
    """Return the CRC-32 of a block of a file. If the file is shorter, the CRC-32 of the shorter block."""
    checksum = 0
    for offset in range(start, start + size, _READ_BYTES):
        checksum = zlib.crc32(os.pread(file_number, min(_READ_BYTES, start + size - offset), offset), checksum)
    return checksum


def _create_place_seal(place: str, size: int) -> bytes:
    """Return the part of the trailer that proves that tracekit wrote a file of this size at this place."""
    return _MAGIC + size.to_bytes(8, "little") + _compute_place_digest(place, size)


def _compute_place_digest(place: str, size: int) -> bytes:
    """Return the digest of the place of a file in the cache and of its size."""
    return hashlib.blake2b(f"{place}\0{size}".encode(), digest_size=_PLACE_BYTES).digest()
