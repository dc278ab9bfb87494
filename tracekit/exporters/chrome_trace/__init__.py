"""Chrome trace events as JSON: for Perfetto, chrome://tracing, speedscope and others.

``kinds`` says what is drawn, ``tracks`` where, ``lanes`` keeps slices apart, ``events`` and ``text`` make the JSON,
``file`` writes it, and ``export`` runs them.

Source: "Trace Event Format", the Chromium project; what viewers really do with it: ``tests/exporters``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.registry import Exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry import Progress, View


def write(view: View, path: Path, progress: Progress) -> None:
    """Write a trace as one JSON file; gzipped if its name ends in ``.gz``."""
    from tracekit.exporters.chrome_trace import export

    export.write(view, path, progress)


EXPORTER = Exporter(
    "chrome-trace",
    "Chrome trace events (JSON) for Perfetto, chrome://tracing and speedscope",
    (".json", ".json.gz"),
    write=write,
    correlated=True,
)
