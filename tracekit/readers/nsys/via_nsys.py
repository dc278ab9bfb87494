"""Read Nsight Systems reports through a temporary SQLite file that ``nsys export`` writes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError, convert_to_printable_path
from tracekit.registry.detection import create_report_hint
from tracekit.registry.interface import TemporaryCapture
from tracekit.registry.source import Source
from tracekit.system import interrupts
from tracekit.system.targets import create_workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.registry.interface import Capture


TOOL = "nsys"
POLL_S = 1.0


def open_via_nsys(source: Source, open_export: Callable[[Source], Capture]) -> Capture:
    """Export a report to a temporary SQLite file with ``nsys export``, and open that file.

    Args:
        source: The report.
        open_export: Function that opens the SQLite file.

    Raises:
        TracekitError: The program nsys is not on the PATH, or the export fails.
    """
    tool = shutil.which(TOOL)
    if tool is None:
        raise TracekitError(
            f"the report cannot be exported, because the program {TOOL} is not on the PATH",
            path=source.path,
            hint="add the folder of nsys to PATH, or let tracekit read the report without nsys",
        )
    with contextlib.ExitStack() as temporary:
        folder = temporary.enter_context(create_workspace(Path(tempfile.gettempdir())))
        capture = open_export(Source(_export_to_sqlite(tool, source, folder)))
        return TemporaryCapture(capture, temporary.pop_all())


def _export_to_sqlite(tool: str, source: Source, folder: Path) -> Path:
    """Export a report with ``nsys export``, and return the path of the SQLite file.

    Raises:
        TracekitError: The export failed.
    """
    target = folder / "export.sqlite"
    command = f"nsys export --type sqlite {convert_to_printable_path(source.path)}"
    hint = create_report_hint(source.path, f"to see the reason, run: {command}")
    try:
        status = _run_silently([tool, "export", "--type=sqlite", f"--output={target}", str(source.path.absolute())])
    except OSError as e:
        raise TracekitError(f"{TOOL} cannot be run: {e.strerror}", path=source.path, hint=hint) from e
    if status:
        outcome = f"was ended by signal {-status}" if status < 0 else f"failed with exit status {status}"
        raise TracekitError(f"nsys export {outcome}", path=source.path, hint=hint)
    if not target.is_file():
        raise TracekitError("nsys export wrote no file, although it reported success", path=source.path, hint=hint)
    return target


def _run_silently(command: list[str]) -> int:
    """Run a command without showing its output, and return its exit status.

    The output is discarded because it may describe the machine. An interruption kills the command. The function waits
    for the command in short steps, because an interruption does not end a long wait once polars has been imported.
    """
    devnull = subprocess.DEVNULL
    with (
        subprocess.Popen(command, stdin=devnull, stdout=devnull, stderr=devnull) as process,  # noqa: S603
        interrupts.cleaning_up(process.kill),
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process.returncode
