"""Apply rules that find performance problems.

The rules of ``nsys analyze`` list the same rows as nsys. Other rules exist only in tracekit.

To add a rule, write a function decorated with ``@rule`` in the module of its subject, and add its name to ``RULES``
below, or to ``EXTRA_RULES`` if nsys does not have the rule.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from tracekit.core.analyze.rule import Option, Request, Rule
from tracekit.core.select import row_condition_expr
from tracekit.errors import UnknownFormatError, create_choices_hint

if TYPE_CHECKING:
    import polars as pl

    from tracekit.core.reports import Frames, ReportTable
    from tracekit.core.reports.report import Prefetch
    from tracekit.core.rollup import Rollup

__all__ = [
    "ALL_RULES",
    "EXTRA_RULES",
    "OF_STEPS",
    "RULES",
    "Option",
    "Rule",
    "apply_rule",
    "find_rule",
    "is_known_rule",
]

RULES = {
    "cuda_memcpy_async": "cuda",
    "cuda_memcpy_sync": "cuda",
    "cuda_memset_sync": "cuda",
    "cuda_api_sync": "cuda",
    "gpu_gaps": "gpu",
    "gpu_time_util": "gpu",
    "dx12_mem_ops": "dx12",
}
"""The rules that nsys also has: a mapping from the name of each rule to the module that declares it."""

EXTRA_RULES = {"gpu_idle_causes": "idle", "gpu_idle_gaps": "idle"}
"""The rules that nsys does not have: a mapping from the name of each rule to the module that declares it."""

OF_STEPS = tuple(EXTRA_RULES)
"""The rules about the steady steps, for which the roll-up of the trace is used."""

ALL_RULES = {**RULES, **EXTRA_RULES}
TIME_OPTIONS = ("start", "end")
"""Options that every rule has: the rule examines only events that overlap the time from ``start`` to ``end``, in ns."""

_MAX_TIME = (1 << 63) - 1


def find_rule(name: str) -> Rule:
    """Return the rule with the given name. The name must not contain options.

    Raises:
        UnknownFormatError: No rule has this name.
    """
    if name not in ALL_RULES:
        raise UnknownFormatError(f"unknown rule {name!r}", hint=create_choices_hint("rules", ALL_RULES, name))
    return cast("Rule", getattr(import_module(f"{__name__}.{ALL_RULES[name]}"), name))


def is_known_rule(name: str) -> bool:
    """Return whether a rule has the given name. Options after colons are ignored."""
    return name.partition(":")[0] in ALL_RULES


def apply_rule(
    frames: Frames, name: str, prefetch: Prefetch | None = None, rollup: Rollup | None = None
) -> ReportTable:
    """Apply a rule to the tables of a trace, and return the problems that it finds.

    Args:
        frames: Function that returns the declared table with a given name, such as ``Trace.frame``.
        name: Name of the rule, optionally followed by options, as in nsys: ``gpu_gaps:rows=10:gap=100``.
        prefetch: Function that is called with the computation before the computation runs. The function may read all
            data that the computation needs in one pass over the file.
        rollup: The roll-up of the trace for rules about its steps, or None for one with the default iterations.

    Returns:
        The rows that the rule found, the most important ones first. The table is empty if the rule found nothing.

    Raises:
        UnknownFormatError: The rule or one of the options is unknown, or the value of an option is not allowed. Despite
            its name, this error also reports invalid options.
    """
    base, *texts = name.split(":")
    rule = find_rule(base)
    values = dict(_parse_option(rule, text) for text in texts)
    window = (values.pop("start", None), values.pop("end", None))
    defaults = {option: declared.default for option, declared in rule.options.items()}
    request = Request(frames, {**defaults, **values}, rollup if window == (None, None) else None)
    if prefetch is not None and request.rollup is None:
        prefetch(lambda tables: rule(replace(request, frames=_restrict_frames_to_window(tables, window))))
    rows = rule(replace(request, frames=_restrict_frames_to_window(frames, window)))
    return replace(rows, standard_quotes=base in EXTRA_RULES)


def _parse_option(rule: Rule, text: str) -> tuple[str, int]:
    """Parse an option ``NAME=VALUE`` of a rule, and return the name and the value of the option."""
    name, equals, value = text.partition("=")
    if name not in rule.options and name not in TIME_OPTIONS:
        hint = create_choices_hint("options", [*rule.options, *TIME_OPTIONS], name)
        raise UnknownFormatError(f"rule {rule.name!r} has no option {name!r}", hint=hint)
    option = rule.options.get(name, Option(0, "", maximum=_MAX_TIME))
    if not equals or not re.fullmatch(r"-?[0-9]{1,19}", value) or not _is_valid_value(option, int(value)):
        limits = (
            f"of at least {option.minimum}" if option.maximum is None else f"from {option.minimum} to {option.maximum}"
        )
        hint = f"{name} must be an integer {limits}"
        raise UnknownFormatError(f"rule {rule.name!r}: {text!r} is not a valid option", hint=hint)
    return name, int(value)


def _is_valid_value(option: Option, value: int) -> bool:
    return option.minimum <= value <= (_MAX_TIME if option.maximum is None else option.maximum)


def _restrict_frames_to_window(frames: Frames, window: tuple[int | None, int | None]) -> Frames:
    """Return a version of ``frames`` whose tables contain only the rows that overlap a time window."""
    if window == (None, None):
        return frames

    def read_table_in_window(name: str) -> pl.LazyFrame:
        rows = frames(name)
        condition = row_condition_expr(rows.collect_schema().names(), time=window)
        return rows if condition is None else rows.filter(condition)

    return read_table_in_window
