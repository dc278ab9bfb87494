"""Convert summaries to JSON values and back. The JSON values are validated, because the file may be untrusted.

A baseline of one capture contains its summary. A baseline of several runs contains a list of summaries, and has another
version, so that earlier versions of tracekit reject it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import polars as pl

from tracekit.core.compare.summary import KINDS, MAX_UNITS, SAMPLES, Summary
from tracekit.errors import CorruptTraceError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FORMAT = "tracekit-baseline"
VERSION, VERSION_OF_RUNS = 2, 3
MAX_RUNS = 1000
"""Maximum number of runs in a baseline."""
_NUMBERS = ("unit", "count", "time_ns", "bytes", "max_ns")
_NULLABLE = ("unit", "bytes", "max_ns")
_MAX_FACTS, _MAX_FACT = 64, 1 << 12
_MAX_TOTAL = 1 << 62
"""Limit for the sums of the columns, so that differences between two baselines are Int64."""


def encode_summary(summary: Summary) -> dict[str, Any]:
    """Convert a summary to JSON values.

    The value ``names`` lists the distinct pairs of a kind and a name. For each sample, the value ``row`` contains the
    position of its pair in this list.
    """
    rows = summary.samples
    names = rows.select("kind", "name").unique(maintain_order=True).with_row_index("row")
    numbered = rows.join(names, on=["kind", "name"], how="left", nulls_equal=True, maintain_order="left")
    return {
        "format": FORMAT,
        "version": VERSION,
        "facts": dict(summary.facts),
        "units": list(summary.units),
        "names": [[kind, name] for _, kind, name in names.iter_rows()],
        "row": numbered["row"].to_list(),
        **{column: numbered[column].to_list() for column in _NUMBERS},
    }


def decode_summary(value: object) -> Summary:
    """Validate JSON values in the form that ``encode_summary`` returns, and convert them to a summary.

    Raises:
        CorruptTraceError: The values do not represent a baseline.
        UnsupportedVersionError: The baseline was written by a newer version.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise CorruptTraceError(
            "the file is not a tracekit baseline", hint="choose a file that tracekit diff --save wrote"
        )
    version = _parse_version(value)
    if version == VERSION_OF_RUNS:
        raise UnsupportedVersionError(
            "the baseline contains runs for tracekit check, not one capture",
            hint="compare it with tracekit check",
        )
    units = _parse_units(value.get("units"))
    samples = _parse_samples(value, len(units), version)
    return Summary(samples, units, _parse_facts(value.get("facts")))


def encode_runs(runs: Sequence[Summary]) -> dict[str, Any]:
    """Convert the summaries of several runs to JSON values."""
    return {"format": FORMAT, "version": VERSION_OF_RUNS, "runs": [encode_summary(run) for run in runs]}


def decode_runs(value: object) -> list[Summary]:
    """Validate JSON values in the form that ``encode_runs`` or ``encode_summary`` returns, and convert them to runs.

    Raises:
        CorruptTraceError: The values do not represent a baseline.
        UnsupportedVersionError: The baseline was written by a newer version.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT or _parse_version(value) != VERSION_OF_RUNS:
        return [decode_summary(value)]
    runs = value.get("runs")
    if not isinstance(runs, list) or not 0 < len(runs) <= MAX_RUNS:
        raise _create_damaged_baseline_error(f'"runs" in the baseline must be a list of 1 to {MAX_RUNS:,} runs')
    return [decode_summary(run) for run in runs]


def _parse_version(value: dict[str, Any]) -> int:
    """Parse and check the version of a baseline."""
    version = value.get("version")
    if not _is_integer(version) or version < 1:
        raise _create_damaged_baseline_error('"version" in the baseline must be a positive integer')
    if version > VERSION_OF_RUNS:
        message = f"the baseline has version {version}, but only versions up to {VERSION_OF_RUNS} are supported"
        raise UnsupportedVersionError(message, hint="use a newer version of tracekit")
    return version


def _create_damaged_baseline_error(message: str) -> CorruptTraceError:
    return CorruptTraceError(message, hint="save the baseline again with tracekit diff --save")


def _parse_facts(value: object) -> dict[str, str]:
    """Parse and check the facts about a capture in a baseline. All keys and values must be short strings."""
    if not isinstance(value, dict) or len(value) > _MAX_FACTS:
        raise _create_damaged_baseline_error(
            f'"facts" in the baseline must be an object with at most {_MAX_FACTS} members'
        )
    for text in (*value, *value.values()):
        if not isinstance(text, str) or len(text) > _MAX_FACT or not _is_valid_unicode(text):
            raise _create_damaged_baseline_error(
                f'each key and value of "facts" in the baseline must be a string of at most {_MAX_FACT:,} characters'
            )
    return value


def _parse_units(value: object) -> tuple[int, ...]:
    """Parse and check the member ``units`` of a baseline: the number of iterations in each unit."""
    if not isinstance(value, list) or len(value) > MAX_UNITS:
        raise _create_damaged_baseline_error(f'"units" in the baseline must be a list of at most {MAX_UNITS} integers')
    if not all(_is_integer(n) and 0 < n < _MAX_TOTAL // MAX_UNITS for n in value):
        raise _create_damaged_baseline_error(
            'each value in "units" of the baseline must be a positive integer: the number of iterations in the unit'
        )
    return tuple(value)


def _parse_samples(value: dict[str, Any], unit_count: int, version: int) -> pl.DataFrame:
    """Parse and check the samples of a baseline. No two samples may have the same kind, name and unit."""
    names = _parse_names(value.get("names"))
    row = _parse_column(value, "row", None, len(names))
    limits = {"unit": unit_count, "count": _MAX_TOTAL, "time_ns": _MAX_TOTAL, "bytes": _MAX_TOTAL, "max_ns": _MAX_TOTAL}
    if version == 1:
        value = {**value, "max_ns": [None] * len(row)}
    columns = {name: _parse_column(value, name, len(row), limit) for name, limit in limits.items()}
    samples = names.select(pl.all().gather(row)).with_columns(columns.values()).select(list(SAMPLES))
    if samples.select("kind", "name", "unit").is_duplicated().any():
        raise _create_damaged_baseline_error(
            'two entries of the baseline have the same "row" (kind and name) and the same "unit"'
        )
    for name in ("count", "time_ns", "bytes"):
        if sum(samples[name].drop_nulls().to_list()) >= _MAX_TOTAL:
            raise _create_damaged_baseline_error(
                f'the sum of the values in "{name}" of the baseline must be below {_MAX_TOTAL:,}'
            )
    return samples


def _parse_names(value: object) -> pl.DataFrame:
    """Parse and check the names of a baseline, and return one row per pair of a kind and a name."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):  # noqa: PLR2004
        raise _create_damaged_baseline_error('"names" in the baseline must be a list of pairs of a kind and a name')
    kinds, names = [pair[0] for pair in value], [pair[1] for pair in value]
    if not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise _create_damaged_baseline_error(
            f'the first value of each pair in "names" of the baseline must be a kind: {", ".join(KINDS)}'
        )
    if not all(name is None or (isinstance(name, str) and _is_valid_unicode(name)) for name in names):
        raise _create_damaged_baseline_error(
            'the second value of each pair in "names" of the baseline must be a string or null'
        )
    return pl.DataFrame({"kind": kinds, "name": names}, schema={"kind": SAMPLES["kind"], "name": SAMPLES["name"]})


def _parse_column(value: dict[str, Any], name: str, length: int | None, limit: int) -> pl.Series:
    """Parse and check a column of a baseline. Its values must be integers of at least 0 and below a limit, or null."""
    numbers = value.get(name)
    if not isinstance(numbers, list) or (length is not None and len(numbers) != length):
        raise _create_damaged_baseline_error(
            f'"{name}" in the baseline must be a list with one value per sample, of the same length as "row"'
        )
    if not _are_valid_numbers(numbers, limit, nullable=name in _NULLABLE):
        expected = "null or an integer" if name in _NULLABLE else "an integer"
        raise _create_damaged_baseline_error(
            f'each value in "{name}" of the baseline must be {expected} of at least 0 and below {limit:,}'
        )
    return pl.Series(name, numbers, dtype=pl.Int64)


def _are_valid_numbers(values: Sequence[object], limit: int, *, nullable: bool) -> bool:
    present: Iterable[object] = (v for v in values if v is not None) if nullable else values
    return all(_is_integer(v) and 0 <= v < limit for v in present)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_valid_unicode(text: str) -> bool:
    """Return whether a string can be encoded as UTF-8. JSON also allows lone surrogates, which cannot be encoded."""
    return not any("\ud800" <= c <= "\udfff" for c in text) if not text.isascii() else True
