"""Ops: what the ranges of a framework say it called, and what each call did on the CPU and on the GPU.

``dialect`` says what a dialect is; each one is a module. ``calls`` pairs calls of CUDA with GPU activities, ``attach``
gives them to op instances, ``identity`` folds instances to ops and numbers them, ``shapes`` knows what some ops return.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.ops import emit_nvtx, identity, nccl, plain, pyprof, tensorflow, tensorrt, xla
from tracekit.core.ops.attach import owners
from tracekit.core.ops.calls import calls
from tracekit.core.ops.dialect import INSTANCE, Capture, Dialect, Timeline
from tracekit.errors import UnknownFormatError, choices_hint

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames

__all__ = ["DIALECTS", "Capture", "Dialect", "Ops", "Timeline", "dialect"]

_MODULES = (pyprof, emit_nvtx, tensorflow, tensorrt, xla, nccl, plain)
DIALECTS: dict[str, Dialect] = {m.DIALECT.name: m.DIALECT for m in _MODULES}
"""The dialects, in the order in which they are tried; the last one recognises everything."""

UNASSOCIATED = "unassociated_"


def dialect(name: str) -> Dialect:
    """Return a dialect.

    Raises:
        UnknownFormatError: There is none of that name.
    """
    try:
        return DIALECTS[name]
    except KeyError:
        raise UnknownFormatError(
            f"no dialect is called {name!r}", hint=choices_hint("dialects", DIALECTS, name)
        ) from None


@dataclass(frozen=True)
class Ops:
    """The ops of one capture; what several tables need is found once and kept.

    Attributes:
        frames: Gives a declared table by name.
        name: Name of the dialect; None takes the first that recognises the ranges.
    """

    frames: Frames
    name: str | None = None

    @functools.cached_property
    def capture(self) -> Capture:
        """The tables, as dialects see them."""
        return Capture(self.frames)

    @functools.cached_property
    def dialect(self) -> Dialect:
        """The dialect of the capture."""
        if self.name is not None:
            return dialect(self.name)
        return next(d for d in DIALECTS.values() if d.recognises(self.capture.texts))

    @functools.cached_property
    def timeline(self) -> Timeline:
        """The instances that the ranges tell of."""
        return self.dialect.timeline(self.capture)

    @functools.cached_property
    def calls(self) -> pl.DataFrame:
        """The calls that belong to an instance: columns of ``calls.calls`` and ``instance``, in order of the calls."""
        return self._attached[1]

    @functools.cached_property
    def instances(self) -> pl.DataFrame:
        """Every instance, unassociated ones last: ``INSTANCE``, ``associated``, ``op`` (row of ``ops``), ``index``.

        ``index`` is the number of the instance within its op, from 0, in order of start. Its type is that of the op.
        """
        return self._folded[0]

    @functools.cached_property
    def ops(self) -> pl.DataFrame:
        """The ops, in order of name and id: ``op_id`` and what their first instance says of them.

        Columns: ``op_id``, ``op_name``, ``op_type``, ``direction``, ``data_type``, ``stack_trace``, ``input_shapes``,
        ``parameters``, ``node``, ``ends_pass``, ``associated``, ``instance_count``.
        """
        return self._folded[1]

    @functools.cached_property
    def _attached(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Instances with the unassociated ones, and the calls with their instance."""
        rows = calls(self.frames)
        made = rows.unique("call", keep="first", maintain_order=True)
        works = made.with_columns(works=pl.col("kind") != "call")
        found = owners(works, self.timeline.instances).with_columns(row=pl.int_range(pl.len()))
        makers = made.filter(found["made_by"] == found["row"]).sort("call_id", descending=True)
        alone = _unassociated(makers)
        first = self.timeline.instances.height
        numbers = pl.repeat(None, made.height, dtype=pl.Int64, eager=True)
        numbers = numbers.scatter(makers["call"], pl.int_range(makers.height, eager=True) + first)
        instance = found.select(pl.coalesce("instance", numbers.gather(found["made_by"]).alias("made"))).to_series()
        whole = pl.concat([self.timeline.instances, alone])
        associated = pl.int_range(pl.len()) < first
        with_instance = rows.with_columns(instance=instance.gather(rows["call"])).drop_nulls("instance")
        return whole.with_columns(associated=associated), with_instance

    @functools.cached_property
    def _folded(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        whole, _ = self._attached
        rows = whole.hstack(identity.fold(whole, self.timeline.folding)).with_row_index("row")
        walked = rows.sort("start_ns", maintain_order=True)
        said = ["op_name", "op_type", "direction", "data_type", "stack_trace", "input_shapes", "parameters", "node"]
        first = walked.group_by("op", maintain_order=True).agg(
            pl.col("op_id", *said, "ends_pass", "associated").first(), pl.len().cast(pl.Int64).alias("instance_count")
        )
        ordered = first.sort(pl.col("op_name").cast(pl.String), "op_id")
        place = pl.repeat(0, ordered.height, dtype=pl.Int64, eager=True)
        place = place.scatter(ordered["op"], pl.int_range(ordered.height, eager=True))
        counted = walked.with_columns(index=pl.int_range(pl.len()).over("op")).sort("row")
        numbered = counted.drop("row", "op_id").with_columns(op=place.gather(counted["op"]))
        numbered = numbered.with_columns(op_type=ordered["op_type"].gather(numbered["op"]))
        return numbered, ordered.drop("op")


def _unassociated(makers: pl.DataFrame) -> pl.DataFrame:
    """Make an instance of each call that makes one: n rows in, n rows out, columns of ``INSTANCE``."""
    name = pl.col("name").cast(pl.String).fill_null("")
    known = {
        "op_name": UNASSOCIATED + name,
        "op_type": name,
        "stack_trace": pl.lit(""),
        "data_type": pl.lit(""),
        "ends_pass": pl.lit(value=False),
    }
    rows = makers.with_columns(**known)
    empty = [pl.lit(None, t).alias(c) for c, t in INSTANCE.items() if c not in rows.columns]
    return rows.with_columns(empty).select(pl.col(c).cast(t) for c, t in INSTANCE.items())
