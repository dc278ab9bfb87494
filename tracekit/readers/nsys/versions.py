"""Where exports of Nsight Systems differ from version to version, as data.

An export names its schema since 2021.5 (2.7.0); the newest known one is that of 2026.2.
"""

from __future__ import annotations

NEWEST_SCHEMA = (3, 25)

MARKS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT", "EXPORT_META_DATA", "ProcessStreams", "ThreadNames")
"""Tables one of which every export has beside its strings."""
