"""Complete the process ids of GPU activities, so that the activities of one stream form one group.

Some formats record no process of a GPU activity, and a reader finds it by the API call that launched the activity. If
the call was not recorded, the process id is null.
"""

from __future__ import annotations

import polars as pl

_PLACES = (["device_id", "context_id", "stream_id"], ["device_id", "context_id"], ["device_id"])
"""Columns that may identify a process, from the most to the least specific ones."""


def fill_process_ids(activities: pl.DataFrame) -> pl.DataFrame:
    """Replace null process ids of GPU activities with the id of the only process on the same stream or device.

    If all other activities on the stream belong to one process, that process is used. Otherwise, it is the process of
    the context or of the device, if it is the only one there. If several processes use the device, or none is known,
    the process id remains null.

    Args:
        activities: GPU activities with the columns ``process_id``, ``device_id`` and, if they are known,
            ``context_id`` and ``stream_id``.
    """
    for place in _PLACES:
        if activities["process_id"].null_count() and set(place) <= set(activities.columns):
            process = pl.col("process_id")
            first, last = process.min().over(place), process.max().over(place)
            is_only = (first == last) & pl.all_horizontal(pl.col(place).is_not_null())
            activities = activities.with_columns(pl.coalesce(process, pl.when(is_only).then(first)))
    return activities
