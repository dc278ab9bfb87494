"""Export Chrome trace events as JSON for Perfetto, chrome://tracing, speedscope and other viewers.

The package ``timeline`` determines what is drawn on which tracks. ``events``, ``metadata`` and ``text`` format it as
JSON, ``export`` writes the file, and ``many`` writes several traces to one file.

Source: "Trace Event Format", the Chromium project. The actual behaviour of viewers is tested in ``tests/exporters``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit.exporters.timeline.options import OPTIONS, parse_tracks
from tracekit.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tracekit.interface import ManyTraces, Progress, View


def write(view: View, path: Path, progress: Progress, *, tracks: Collection[str]) -> None:
    """Write a trace as one JSON file, which is gzipped if its name ends in ``.gz``.

    Args:
        view: The trace.
        path: The file.
        progress: Progress callback.
        tracks: Names of the tracks to draw.
    """
    from tracekit.exporters.chrome_trace import export

    export.write(view, path, progress, tracks)


def write_many(traces: ManyTraces, path: Path, progress: Progress, *, tracks: Collection[str]) -> None:
    """Write several traces as one JSON file on one clock, with a group of processes for each trace.

    Args:
        traces: The traces.
        path: The file.
        progress: Progress callback, which receives the number of written traces.
        tracks: Names of the tracks to draw.
    """
    from tracekit.exporters.chrome_trace import many

    many.write(traces, path, progress, tracks)


def _configure(values: Mapping[str, str]) -> Exporter:
    """Return the exporter with the given options set.

    Raises:
        UnknownFormatError: The value of an option is invalid.
    """
    return Exporter(
        "chrome-trace",
        "Chrome trace events (JSON) for Perfetto, chrome://tracing and speedscope",
        (".json", ".json.gz"),
        write=functools.partial(write, tracks=parse_tracks(values)),
        write_many=functools.partial(write_many, tracks=parse_tracks(values)),
        correlated=True,
        options=OPTIONS,
        configure=_configure,
    )


EXPORTER = _configure({})
