"""Export Chrome trace events as JSON for Perfetto, chrome://tracing, speedscope and other viewers.

The package ``timeline`` assigns events to tracks. ``events``, ``metadata`` and ``text`` format events
and tracks as JSON, ``export`` writes the file, and ``many`` writes several traces to one file.

Source: "Trace Event Format", the Chromium project. The actual behavior of viewers is tested in ``tests/exporters``.
"""

from __future__ import annotations

from tracekit.exporters.timeline.exporter import create_timeline_exporter

EXPORTER = create_timeline_exporter(
    __name__,
    "chrome-trace",
    "Chrome trace events (JSON) for Perfetto, chrome://tracing and speedscope",
    (".json", ".json.gz"),
)
