"""Compute the intermediate frames of a DLProf database, and the ids of its strings and metrics."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof.model import MetricTable, ModelSummary
from tracekit.core.rollup import KERNEL_METRICS, METRICS
from tracekit.core.series import decode_categories_expr, spill_frame, string_ranks_expr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.core.rollup import Rollup

_OP_BITS, _ROW_BITS, _SLOT_BITS = 35, 3, 33
DOMAIN = "default-domain"
AXES = ["x", "y", "z"]
_KERNEL_METRICS = KERNEL_METRICS[::-1]
OP_STRINGS = (
    *("op_id", "op_type", "device", "data_type", "data_format", "output_format", "parameters_format", "direction"),
)
INSTANCE_STRINGS = ("input_names", "input_shapes", "output_names", "output_shapes", "parameters")


def find_first_use_positions(values: pl.Series, op_rows: pl.Series, section: int, index_in_row: int) -> pl.DataFrame:
    """Return the position at which DLProf first writes each distinct string.

    Args:
        values: One string per row, in the order in which DLProf writes them.
        op_rows: Row number of the op to which each string belongs.
        section: 0 for strings of ops, 1 for strings of op instances, 2 for strings of API calls.
        index_in_row: Index of the string within its row, from 0 to 7.

    Returns:
        One row per distinct string, in no particular order: ``string`` (String), ``position`` (an integer that
        increases in the order in which DLProf writes strings).
    """
    row = pl.int_range(pl.len())
    position = pl.col("op") * (1 << _OP_BITS) + (section << _SLOT_BITS) + row * (1 << _ROW_BITS) + index_in_row
    uses = pl.DataFrame({"string": values, "op": op_rows.cast(pl.Int64)}).select("string", position=position)
    return uses.group_by("string").agg(pl.col("position").min()).with_columns(pl.col("string").cast(pl.String))


@dataclass(frozen=True)
class StringDictionary:
    """The distinct strings of a DLProf database, in the order of their ids.

    Attributes:
        strings: The distinct strings. The id of a string is its row number plus 1.
    """

    strings: pl.Series

    @classmethod
    def build(
        cls, first_string: str, first_uses: Iterable[pl.DataFrame], last_strings: Iterable[pl.Series]
    ) -> StringDictionary:
        """Collect the distinct strings of a DLProf database in the order of their first use.

        Args:
            first_string: The string with id 1.
            first_uses: Strings after ``first_string``, with the positions of their first uses, as returned by
                ``find_first_use_positions``.
            last_strings: Strings after those of ``first_uses``, in order.
        """
        by_position = pl.concat(list(first_uses)).sort("position")["string"].drop_nulls()
        rest = [s.cast(pl.String) for s in last_strings]
        start = pl.Series([first_string], dtype=pl.String)
        return cls(pl.concat([start, by_position, *rest]).unique(maintain_order=True).alias("string"))

    def look_up_string_ids(self, values: pl.Series) -> pl.Series:
        """Return the id that each given string has in the table ``dictionary``. The id of a null is null."""
        entries = pl.DataFrame({"string": self.strings, "id": pl.int_range(1, len(self.strings) + 1, eager=True)})
        distinct = values.unique().to_frame("value").with_columns(string=pl.col("value").cast(pl.String))
        ids = distinct.join(entries, on="string", how="left").select("value", "id")
        return values.to_frame("value").join(ids, on="value", how="left", maintain_order="left")["id"]


@dataclass(frozen=True)
class DatabaseFrames:
    """The intermediate frames of a DLProf database. Each frame is computed on first access.

    Attributes:
        rollup: The roll-up from which the frames are computed.
    """

    rollup: Rollup

    @functools.cached_property
    def model(self) -> ModelSummary:
        """Statistics of the whole model over the aggregated iterations."""
        return ModelSummary(self.rollup)

    @functools.cached_property
    def strings(self) -> StringDictionary:
        """The dictionary of the DLProf database: the distinct strings of all tables, with ids."""
        key, ops = pl.Series([self.rollup.iterations.key]), self._ops_by_id
        names = ops.select(pl.concat_list(pl.col("op_id"), decode_categories_expr(pl.col("op_name"))).alias("string"))
        last = [key, self._groups["path"], names.explode("string")["string"]]
        return StringDictionary.build(DOMAIN, self._iterate_first_string_uses(), last)

    @functools.cached_property
    def metrics(self) -> MetricTable:
        """The rows of the table ``metric``: the distinct metrics of ops, groups, kernels and op types, with ids."""
        op_metrics = (*METRICS, *_KERNEL_METRICS)
        uses = [(self._ops_by_id, op_metrics), (self._groups, METRICS), (self._kernel_summaries, _KERNEL_METRICS)]
        return MetricTable.build([*uses, (self._op_types, METRICS)])

    @functools.cached_property
    def _ops(self) -> pl.DataFrame:
        """The ops in order of name and id. Missing strings are "", as in DLProf's databases."""
        blank = ("data_type", "data_format", "output_format", "parameters_format", "direction")
        strings = {c: pl.col(c).cast(pl.Categorical).fill_null(pl.lit("", pl.Categorical)) for c in (*blank, "op_type")}
        return self.rollup.ops.with_columns(**strings, device=pl.lit(""))

    @functools.cached_property
    def _ops_by_id(self) -> pl.DataFrame:
        """The ops in order of ``op_id``."""
        return self.rollup.ops.sort("op_id")

    @functools.cached_property
    def _groups(self) -> pl.DataFrame:
        """The group nodes without the root, which represents the whole model."""
        return self.rollup.dlprof_groups.filter(pl.col("level") > 0)

    @functools.cached_property
    def _op_types(self) -> pl.DataFrame:
        """The op types that have instances."""
        return self.rollup.op_types.filter(pl.col("count") > 0)

    @functools.cached_property
    def _kernel_summaries(self) -> pl.DataFrame:
        """One row per op and short kernel name, in order of ``op_id`` and name.

        DLProf identifies the kernels of an op by their short names.
        """
        rank = self._ops_by_id.select("op", rank=pl.int_range(pl.len()))
        return self.rollup.kernel_summaries.join(rank, on="op").sort("rank", string_ranks_expr(pl.col("name")))

    @functools.cached_property
    def _instances(self) -> pl.DataFrame:
        """The op instances in order of op and index. Strings are JSON with a trailing line break, as in DLProf."""
        rows = self.rollup.measures.instances.with_columns(
            output_shapes=self.rollup.measures.formats_and_output_shapes["output_shapes"]
        )
        names = pl.when(pl.col("output_shapes").is_not_null()).then(pl.lit('[""]', pl.Categorical))
        rows = rows.with_columns(output_names=names).sort("op", "index")
        return spill_frame(rows.with_columns(_append_line_breaks(rows[c]).alias(c) for c in INSTANCE_STRINGS))

    @functools.cached_property
    def _calls(self) -> pl.DataFrame:
        """The API calls of ops in the order in which DLProf writes them, with ``name_id`` (string id of the name)."""
        calls = self.rollup.calls
        rows = calls.with_columns(_replace_nulls_with_empty_strings(calls["name"]))
        ids = self.strings.look_up_string_ids(rows["name"]) if rows.height else pl.lit(0)
        return spill_frame(rows.with_columns(name_id=ids))

    @functools.cached_property
    def _kernels(self) -> pl.DataFrame:
        """The kernels of ops in the order in which DLProf writes them, with grid size, block size and name ids.

        A size that was not recorded is 0, because the columns of DLProf cannot be null.
        """
        rows, sizes = self._select_calls_and_activities(
            "kernel", "kernels", [f"{w}_{c}" for w in ("grid", "block") for c in AXES]
        )
        long_name_id = self.strings.look_up_string_ids(_replace_nulls_with_empty_strings(rows["long_name"]))
        return spill_frame(rows.hstack(sizes.fill_null(0)).with_columns(long_name_id=long_name_id))

    def _select_calls_and_activities(
        self, kind: str, table: str, columns: list[str]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the API calls that launched activities of one kind, and these activities.

        Args:
            kind: Kind of the activities, such as ``kernel``.
            table: Table of these activities, such as ``kernels``.
            columns: Columns of ``table`` that are returned.

        Returns:
            Two frames with one row per call, in the same order: the calls, and the columns of the activities.
        """
        rows = self._calls.filter(pl.col("kind") == kind)
        activities = self.rollup.measures.ops.frames(table).select(columns).collect()
        return rows, activities.select(pl.all().gather(rows["activity"]))

    @property
    def _key_op_name_id(self) -> int:
        return int(self.strings.look_up_string_ids(pl.Series([self.rollup.iterations.key]))[0])

    def _iterate_first_string_uses(self) -> Iterator[pl.DataFrame]:
        """Yield frames with the distinct strings of ops, op instances and API calls, and where each is first used."""
        for slot, c in enumerate(OP_STRINGS):
            yield find_first_use_positions(self._ops[c], self._ops["op"], 0, slot)
        for slot, c in enumerate(INSTANCE_STRINGS):
            yield find_first_use_positions(self._instances[c], self._instances["op"], 1, slot)
        calls = self.rollup.select_calls("name", "op", "kind", "long_name")
        yield find_first_use_positions(_replace_nulls_with_empty_strings(calls["name"]), calls["op"], 2, 0)
        long = _replace_nulls_with_empty_strings(calls["long_name"]).zip_with(
            calls["kind"] == "kernel", _create_null_series(calls.height)
        )
        yield find_first_use_positions(long, calls["op"], 2, 1)


def _append_line_breaks(values: pl.Series) -> pl.Series:
    """Append a line break to each JSON string, as DLProf does. A null becomes the JSON value ``null`` first."""
    distinct = values.unique().to_frame("value")
    lines = distinct.with_columns(line=(pl.col("value").cast(pl.String).fill_null("null") + "\n").cast(pl.Categorical))
    joined = values.to_frame("value").join(lines, on="value", how="left", maintain_order="left", nulls_equal=True)
    return joined["line"]


def _replace_nulls_with_empty_strings(values: pl.Series) -> pl.Series:
    """Replace each null in a Categorical column with an empty string."""
    return values.to_frame("v").select(pl.col("v").fill_null(pl.lit("", pl.Categorical))).to_series()


def _create_null_series(count: int) -> pl.Series:
    return pl.repeat(None, count, dtype=pl.Categorical(), eager=True)
