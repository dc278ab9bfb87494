"""Export traces in Perfetto's own format, which is smaller than JSON and has exact times.

The package ``timeline`` determines what is drawn on which tracks. ``events`` encodes it with ``wire``, ``strings`` and
``flows``, ``packets`` encodes tracks and sequences, and ``export`` writes the file.

Source: the messages in ``protos/perfetto/trace`` of https://github.com/google/perfetto. The actual behaviour of
Perfetto's trace processor is tested in ``tests/exporters``.
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
    """Write a trace as one file, which is gzipped if its name ends in ``.gz``.

    Args:
        view: The trace.
        path: The file.
        progress: Progress callback.
        tracks: Names of the tracks to draw.
    """
    from tracekit.exporters.perfetto import export

    export.write(view, path, progress, tracks)


def write_many(traces: ManyTraces, path: Path, progress: Progress, *, tracks: Collection[str]) -> None:
    """Write several traces as one file on one clock, with a group of processes for each trace.

    Args:
        traces: The traces.
        path: The file.
        progress: Progress callback, which receives the number of written traces.
        tracks: Names of the tracks to draw.
    """
    from tracekit.exporters.perfetto import export

    export.write_many(traces, path, progress, tracks)


def _configure(values: Mapping[str, str]) -> Exporter:
    """Return the exporter with the given options set.

    Raises:
        UnknownFormatError: The value of an option is invalid.
    """
    return Exporter(
        "perfetto",
        "Perfetto trace: track events (protobuf)",
        (".pftrace", ".pftrace.gz"),
        write=functools.partial(write, tracks=parse_tracks(values)),
        write_many=functools.partial(write_many, tracks=parse_tracks(values)),
        correlated=True,
        options=OPTIONS,
        configure=_configure,
    )


EXPORTER = _configure({})
