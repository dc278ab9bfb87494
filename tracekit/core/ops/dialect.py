"""What a dialect is: how one framework writes its ops into NVTX ranges, and what it makes of them.

A dialect is one module that ends in ``DIALECT = Dialect(...)`` and is named in ``tracekit.core.ops.DIALECTS``. It
turns the ranges of a capture into a ``Timeline``: one row a call of an op. What comes after is the same for all
dialects: calls of CUDA are attached to the instances (``attach``), instances are folded to ops and these are numbered
(``identity``).

To write one:

1. ``recognises`` is given the distinct texts of the capture, and says whether they are of this dialect.
2. ``timeline`` is given the ``Capture`` and returns instances with the columns of ``INSTANCE``; those it does not know
   are left to ``instances``, which adds them as nulls and puts the rows in order.
3. Texts are parsed once a distinct text (``by_text``), never once a range; nothing is ever evaluated.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from tracekit.core import trees
from tracekit.core.correlate import THREAD, Ranges
from tracekit.core.forests import any_ancestor, depths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.core.correlate import Frames

INSTANCE: dict[str, Any] = {
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "process_id": pl.Int64(),
    "thread_id": pl.Int64(),
    "range_id": pl.Int64(),
    "parent": pl.Int64(),
    "op_name": pl.Categorical(),
    "op_type": pl.Categorical(),
    "direction": pl.Categorical(),
    "stack_trace": pl.Categorical(),
    "data_type": pl.Categorical(),
    "input_names": pl.Categorical(),
    "input_shapes": pl.Categorical(),
    "parameters": pl.Categorical(),
    "sequence_number": pl.Int64(),
    "forward": pl.Int64(),
    "ends_pass": pl.Boolean(),
    "node": pl.Int64(),
}
"""Columns of a timeline.

``parent`` and ``forward`` are rows of the same frame: the instance around this one on its thread, and the instance of
the forward pass that this one is the backward pass of. ``op_name`` is a path, ``/`` between its parts. ``input_names``,
``input_shapes`` and ``parameters`` are JSON without spaces. ``ends_pass`` marks the op that computes all gradients.
``node`` is the place of the op in the tree of the timeline; where it is null, the parts of ``op_name`` are the place.
"""


@dataclass(frozen=True)
class Timeline:
    """Calls of ops as a dialect sees them.

    Attributes:
        instances: One row a call: the columns of ``INSTANCE``, in order of start; of equal starts the longest first.
        folding: What makes calls instances of one op. ``path``: the same op name. ``occurrence``: the same op name and
            stack trace, and being the k-th such call since the backward op before it.
        described: Whether shapes and parameters are the arguments of the call, in order, so that its result follows.
        config: What the program recorded of its own settings, by name.
        tree: The tree of op names, if instances have a ``node``: a "/" in the text of a range is no level of it.
    """

    instances: pl.DataFrame
    folding: Literal["path", "occurrence"] = "path"
    described: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    tree: trees.Tree | None = None


@dataclass(frozen=True)
class Capture:
    """The tables of a capture, and what several dialects need of them; found once and kept."""

    frames: Frames

    @functools.cached_property
    def ranges(self) -> pl.DataFrame:
        """The push/pop ranges in the order of the file: ``INSTANCE`` to ``range_id``, ``domain``, ``text``.

        A range that was never closed ends with the last thing that was recorded.
        """
        columns = ["start_ns", "end_ns", *THREAD, "range_id", "domain", pl.col("name").alias("text")]
        found = self.frames("nvtx_ranges").filter(pl.col("kind") == "push_pop").select(columns).collect()
        return found.with_columns(pl.col("end_ns").fill_null(self.last_ns))

    @functools.cached_property
    def texts(self) -> pl.DataFrame:
        """The distinct texts of push/pop ranges: ``domain`` and ``text``, both String."""
        return self.ranges.select("domain", "text").unique(maintain_order=True).cast(pl.String)

    @functools.cached_property
    def nested(self) -> Ranges:
        """The ranges as a forest, in the order of ``ranges``."""
        return Ranges(self.frames)

    @functools.cached_property
    def last_ns(self) -> int:
        """When the last range or call ended."""
        ends = [self.frames(t).select(pl.max_horizontal(pl.col("start_ns", "end_ns").max())) for t in _TIMED]
        found = pl.concat([e.collect().to_series().alias("end") for e in ends]).max()
        return found if isinstance(found, int) else 0

    def of_texts(self, texts: pl.Series) -> pl.DataFrame:
        """The push/pop ranges with one of these texts, in order of start; of equal starts the longest first."""
        chosen = self.ranges.filter(pl.col("text").is_in(texts.cast(pl.Categorical).implode()))
        return chosen.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


_TIMED = ("nvtx_ranges", "api_calls")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a framework writes ops into NVTX ranges.

    Attributes:
        name: Kebab-case name, as given to ``--dialect``.
        doc: One line that says whose ranges these are.
        recognises: Whether the distinct texts (``Capture.texts``) hold ranges of this dialect.
        timeline: Makes the instances.
        key_op: What ends an iteration unless told: the op of the ``backward`` pass, or what ``repeats``.
    """

    name: str
    doc: str
    recognises: Callable[[pl.DataFrame], bool]
    timeline: Callable[[Capture], Timeline]
    key_op: Literal["backward", "repeats"] = "repeats"


def instances(found: pl.DataFrame) -> pl.DataFrame:
    """Complete a timeline: n rows in, n rows out in order, with the columns of ``INSTANCE``; those missing are null.

    Args:
        found: ``start_ns``, ``end_ns``, ``process_id``, ``thread_id``, ``op_name``, ``op_type`` and what else is known;
            ``parent`` and ``forward`` are rows of this frame and follow the rows to their places.
    """
    empty = [pl.lit(None, t).alias(c) for c, t in INSTANCE.items() if c not in found.columns]
    whole = found.with_columns(*empty).select(pl.col(c).cast(t) for c, t in INSTANCE.items())
    whole = whole.with_columns(pl.col("ends_pass").fill_null(False))  # noqa: FBT003
    order = whole.select(
        pl.arg_sort_by("start_ns", -pl.col("end_ns"), pl.int_range(pl.len())).cast(pl.Int64)
    ).to_series()
    place = pl.repeat(0, len(order), dtype=pl.Int64, eager=True).scatter(order, pl.int_range(len(order), eager=True))
    moved = whole.select(pl.all().gather(order))
    return moved.with_columns(place.gather(moved[c]).alias(c) for c in ("parent", "forward"))


def by_text(ranges: pl.DataFrame, parsed: pl.DataFrame) -> pl.DataFrame:
    """Add to ranges what was parsed of their texts: n rows in, n rows out in their order.

    Args:
        ranges: Column ``text`` (Categorical).
        parsed: Column ``text`` (String), each text once, and what was made of it.
    """
    known = parsed.with_columns(pl.col("text").cast(pl.Categorical))
    return ranges.join(known, on="text", how="left", maintain_order="left")


_NUMBERED = r"^(.*[^\s:=#\[(])[\s:=#\[(]+\d+[\])]?$"
_STEP = r"(?i)^(?:.*\W)?(?:step|iter|iteration|batch|epoch)s?$"


def path_parts(parent: pl.Series, texts: pl.Series) -> tuple[trees.Tree, pl.DataFrame]:
    """Make op names of nested ranges, in which steps of a loop are the same.

    Outermost ranges that are called by a number, ``Batch 7``, count steps, and so do those in them that are called
    steps, iterations, batches or epochs: the number becomes ``*`` if there are several. Other numbers tell layers
    apart, and stay.

    Args:
        parent: Row of the parent of each range, null for an outermost one.
        texts: Text of each range.

    Returns:
        The tree of labels, and n rows in, n rows out: ``label`` (String), ``path`` (Categorical), ``node``.
    """
    known = texts.unique().to_frame("text").drop_nulls()
    step = pl.col("text").cast(pl.String).str.extract(_NUMBERED)
    labels = texts.to_frame("text").join(known.with_columns(step=step), on="text", how="left", maintain_order="left")
    inner = parent.is_not_null() & ~labels["step"].str.contains(_STEP).fill_null(False)  # noqa: FBT003
    layer = any_ancestor(parent, labels["step"].is_null() | inner)
    counted = labels.filter(~layer).group_by("step").agg(several=pl.col("text").n_unique() > 1)
    labels = labels.join(counted, on="step", how="left", maintain_order="left")
    counts = pl.col("several").fill_null(value=False) & ~layer
    label = pl.when(counts).then(pl.col("step") + " *").otherwise(pl.col("text").cast(pl.String).fill_null(""))
    made = labels.select(label=label)
    tree, nodes = trees.of_ranges(parent, depths(parent), made["label"].cast(pl.Categorical))
    return tree, made.with_columns(path=tree.paths().cast(pl.Categorical).gather(nodes), node=nodes)
