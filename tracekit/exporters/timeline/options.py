"""Declare and parse the option that selects the tracks of a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import UnknownFormatError, create_choices_hint

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT, ALL = "default", "all"
BY_DEFAULT = (
    *("api", "gpu", "nvtx", "osrt", "projections", "counters", "page-faults", "tensorflow", "mpi", "openmp", "openacc"),
    *("ucx", "libraries", "graphics", "graphs", "overheads"),
)
"""Names of the tracks that are drawn by default."""
ON_REQUEST = (
    *("samples", "python", "threads", "syscalls", "compilation", "cuda-overheads", "graph-nodes", "memory-pools"),
    *("context-switches", "diagnostics"),
)
"""Names of the tracks that are drawn only on request.

They may have very many events, or they are in reports but not in exports, such as ``compilation``.
"""
OPTIONS = {
    "tracks": f"names of the tracks to draw, separated by commas: {', '.join(BY_DEFAULT)} (drawn by default), "
    f"{', '.join(ON_REQUEST)} (drawn only on request), default (all that are drawn by default), or all",
}


def parse_tracks(option_values: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the tracks that the option ``tracks`` selects.

    Args:
        option_values: Option values, by option name.

    Raises:
        UnknownFormatError: A track name is unknown.
    """
    every = (*BY_DEFAULT, *ON_REQUEST)
    groups = {DEFAULT: BY_DEFAULT, ALL: every, **{name: (name,) for name in every}}
    names = [name.strip() for name in option_values.get("tracks", DEFAULT).split(",")]
    for name in names:
        if name not in groups:
            raise UnknownFormatError(
                f"there are no tracks named {name!r}", hint=create_choices_hint("tracks", groups, name)
            )
    return frozenset(track for name in names for track in groups[name])
