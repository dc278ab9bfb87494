"""Keep the runs of checks in a folder of Parquet files, and read them back.

Each check adds one file, which is complete or absent. Files are never changed or deleted, so several checks can add
files at the same time. A file contains the names, counts and times of the runs, and no names of files, users or
machines.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import CorruptTraceError, ExportError, TracekitError
from tracekit.sets.recipe_files import read_parquet_table
from tracekit.system import targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl

    from tracekit.core.check import Check
    from tracekit.core.compare import Summary

MAX_FILES = 200
"""Number of files that are read, the latest ones."""
_WHAT, _HINT = "the file of the history", "move the file to another folder"
_SIDES = ("A", "B")
_PREFIX, _SUFFIX = "check-", ".parquet"
_RUN = ("side", "run", "run_id", "iterations")
_SAMPLES = ("kind", "name", "is_inside", "count", "time_ns", "bytes")
_FACTS = ("gpus", "key_op", "names")
"""Facts by which runs are comparable."""


def add_to_history(folder: str | os.PathLike[str], check: Check, a: Sequence[Summary], b: Sequence[Summary]) -> Path:
    """Add the runs of a check to a history, and return the path of the new file.

    Args:
        folder: Folder of the history. It is created if it does not exist.
        check: The result of the check, whose verdict is kept.
        a: The runs of A.
        b: The runs of B.

    Raises:
        ExportError: The file cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as e:
        raise ExportError(f"the folder cannot be created: {e.strerror}", path=folder, hint="choose another") from e
    now = dt.datetime.now(dt.UTC)
    path = folder / f"{_PREFIX}{now:%Y%m%dT%H%M%S%fZ}-{secrets.token_hex(4)}{_SUFFIX}"
    rows = _build_rows(now, check, {"A": a, "B": b})
    with targets.open_atomic_output(path) as new:
        rows.write_parquet(new)
    return path


def _build_rows(now: dt.datetime, check: Check, sides: Mapping[str, Sequence[Summary]]) -> pl.DataFrame:
    """Return one row per kind and name of each run."""
    import polars as pl

    from tracekit.core.check import compute_run_id

    step = check.step
    frames = []
    for side, runs in sides.items():
        for number, run in enumerate(runs):
            samples = run.samples.select(
                "kind",
                pl.col("name").cast(pl.String),
                pl.col("unit").is_not_null().alias("is_inside"),
                *("count", "time_ns", "bytes"),
            )
            constants = {
                "checked_at": pl.lit(now, pl.Datetime("us", "UTC")),
                "verdict": pl.lit(check.verdict),
                "change_percent": pl.lit(None if step is None else step.change_percent, pl.Float64),
                "side": pl.lit(side),
                "run": pl.lit(number, pl.Int64),
                "run_id": pl.lit(compute_run_id(run)),
                "iterations": pl.lit(run.iterations, pl.Int64),
                **{fact: pl.lit(run.facts.get(fact), pl.String) for fact in _FACTS},
            }
            frames.append(samples.select(*(e.alias(name) for name, e in constants.items()), pl.all()))
    return pl.concat(frames) if frames else pl.DataFrame()


def read_history(folder: str | os.PathLike[str]) -> list[dict[str, list[Summary]]]:
    """Return the runs of earlier checks, the latest check last, by side A and B.

    A run that occurs in several checks, such as one of a baseline, is returned only once. Other files in the folder are
    ignored.

    Raises:
        CorruptTraceError: A file of the history is damaged.
    """
    try:
        names = sorted(n for n in os.listdir(folder) if n.startswith(_PREFIX) and n.endswith(_SUFFIX))  # noqa: PTH208
    except FileNotFoundError:
        return []
    except OSError as e:
        raise TracekitError(f"the history cannot be read: {e.strerror}", path=folder, hint="pass a folder") from e
    seen: set[str] = set()
    checks = []
    for name in names[-MAX_FILES:]:
        sides: dict[str, list[Summary]] = {}
        for side, run_id, run in _read_file(Path(folder) / name):
            if run_id not in seen and side in _SIDES:
                seen.add(run_id)
                sides.setdefault(side, []).append(run)
        checks.append(sides)
    return checks


def _read_file(path: Path) -> Iterator[tuple[str, str, Summary]]:
    """Yield the side, the id and the summary of each run in a file of a history.

    Raises:
        CorruptTraceError: The file is damaged.
    """
    from tracekit.core.check import compute_run_id
    from tracekit.core.compare import baseline

    rows = read_parquet_table(path, _WHAT)
    if not rows.columns:
        return
    if missing := [name for name in (*_RUN, *_FACTS, *_SAMPLES) if name not in rows.columns]:
        raise CorruptTraceError(f"{_WHAT} has no column {missing[0]}", path=path, hint=_HINT)
    _check_types(rows, path)
    for (side, _), run_rows in rows.group_by("side", "run", maintain_order=True):
        try:
            run = baseline.decode_summary(_convert_to_json(run_rows))
        except TracekitError as e:
            raise CorruptTraceError(f"{_WHAT} is damaged: {e.message}", path=path, hint=_HINT) from None
        yield str(side), compute_run_id(run), run


def _check_types(rows: pl.DataFrame, path: Path) -> None:
    """Check that the columns of texts contain texts, and the column ``is_inside`` a boolean in each row.

    The values of numbers are checked as those of a baseline.

    Raises:
        CorruptTraceError: A column has another type.
    """
    import polars as pl

    texts: list[type[pl.DataType]] = [pl.String, pl.Categorical, pl.Null]
    types: dict[str, list[type[pl.DataType]]] = {
        "is_inside": [pl.Boolean],
        **dict.fromkeys(("side", "kind", "name", *_FACTS), texts),
    }
    for name, allowed in types.items():
        if rows.schema[name] not in allowed:
            message = f"{_WHAT} is damaged: the column {name} contains values of the type {rows.schema[name]}"
            raise CorruptTraceError(message, path=path, hint=_HINT)
    if rows["is_inside"].null_count():
        raise CorruptTraceError(f"{_WHAT} is damaged: the column is_inside has nulls", path=path, hint=_HINT)


def _convert_to_json(rows: pl.DataFrame) -> dict[str, Any]:
    """Return the rows of a run in the form of a baseline, whose values are then validated."""
    from tracekit.core.compare import baseline

    columns = {name: rows[name].to_list() for name in (*_SAMPLES, *_FACTS, "iterations")}
    iterations = columns["iterations"][0]
    pairs = dict.fromkeys(zip(columns["kind"], columns["name"], strict=True))
    at = {pair: i for i, pair in enumerate(pairs)}
    return {
        "format": baseline.FORMAT,
        "version": baseline.VERSION,
        "facts": {fact: columns[fact][0] for fact in _FACTS if columns[fact][0] is not None},
        "units": [iterations] if iterations else [],
        "names": [list(pair) for pair in pairs],
        "row": [at[pair] for pair in zip(columns["kind"], columns["name"], strict=True)],
        "unit": [0 if inside else None for inside in columns["is_inside"]],
        **{name: columns[name] for name in ("count", "time_ns", "bytes")},
        "max_ns": [None] * rows.height,
    }
