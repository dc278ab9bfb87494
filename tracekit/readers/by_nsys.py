"""Reports read through Nsight Systems itself: ``nsys export`` makes a temporary SQLite export, and that is read."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import interrupts
from tracekit.errors import TracekitError, shown
from tracekit.registry import Capture, Source
from tracekit.targets import workspace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa


TOOL = "nsys"
MOMENT_S = 1.0


class Exported(Capture):
    """A capture whose file is temporary: it is deleted when the capture is closed, or given up."""

    def __init__(self, capture: Capture, temporary: contextlib.ExitStack) -> None:
        self._capture = capture
        self._delete = weakref.finalize(self, temporary.close)

    def names(self) -> Collection[str]:
        """Names of the declared tables that the export may hold rows for."""
        return self._capture.names()

    def count(self, name: str) -> int:
        """Number of rows of one table."""
        return self._capture.count(name)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of one table."""
        return self._capture.read(name, columns)

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Number of rows of several tables."""
        return self._capture.count_many(names)

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Table]:
        """Read columns of several tables."""
        return self._capture.read_many(columns)

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of rows, by source table, that the export holds and no table has."""
        return self._capture.count_undecoded()

    def close(self) -> None:
        """Close the export and delete it."""
        self._capture.close()
        self._delete()


def open_(source: Source) -> Exported:
    """Let nsys export a report, and open the export.

    Raises:
        TracekitError: There is no nsys on the PATH, or it fails.
    """
    from tracekit.readers import nsys_sqlite

    tool = shutil.which(TOOL)
    if tool is None:
        raise TracekitError(
            f"there is no {TOOL} on the PATH to export it",
            path=source.path,
            hint="install Nsight Systems, or add the folder of nsys to PATH; tracekit reads reports without it, too",
        )
    with contextlib.ExitStack() as temporary:
        folder = temporary.enter_context(workspace(Path(tempfile.gettempdir())))
        capture = nsys_sqlite.open_(Source(_export(tool, source, folder)))
        return Exported(capture, temporary.pop_all())


def _export(tool: str, source: Source, folder: Path) -> Path:
    """Run the export."""
    target = folder / "export.sqlite"
    hint = f"run it to see why: nsys export --type sqlite {shown(source.path)}"
    try:
        status = _run([tool, "export", "--type=sqlite", f"--output={target}", str(source.path.absolute())])
    except OSError as e:
        raise TracekitError(f"{TOOL} cannot be run: {e.strerror}", path=source.path, hint=hint) from e
    if status:
        ended = f"was ended by signal {-status}" if status < 0 else f"failed with exit status {status}"
        raise TracekitError(f"nsys export {ended}", path=source.path, hint=hint)
    if not target.is_file():
        raise TracekitError("nsys export wrote no file, and says that all went well", path=source.path, hint=hint)
    return target


def _run(command: list[str]) -> int:
    """Run a command to its end, or end it; what it prints goes nowhere, as it may tell of the machine.

    It is waited for a moment at a time: once polars has run, an interruption does not end a longer wait.
    """
    nowhere = subprocess.DEVNULL
    with (
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere) as process,  # noqa: S603
        interrupts.cleaning_up(process.kill),
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(MOMENT_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process.returncode
