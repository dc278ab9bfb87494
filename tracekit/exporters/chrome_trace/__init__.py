"""Export Chrome trace events as JSON for Perfetto, chrome://tracing, speedscope and other viewers.

``kinds`` declares the kinds of events, and ``tracks`` declares their tracks. ``layout`` assigns events to tracks, and
``lanes`` separates overlapping slices. ``events`` and ``text`` format JSON, ``file`` writes the JSON, and ``export``
runs all steps.

Source: "Trace Event Format", the Chromium project. The actual behaviour of viewers is tested in ``tests/exporters``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.interface import Exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.interface import Progress, View


def write(view: View, path: Path, progress: Progress) -> None:
    """Write a trace as one JSON file, which is gzipped if its name ends in ``.gz``."""
    from tracekit.exporters.chrome_trace import export

    export.write(view, path, progress)


EXPORTER = Exporter(
    "chrome-trace",
    "Chrome trace events (JSON) for Perfetto, chrome://tracing and speedscope",
    (".json", ".json.gz"),
    write=write,
    correlated=True,
)
