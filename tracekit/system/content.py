"""Identify the content of a capture, so that ids of its rows can be looked up again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tracekit.system.files import FileState

if TYPE_CHECKING:
    from pathlib import Path

MAX_WHOLE_BYTES = 1 << 30
"""Size up to which a whole file is hashed."""
SAMPLES = 256
"""Number of samples of a larger file, which are spread evenly and include its start and its end."""
SAMPLE_BYTES = 1 << 16
MAX_FILES = 10_000
_DIGITS = 32


def compute_content_id(path: Path) -> str | None:
    """Return an id of the content of a file, or of the names and the content of all files in a folder.

    The id begins with ``sha256:``. For files that are larger than ``MAX_WHOLE_BYTES``, it is computed from the size and
    samples of the content, and begins with ``sha256-sampled:``.

    Returns:
        The id, or None if a file changes while it is read, or if a folder has more than ``MAX_FILES`` files.

    Raises:
        OSError: A file cannot be read.
    """
    if not path.is_dir():
        return _compute_id_of_file(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    if len(files) > MAX_FILES:
        return None
    ids = [(file.relative_to(path).as_posix(), _compute_id_of_file(file)) for file in files]
    if any(each is None for _, each in ids):
        return None
    is_sampled = any(str(each).startswith("sha256-sampled") for _, each in ids)
    digest = hashlib.sha256("".join(f"{name}\0{each}\n" for name, each in ids).encode("utf-8", "surrogateescape"))
    return _format_id(digest.hexdigest(), is_sampled=is_sampled)


def _compute_id_of_file(path: Path) -> str | None:
    state = FileState.read(path)
    size, digest = path.stat().st_size, hashlib.sha256()
    is_sampled = size > MAX_WHOLE_BYTES
    with path.open("rb") as file:
        if is_sampled:
            digest.update(str(size).encode())
            for i in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * i // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
            hexadecimal = digest.hexdigest()
        else:
            hexadecimal = hashlib.file_digest(file, "sha256").hexdigest()
    return _format_id(hexadecimal, is_sampled=is_sampled) if state.is_identical(FileState.read(path)) else None


def _format_id(hexadecimal: str, *, is_sampled: bool) -> str:
    return f"{'sha256-sampled' if is_sampled else 'sha256'}:{hexadecimal[:_DIGITS]}"
