"""Compute the data of the figures of call stacks, which the exporters of call stacks read as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.core.figures.stacks import CallTree, compute_function_totals, select_heaviest_calls
from tracekit.errors import MissingTableError
from tracekit.exporters.stacks.profile import EVENTS, StackSelection, has_stacks, read_profile

if TYPE_CHECKING:
    from tracekit.core.figures import FigureInputs
    from tracekit.registry.interface import View


def list_events_with_stacks(view: View) -> list[str]:
    """Return the names of the events that have call stacks in a trace, such as ``cpu_samples``."""
    return [name for name in EVENTS if has_stacks(view.tables, name)]


def stacks(inputs: FigureInputs, *, nodes: int, weight: str, **options: Any) -> pl.DataFrame:
    """Return the heaviest call stacks as a tree."""
    tree = select_heaviest_calls(_read_call_tree(inputs, weight=weight, **options), nodes)
    if tree.is_empty():
        raise MissingTableError("the capture has no call stacks of the selected events")
    return tree.with_columns(weight=pl.lit(weight))


def functions(inputs: FigureInputs, **options: Any) -> pl.DataFrame:
    """Return the weight of each function in call stacks."""
    return compute_function_totals(_read_call_tree(inputs, **options))


def _read_call_tree(inputs: FigureInputs, *, events: str | None, **options: Any) -> CallTree:
    if events is None and not list_events_with_stacks(inputs.view):
        raise MissingTableError("the capture has no call stacks")
    profile = read_profile(inputs.view.tables, StackSelection(events=events, **options))
    own = np.zeros(len(profile.parents), np.int64)
    own[profile.weights["node"].to_numpy()] = profile.weights["weight"].to_numpy()
    rows = pl.DataFrame({"name": profile.functions, "module": profile.modules})
    return CallTree(profile.parents, profile.depths, profile.labels, own, rows)
