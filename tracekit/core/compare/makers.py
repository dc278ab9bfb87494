"""Compare GPUs of different makers: which names are comparable, and which are not.

The same op of a model runs other kernels on GPUs of another maker, and is launched by other API calls. Its name is
the same, except for the library or the kernel of one maker that it may name.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit.core.compare.names import normalize_names_expr
from tracekit.core.compare.summary import KINDS
from tracekit.text.makers import list_makers

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.core.compare.summary import Summary

_DEFAULT = tuple(kind for kind in KINDS if kind not in ("op_kernels", "categories"))
_ACROSS = tuple(kind for kind in KINDS if kind not in ("kernels", "api"))
_OP_KINDS = ("ops", "groups", "op_kernels", "nvtx", "nvtx_gpu")


def have_different_makers(a: Summary, b: Summary) -> bool:
    """Return whether it is known that the GPUs of two summaries have different makers."""
    before, after = _list_makers(a), _list_makers(b)
    return bool(before and after) and before != after


def _list_makers(summary: Summary) -> tuple[str, ...]:
    """Return the makers of the GPUs of a summary. It is empty if they are unknown."""
    return list_makers([summary.facts.get("gpus", "")])


def choose_kinds(a: Summary, b: Summary) -> tuple[str, ...]:
    """Return the kinds of rows that two summaries are compared by if none are chosen.

    Kernels of different makers are compared by op and by category, and their API calls not at all.
    """
    return _ACROSS if have_different_makers(a, b) else _DEFAULT


def use_common_names(summary: Summary) -> Summary:
    """Return a summary in whose names of ops no library or kernel of one maker occurs."""
    if summary.facts.get("names"):
        return summary
    return summary.rename(functools.partial(normalize_names_expr, rules="maker"), _OP_KINDS)


def describe_differences(a: Summary, b: Summary, kinds: Collection[str]) -> tuple[str, ...]:
    """Return sentences that state what cannot be compared because the GPUs have different makers."""
    if not have_different_makers(a, b):
        return ()
    makers = f"{', '.join(_list_makers(a))} (A), {', '.join(_list_makers(b))} (B)"
    differ = f"the makers of the GPUs differ: {makers}; names of ops are compared without the names of their libraries"
    by_op = "kernels are compared by the op that launched them and by category; API calls cannot be compared"
    by_name = "names of kernels and API calls differ between makers; --by op_kernels,categories compares kernels"
    return differ, by_name if {"kernels", "api"} & {*kinds} else by_op
