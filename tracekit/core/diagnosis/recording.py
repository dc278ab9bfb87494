"""Find out how the profiler that wrote a capture records what is missing in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.core.makers import is_of_other_maker
from tracekit.text.makers import ACTIVITY

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames

GRAPH_NODES, RECORD_NODES = "cuda_graph_node_events", "nsys profile --cuda-graph-trace=node"
"""The table that tells whether nodes of graphs were recorded, and the command of Nsight Systems that records them."""


def find_command(frames: Frames, table: str, command_of_nsys: str, *, prefers_pytorch: bool = False) -> str:
    """Return the command or function that records a table, as the profiler that wrote the capture offers it.

    Programs on GPUs of NVIDIA that were recorded with the PyTorch profiler can be recorded with Nsight Systems as well,
    which records more, so its command is returned for them too.

    Args:
        frames: Function that returns the declared table with a given name.
        table: Name of the table.
        command_of_nsys: The command of Nsight Systems, which is returned unless another profiler is known.
        prefers_pytorch: Whether the PyTorch profiler is preferred to Nsight Systems for GPUs of NVIDIA, too.
    """
    entries = frames("capture_info").select(pl.col("name", "value").cast(pl.String)).drop_nulls().collect()
    tools = entries.filter(name="tool")["value"].to_list()
    activity = next(iter(entries.filter(name=ACTIVITY)["value"]), "")
    is_other = is_of_other_maker(frames)
    for profiler in schemas.load_profilers():
        if (is_other or prefers_pytorch or "kineto" not in profiler["formats"]) and any(
            re.search(profiler["tool"], tool) for tool in tools
        ):
            return schemas.get_command_of_profiler(profiler, table, activity)
    return command_of_nsys
