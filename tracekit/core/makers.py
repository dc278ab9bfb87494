"""Find the makers of the GPUs of a capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.text.makers import VENDORS, is_without_cuda, list_makers_of_capture

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames


def read_makers(frames: Frames) -> tuple[str, ...]:
    """Return the makers of the GPUs of a capture. It is empty if they are unknown.

    Args:
        frames: Function that returns the declared table with a given name.
    """
    info = frames("capture_info").select(pl.col("name", "value").cast(pl.String)).filter(name=VENDORS).drop_nulls()
    gpus = frames("devices").select(pl.col("name", "chip").cast(pl.String))
    return list_makers_of_capture(dict(info.collect().rows()), gpus.collect().to_dicts())


def is_of_other_maker(frames: Frames) -> bool:
    """Return whether the GPUs of a capture are known to be of other makers than NVIDIA, so that they run no CUDA.

    Args:
        frames: Function that returns the declared table with a given name.
    """
    return is_without_cuda(read_makers(frames))
