"""PyTorch as annotated by PyProf and DLProf: each call of an op in a marker that holds a Python dict.

Of markers in one another the outermost is the op. Its name is the function stack of the trace marker around it, which
may be on another thread. Ranges of ``emit_nvtx`` inside an op, ``…, seq = 7``, make it the owner of that number; the
range of the same number outside of every op is its backward pass.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.intervals import latest_end_before
from tracekit.core.ops import markers
from tracekit.core.ops.attach import holders
from tracekit.core.ops.dialect import Capture, Dialect, Timeline, by_text, instances
from tracekit.core.ops.guests import guests

THREAD = ["process_id", "thread_id"]
_OP = r"(?s)'mod'.*'op'"
_SEQUENCE = r"seq = (\d{1,18})"
_TIMES = ["start_ns", "end_ns", "process_id", "thread_id", "range_id"]
_UNKNOWN = {c: pl.lit(None, pl.String).alias(c) for c in ("input_names", "input_shapes", "parameters")}


def _recognises(texts: pl.DataFrame) -> bool:
    found = texts.select(
        (pl.col("text").str.contains(_OP) | pl.col("text").str.contains("{'traceMarker': [", literal=True)).any()
    )
    return bool(found.item())


def _timeline(capture: Capture) -> Timeline:
    texts = capture.texts["text"].drop_nulls().unique(maintain_order=True)
    ops = _outermost(pl.concat([_marked(capture, texts), _guests(capture)]))
    back = _backward(capture, texts, ops)
    every = pl.concat([ops.with_columns(forward=pl.lit(None, pl.Int64)), back], how="diagonal")
    settings = capture.of_texts(texts.filter(texts.str.contains("model_config", literal=True)))
    config = markers.configs(settings["text"].unique(maintain_order=True).cast(pl.String))
    return Timeline(instances(every), "occurrence", described=True, config=config)


def _marked(capture: Capture, texts: pl.Series) -> pl.DataFrame:
    """Read the op markers, in order of time: ``_TIMES`` and what their texts say."""
    calls = markers.calls(texts.filter(texts.str.contains(_OP)))
    found = by_text(capture.of_texts(calls["text"]), calls)
    return _placed(capture, texts, found).select(
        *_TIMES,
        op_name=pl.coalesce("path", "op"),
        op_type=pl.when(pl.col("op") == "forward").then("mod").otherwise("op"),
        stack_trace=pl.col("stack_trace").fill_null(""),
        data_type="data_type",
        input_names="input_names",
        input_shapes="input_shapes",
        parameters="parameters",
        ends_pass=pl.col("op") == "backward",
    )


def _placed(capture: Capture, texts: pl.Series, ops: pl.DataFrame) -> pl.DataFrame:
    """Add ``path`` and ``stack_trace`` of the last trace marker of the process that holds each op."""
    places = markers.places(texts.filter(texts.str.contains("traceMarker", literal=True)))
    around = by_text(capture.of_texts(places["text"]), places)
    around = around.sort("start_ns", "end_ns", pl.col("text").cast(pl.String))
    row = holders(ops, around, by=["process_id"])
    return ops.with_columns(around[c].gather(row).alias(c) for c in ("path", "stack_trace"))


def _guests(capture: Capture) -> pl.DataFrame:
    known = {"stack_trace": pl.lit(""), "data_type": pl.lit(""), **_UNKNOWN, "ends_pass": pl.lit(value=False)}
    return guests(capture).with_columns(**known)


def _outermost(found: pl.DataFrame) -> pl.DataFrame:
    """Leave out what lies in an op of its thread: n rows in, at most n rows out, in order of start; with direction."""
    ordered = found.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    covered = latest_end_before(THREAD)
    kept = ordered.filter(covered.is_null() | (pl.col("end_ns") > covered))
    direction = pl.when("ends_pass").then(pl.lit("bprop")).otherwise(pl.lit("fprop"))
    return kept.with_columns(direction=direction)


def _backward(capture: Capture, texts: pl.Series, ops: pl.DataFrame) -> pl.DataFrame:
    """Find backward passes: rows like those of their op (``forward``, row of ``ops``), but for times and thread."""
    numbered = pl.DataFrame({"text": texts}).with_columns(
        sequence_number=pl.col("text").str.extract(_SEQUENCE).cast(pl.Int64)
    )
    ranges = by_text(capture.of_texts(numbered.drop_nulls()["text"]), numbered)
    ranges = ranges.with_columns(op=holders(ranges, ops, by=THREAD))
    key = ["process_id", "sequence_number"]
    inside = ranges.drop_nulls("op").filter(pl.col("sequence_number") > 0)
    inside = inside.filter(~ops["ends_pass"].gather(inside["op"]))
    owner = inside.unique(key, keep="last").select(*key, forward="op")
    outside = ranges.filter(pl.col("op").is_null()).join(owner, on=key, maintain_order="left")
    last = outside.group_by(key, maintain_order=True).agg(
        pl.col(*_TIMES[:2], "thread_id", "range_id", "forward").last()
    )
    of = ops.select(pl.exclude(*_TIMES, "direction", "ends_pass").gather(last["forward"]))
    return last.hstack(of).with_columns(direction=pl.lit("bprop"), ends_pass=pl.lit(value=False))


DIALECT = Dialect(
    "pyprof", "PyTorch annotated by PyProf or DLProf: markers with module, op and arguments.", _recognises, _timeline,
    key_op="backward",
)  # fmt: skip
