"""Export traces in Perfetto's binary format, which is smaller than JSON and contains exact times.

The package ``timeline`` assigns events to tracks. ``events``, ``render_stages``, ``strings`` and ``flows`` prepare the
fields of events, ``wire`` encodes them, ``packets`` encodes tracks and sequences, and ``export`` writes one trace or
several to a file.

Source: the messages in ``protos/perfetto/trace`` of https://github.com/google/perfetto. The actual behavior of
Perfetto's trace processor is tested in ``tests/exporters``.
"""

from __future__ import annotations

from tracekit.exporters.timeline.exporter import create_timeline_exporter
from tracekit.registry.analyses import Option

TRACKS, RENDER_STAGES, BOTH = "tracks", "render-stages", "both"
GPU_ACTIVITIES = Option(
    "gpu-activities",
    "how to draw kernels, copies, sets and graph launches: tracks (slices on the tracks of streams, with all arguments "
    "and arrows), render-stages (Perfetto's own GPU events, which its panel for compute kernels reads), or both",
    default=TRACKS,
    choices=(TRACKS, RENDER_STAGES, BOTH),
)
EXPORTER = create_timeline_exporter(
    __name__,
    "perfetto",
    "Perfetto trace: track events (protobuf)",
    (".pftrace", ".pftrace.gz"),
    (GPU_ACTIVITIES,),
)
