"""The frames that tables of the database are made of, with their texts and metrics numbered."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof.metrics import Metrics
from tracekit.core.dlprof.model import Model
from tracekit.core.dlprof.strings import Dictionary, used
from tracekit.core.rollup import KERNEL_METRICS, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.rollup import Rollup

DOMAIN = "default-domain"
BLOCK = ["x", "y", "z"]
_KERNEL_METRICS = KERNEL_METRICS[::-1]
OP_TEXTS = (
    *("op_id", "op_type", "device", "data_type", "data_format", "output_format", "parameters_format", "direction"),
)
INSTANCE_TEXTS = ("input_names", "input_shapes", "output_names", "output_shapes", "parameters")


@dataclass(frozen=True)
class Frames:
    """The frames of one roll-up; made when first asked for.

    Attributes:
        rollup: The roll-up they are made of.
    """

    rollup: Rollup

    @functools.cached_property
    def model(self) -> Model:
        """Figures of the whole."""
        return Model(self.rollup)

    @functools.cached_property
    def texts(self) -> Dictionary:
        """The dictionary."""
        key, ranked = pl.Series([self.rollup.iterations.key]), self._by_id
        named = ranked.select(pl.concat_list(pl.col("op_id"), pl.col("op_name").cast(pl.String)).alias("text"))
        then = [key, self._groups["path"], named.explode("text")["text"]]
        return Dictionary.of(DOMAIN, self._uses(), then)

    @functools.cached_property
    def metrics(self) -> Metrics:
        """The distinct metrics."""
        both = (*METRICS, *_KERNEL_METRICS)
        uses = [(self._by_id, both), (self._groups, METRICS), (self._kernel_summaries, _KERNEL_METRICS)]
        return Metrics.of([*uses, (self._op_types, METRICS)])

    @functools.cached_property
    def _ops(self) -> pl.DataFrame:
        """The ops, texts as DLProf writes them."""
        blank = ("data_type", "data_format", "output_format", "parameters_format", "direction")
        texts = {c: pl.col(c).cast(pl.String).fill_null("") for c in (*blank, "op_type")}
        return self.rollup.ops.with_columns(**texts, device=pl.lit(""))

    @functools.cached_property
    def _by_id(self) -> pl.DataFrame:
        """The ops, in order of id."""
        return self.rollup.ops.sort("op_id")

    @functools.cached_property
    def _groups(self) -> pl.DataFrame:
        """The group nodes, without the whole model."""
        return self.rollup.dlprof_groups.filter(pl.col("level") > 0)

    @functools.cached_property
    def _op_types(self) -> pl.DataFrame:
        """The op types that have instances."""
        return self.rollup.op_types.filter(pl.col("count") > 0)

    @functools.cached_property
    def _kernel_summaries(self) -> pl.DataFrame:
        """Kernels by op and name, in order of op id."""
        rank = self._by_id.select("op", rank=pl.int_range(pl.len()))
        return self.rollup.kernel_summaries.join(rank, on="op").sort("rank", "name")

    @functools.cached_property
    def _instances(self) -> pl.DataFrame:
        """The instances op by op, texts as DLProf writes them: JSON and a line break, ``null`` for none."""
        texts = self.rollup.measures.instances.with_columns(
            output_shapes=self.rollup.measures.described["output_shapes"]
        )
        named = pl.when(pl.col("output_shapes").is_not_null()).then(pl.lit('[""]', pl.Categorical))
        texts = texts.with_columns(output_names=named).sort("op", "index")
        return texts.with_columns(_lines(texts[c]).alias(c) for c in INSTANCE_TEXTS)

    @functools.cached_property
    def _children(self) -> pl.DataFrame:
        """The calls of ops in the order written, with ``name_id``."""
        rows = self.rollup.children.with_columns(pl.col("name").cast(pl.String).fill_null("").cast(pl.Categorical))
        return rows.with_columns(name_id=self.texts.ids(rows["name"])) if rows.height else rows.with_columns(name_id=0)

    @functools.cached_property
    def _launches(self) -> pl.DataFrame:
        """The kernels of ops in the order written, with sizes and the number of the long name."""
        rows, of = self._of_kind("kernel", "kernels", [f"{w}_{c}" for w in ("grid", "block") for c in BLOCK])
        return rows.hstack(of).with_columns(long_name_id=self.texts.ids(_no_null(rows["long_name"])))

    def _of_kind(self, kind: str, table: str, columns: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The calls of a kind, and columns of the activity behind each."""
        rows = self._children.filter(pl.col("kind") == kind)
        found = self.rollup.measures.ops.frames(table).select(columns).collect()
        return rows, found.select(pl.all().gather(rows["activity"]))

    @property
    def _key_id(self) -> int:
        return int(self.texts.ids(pl.Series([self.rollup.iterations.key]))[0])

    def _uses(self) -> Iterator[pl.DataFrame]:
        """Where ops, their instances and their calls use texts."""
        for slot, c in enumerate(OP_TEXTS):
            yield used(self._ops[c], self._ops["op"], 0, slot)
        for slot, c in enumerate(INSTANCE_TEXTS):
            yield used(self._instances[c], self._instances["op"], 1, slot)
        calls = self.rollup.children
        yield used(_no_null(calls["name"]), calls["op"], 2, 0)
        long = _no_null(calls["long_name"]).zip_with(calls["kind"] == "kernel", _nulls(calls.height))
        yield used(long, calls["op"], 2, 1)


def _lines(values: pl.Series) -> pl.Series:
    """Write JSON as DLProf does: n texts in, n texts out, each with a line break, ``null`` for none."""
    distinct = values.unique().to_frame("value")
    made = distinct.with_columns(line=(pl.col("value").cast(pl.String).fill_null("null") + "\n").cast(pl.Categorical))
    joined = values.to_frame("value").join(made, on="value", how="left", maintain_order="left", nulls_equal=True)
    return joined["line"]


def _no_null(values: pl.Series) -> pl.Series:
    """Put an empty text where there is none; n texts in, n texts out (Categorical)."""
    return values.to_frame("v").select(pl.col("v").fill_null(pl.lit("", pl.Categorical))).to_series()


def _nulls(count: int) -> pl.Series:
    return pl.repeat(None, count, dtype=pl.Categorical(), eager=True)
