"""Identify the content of a file, and the version of tracekit that reads it."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from tracekit import schemas
from tracekit.system.files import FileState

_DIGITS = 32
_PACKAGE = Path(__file__).parents[1]


def compute_content_digest(path: Path) -> str | None:
    """Return the first 32 hexadecimal digits of the SHA-256 digest of a file.

    Return None if the file changes while it is read.

    Raises:
        OSError: The file cannot be read.
    """
    state = FileState.read(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return digest[:_DIGITS] if state.is_identical(FileState.read(path)) else None


@functools.cache
def compute_reader_version() -> str:
    """Return a string that identifies this version of tracekit and changes whenever one of its files changes.

    If the code of a checkout is edited, columns that the earlier code stored are therefore not used.
    """
    digest = hashlib.sha256()
    for root in (_PACKAGE, schemas.FOLDER):
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".wasm", ".toml", ".json", ".binpb")):
            status = path.stat()
            digest.update(f"{path.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def hash_path(path: Path) -> str:
    """Return a hash of a path that can be used as a file name."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:_DIGITS]
