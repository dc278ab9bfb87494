"""Write copies of profiles without private values, and count private values.

A format replaces the values of fields that hold only private values, such as environments and host names. From these
values, it collects secrets and the names of hosts and users, and overwrites them wherever they occur in other
strings. Values in a format that only private values have, such as e-mail addresses, are also overwritten. Overwriting
does not change the length of a string. Identifiers that rows or files refer to, such as UUIDs, are replaced with
pseudonyms in the same format.

Modules, from the patterns to the formats:

- ``vocabulary`` and ``patterns`` describe the values, ``escapes`` and ``matcher`` search for them and overwrite them,
  and ``pseudonyms`` replaces identifiers.
- ``state`` collects the private names of one capture, and counts the redacted values.
- ``databases`` copies SQLite databases, and ``csv_text`` redacts the cells of CSV.
- ``nsys_rep``, ``nsys_sqlite``, ``nsys_jsonlines``, ``xplane``, ``memory_snapshot``, ``nccl``, ``rocm``, ``nvprof``,
  ``nvprof_csv``, ``perfetto`` and ``kineto`` (with ``json_text``) copy the files of a format, and ``kineto`` those of
  every format that consists of JSON. The reader of a format names its function ``redact`` without importing it.
"""

from __future__ import annotations

import os
from pathlib import Path

from tracekit import registry
from tracekit.errors import TracekitError
from tracekit.registry import detection, interface
from tracekit.registry.source import Source
from tracekit.system import targets


def redact(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    key: bytes | os.PathLike[str] | None = None,
) -> dict[str, int]:
    """Copy a profile without values that identify people and machines, so that it can be shared.

    Environments, command lines, user names and the output of programs are emptied. Values that link rows or files,
    such as UUIDs and host names, become pseudonyms. Names, addresses, secrets and private folders in other strings are
    overwritten. Everything else is unchanged.

    Args:
        path: File to read.
        target: File to write.
        overwrite: Whether to replace an existing file.
        key: Secret that determines the pseudonyms: at least 16 bytes, or the path of a file that contains them. If
            files are redacted with the same key, the same value has the same pseudonym in all of them. By default a
            random key is used and not stored.

    Returns:
        Number of replaced values, by kind.

    Raises:
        UnknownFormatError: No reader recognizes the file.
        TracekitError: The format cannot be redacted, the file changed while it was read, or the key is too short, too
            long or unreadable.
        CorruptTraceError: The file is damaged, or searching it would exceed the limits for a file of its size.
        ExportError: The target exists or cannot be written.
        FileNotFoundError: The file does not exist.

    Examples:
        >>> import tempfile, tracekit as tk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tk.redact("fixtures/graph_node.sqlite", f"{folder}/shared.sqlite")["host name"]
        3
    """
    source = Source(path)
    inputs = [targets.Input.from_path(source.path)]
    if isinstance(key, os.PathLike):
        inputs.append(targets.Input.from_path(key))
    secret = _read_and_check_key(key)
    reader = _find_reader_with_redaction(source)
    redact, with_key = reader.redact, reader.redact_with_key
    if redact is None or (secret is not None and with_key is None):
        raise TracekitError(
            f"{reader.format} files cannot be redacted with a key", path=source.path, hint="redact them without a key"
        )
    is_exported_file = None if not source.path.is_dir() else _is_never_exported
    with targets.open_atomic_output(
        target, is_exported_file=is_exported_file, overwrite=overwrite, inputs=inputs
    ) as new:
        return dict(redact(source, new) if secret is None or with_key is None else with_key(source, new, secret))


def unredacted(path: str | os.PathLike[str]) -> dict[str, int]:
    """Count the values in a profile that identify people and machines, and that ``redact`` would replace.

    Args:
        path: File to read.

    Returns:
        Number of values, by kind. All numbers are 0 for a redacted file.

    Raises:
        UnknownFormatError: No reader recognizes the file.
        TracekitError: The format cannot be redacted, or the file changed while it was read.
        CorruptTraceError: The file is damaged, or searching it would exceed the limits for a file of its size.
        FileNotFoundError: The file does not exist.

    Examples:
        >>> import tracekit as tk
        >>> tk.unredacted("fixtures/graph_node.sqlite")["environment"] > 0
        True
    """
    source = Source(path)
    reader = _find_reader_with_redaction(source)
    if reader.unredacted is None:
        message = f"private values of {reader.format} files cannot be counted"
        raise TracekitError(
            message,
            path=source.path,
            hint="write a copy with tracekit redact, which counts the values that it replaces",
        )
    return dict(reader.unredacted(source))


def _is_never_exported(_path: Path) -> bool:
    """Return that a file in an existing folder may not be replaced, because it may be an original."""
    return False


def _read_and_check_key(key: bytes | os.PathLike[str] | None) -> bytes | None:
    """Return the bytes of a key, and check their number. If the key is a path, the bytes are read from this file."""
    from tracekit.readers.redaction.pseudonyms import MAX_KEY, MIN_KEY

    secret = _read_key_file(key, MAX_KEY + 1) if isinstance(key, os.PathLike) else key
    if secret is not None and len(secret) < MIN_KEY:
        message = f"the key has only {len(secret)} bytes, so it can be guessed"
        raise TracekitError(message, hint=f"use at least {MIN_KEY} random bytes")
    if secret is not None and len(secret) > MAX_KEY:
        raise TracekitError(f"the key is longer than {MAX_KEY} bytes", hint=f"use {MIN_KEY} random bytes")
    return secret


def _read_key_file(path: os.PathLike[str], max_bytes: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(max_bytes)
    except OSError as e:
        raise TracekitError(f"the key cannot be read: {e.strerror or e}", path=os.fspath(path)) from e


def _find_reader_with_redaction(source: Source) -> interface.Reader:
    """Return the reader that recognizes a source, and check that it can redact files."""
    reader = detection.detect_reader(source)
    if reader.redact is None:
        formats = ", ".join(r.format for r in registry.readers().values() if r.redact is not None)
        message = f"{reader.format} files cannot be redacted"
        raise TracekitError(message, path=source.path, hint=f"choose a file of another format: {formats}")
    return reader
