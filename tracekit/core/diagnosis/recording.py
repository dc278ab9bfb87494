"""Find out how the profiler that wrote a capture records what is missing in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.core.makers import is_of_other_maker

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames

GRAPH_NODES, RECORD_NODES = "cuda_graph_node_events", "nsys profile --cuda-graph-trace=node"
"""The table that tells whether nodes of graphs were recorded, and the command of Nsight Systems that records them."""


def find_command(frames: Frames, table: str, command_of_nsys: str) -> str:
    """Return the command or function that records a table, as the profiler that wrote the capture offers it.

    Programs on GPUs of NVIDIA that were recorded with the PyTorch profiler can be recorded with Nsight Systems as well,
    which records more, so its command is returned for them too.

    Args:
        frames: Function that returns the declared table with a given name.
        table: Name of the table.
        command_of_nsys: The command of Nsight Systems, which is returned unless another profiler is known.
    """
    info = frames("capture_info").filter(pl.col("name").cast(pl.String) == "tool")
    tools = info.select(pl.col("value").cast(pl.String)).drop_nulls().collect()["value"].to_list()
    is_other = is_of_other_maker(frames)
    for profiler in schemas.load_profilers():
        if (is_other or "kineto" not in profiler["formats"]) and any(
            re.search(profiler["tool"], tool) for tool in tools
        ):
            return str(profiler["tables"].get(table, profiler["default"]))
    return command_of_nsys
