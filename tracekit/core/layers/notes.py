"""State why layers of CUDA graphs are not known, and what to do about it."""

from __future__ import annotations


def describe_unknown_layers(unknown_count: int, node_count: int, *, is_aligned: bool) -> str:
    """Return a sentence about the activities of graphs whose layers are not known.

    Args:
        unknown_count: Number of these activities.
        node_count: Number of all activities of graphs.
        is_aligned: Whether the layers come from a second capture.
    """
    start = f"the layers of {unknown_count:,} of {node_count:,} activities of CUDA graphs are not known, because "
    if is_aligned:
        return (
            f"{start}the second capture does not show with sufficient confidence in which ranges they run. Hint: "
            "record steps without graphs, or the capture of the graphs, in a run with the same settings"
        )
    return (
        f"{start}their graphs were captured before the recording began, or because the creation of their nodes was not "
        "recorded. Hint: take the layers from a second capture of the program, with --layers FILE"
    )


def describe_unsuitable_capture(missing: str, unknown_count: int) -> str:
    """Return a sentence about a second capture that cannot tell layers.

    Args:
        missing: What the second capture does not contain.
        unknown_count: Number of the activities of graphs.
    """
    return (
        f"this capture has no {missing}, so the layers of {unknown_count:,} activities of CUDA graphs are not known. "
        "Hint: record a run of the same program with ranges around its layers, such as those of "
        "torch.autograd.profiler.emit_nvtx, with nsys profile --trace=cuda,nvtx"
    )


def describe_whole_graphs(execution_count: int, graph_count: int) -> str:
    """Return a sentence about graphs whose executions were recorded as wholes."""
    return (
        f"{execution_count:,} executions of {graph_count:,} CUDA graph{'s' * (graph_count != 1)} were recorded as "
        "wholes, without the times of their nodes, so their layers are not known. Hint: record nodes with nsys profile "
        "--cuda-graph-trace=node"
    )


def describe_whole_replays(whole_count: int, replay_count: int, copy_count: int) -> str:
    """Return a sentence about replays inside of which no ranges are placed.

    Args:
        whole_count: Number of these replays.
        replay_count: Number of all replays with layers.
        copy_count: Number of replays that were recorded with copies of the ranges.
    """
    if copy_count >= whole_count:
        return (
            f"{whole_count:,} of {replay_count:,} replays of CUDA graphs contain the ranges of their layers already, "
            "because this file was written from a trace with layers, but without the launches inside of the ranges. "
            "Hint: use the layers of the original capture"
        )
    return (
        f"no ranges are placed inside of {whole_count:,} of {replay_count:,} replays of CUDA graphs, because their API "
        "calls are too short, or because other ranges begin or end during the calls"
    )
