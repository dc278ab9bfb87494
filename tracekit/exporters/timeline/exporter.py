"""Create the exporters of timeline formats, such as Chrome and Perfetto traces."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

from tracekit.exporters.timeline.options import OPTIONS, parse_tracks
from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tracekit.registry.interface import ManyTraces, Progress, View


def create_timeline_exporter(package: str, name: str, description: str, suffixes: tuple[str, ...]) -> Exporter:
    """Return the exporter of a timeline format. Files whose names end in ``.gz`` are gzipped.

    Args:
        package: Name of the package of the format. The function ``write`` of its module ``export`` writes one trace to
            a file, and that of its module ``many`` several traces. The modules are imported on first use.
        name: Name of the format.
        description: Description of the format for lists of formats.
        suffixes: File name suffixes of the format, beginning with the default.
    """

    def configure(option_values: Mapping[str, str]) -> Exporter:
        """Return the exporter, configured with the given options.

        Raises:
            UnknownFormatError: The value of an option is invalid.
        """
        tracks = parse_tracks(option_values)
        return Exporter(
            name,
            description,
            suffixes,
            write=functools.partial(_write, package, tracks),
            write_many=functools.partial(_write_many, package, tracks),
            correlated=True,
            options=OPTIONS,
            configure=configure,
        )

    return configure({})


def _write(package: str, tracks: Collection[str], view: View, path: Path, progress: Progress) -> None:
    """Write the events on the selected tracks of a trace to a file."""
    importlib.import_module(f"{package}.export").write(view, path, progress, tracks)


def _write_many(package: str, tracks: Collection[str], traces: ManyTraces, path: Path, progress: Progress) -> None:
    """Write the events on the selected tracks of several traces to one file. Each trace has its own processes."""
    importlib.import_module(f"{package}.many").write(traces, path, progress, tracks)
