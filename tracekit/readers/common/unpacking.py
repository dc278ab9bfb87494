"""Open a file that is packed inside another file, as a temporary file that is deleted with its capture."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.registry.interface import TemporaryCapture
from tracekit.registry.source import Source
from tracekit.system.targets import create_workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.registry.interface import Capture


def open_unpacked_file(
    source: Source, unpack: Callable[[BinaryIO], None], open_capture: Callable[[Source], Capture]
) -> Capture:
    """Write the packed file to a temporary file, and open that file.

    Args:
        source: The file that contains the packed file, for error messages.
        unpack: Function that writes the unpacked content. It limits the size.
        open_capture: Function that opens the temporary file.

    Raises:
        CorruptTraceError: The packed file is damaged.
        TracekitError: The temporary file cannot be written.
    """
    with contextlib.ExitStack() as temporary:
        try:
            folder = temporary.enter_context(create_workspace(Path(tempfile.gettempdir())))
            with (folder / "unpacked").open("xb") as file:
                unpack(file)
        except OSError as e:
            what = f"its content cannot be written to a temporary file: {e.strerror or e}"
            raise TracekitError(what, path=source.path, hint="set TMPDIR to a folder with more free space") from e
        try:
            capture = open_capture(Source(folder / "unpacked"))
        except CorruptTraceError as e:
            raise CorruptTraceError(f"the packed file is damaged: {e.message}", path=source.path, hint=e.hint) from e
        return TemporaryCapture(capture, temporary.pop_all())
