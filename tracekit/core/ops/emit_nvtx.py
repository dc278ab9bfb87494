"""PyTorch's own ranges, of ``torch.autograd.profiler.emit_nvtx``: ``aten::conv2d, seq = 3, op_id = 9, sizes = [[…]]``.

Of such ranges in one another the outermost is the op. An op has a qualified name, ``aten::conv2d``, or is a node of the
backward pass; before PyTorch 1.8 names were not qualified. Any other name, also of ``record_function``, is a scope, as
are those of the framework such as ``Optimizer.step#SGD.step``. Scopes make the path of the ops in them, and are ops of
their own with what was launched beside the framework.

The backward pass of an op is the outermost range, on whatever thread, that has a sequence number which a forward op had
last; it is named after that op. What an optimizer runs is neither forward nor backward.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.forests import roots
from tracekit.core.intervals.axis import where
from tracekit.core.ops.dialect import Capture, Dialect, Timeline, by_text, instances, path_parts

_EMITTED = r"^(?:autograd::engine::|torch::|aten::)|, (?:seq|op_id) = \d|, sizes = \["
_EVALUATES = "autograd::engine::evaluate_function: "
_NAME = (
    r"(?s)^(?:autograd::engine::evaluate_function: )?(.*?)(?:, (?:seq = |op_id = |sizes = \[|input_op_ids = \[).*)?$"
)
_SCOPE = r"[.#]"
_QUALIFIED = r"^[a-z_]\w*(?:::\w+)+$"
_BACKWARD = r"(?:Backward|Backwards)\d*$"
_UPDATES = r"(?i)(?:^|/)optimi[sz]er\b[^/]*/|aten::_(?:foreach|fused|amp_foreach)_[^/]*$"
_KEY = ["process_id", "sequence_number"]


def _recognises(texts: pl.DataFrame) -> bool:
    text = pl.col("text")
    found = text.str.contains(r"^aten::\w+|, seq = \d+|Backward\d*, op_id = ")
    return bool(texts.select((pl.col("domain").is_null() & found).any()).item())


def _timeline(capture: Capture) -> Timeline:
    ranges = by_text(capture.ranges, _parsed(capture.texts["text"].drop_nulls().unique(maintain_order=True)))
    parent = capture.nested.parent
    known = ranges.select(pl.col("emitted", "possible").fill_null(value=False))
    ranges = ranges.with_columns(emitted=_emitted(parent, *known))
    op = _outermost(parent, ranges["emitted"])
    tree, named = path_parts(parent, ranges["label"].cast(pl.Categorical))
    ranges = ranges.with_columns(
        op_name=named["path"],
        label=named["label"],
        node=named["node"],
        parent=op.gather(parent),
        op=op,
        row=pl.int_range(pl.len()),
    )
    ops = ranges.filter(pl.col("op") == pl.col("row"))
    place = pl.repeat(None, ranges.height, dtype=pl.Int64, eager=True)
    place = place.scatter(ops["row"], pl.int_range(ops.height, eager=True))
    ops = ops.with_columns(parent=place.gather(ops["parent"]), forward=place.gather(_forward(ranges, ops)))
    return Timeline(instances(_named(ops)), tree=tree)


def _parsed(texts: pl.Series) -> pl.DataFrame:
    """Take texts apart: ``emitted`` (by PyTorch), ``label``, ``type``, ``sequence_number``, ``backward``, shapes."""
    text, label = pl.col("text"), pl.col("label")
    frame = pl.DataFrame({"text": texts}).with_columns(emitted=text.str.contains(_EMITTED))
    frame = frame.with_columns(label=pl.when("emitted").then(text.str.extract(_NAME)).otherwise(text))
    node = text.str.starts_with(_EVALUATES) | label.str.contains(_BACKWARD)
    qualified = label.str.contains(_QUALIFIED) | node | ~label.str.starts_with("aten::").any()
    possible = pl.col("emitted") & ~label.str.contains(_SCOPE)
    frame = frame.with_columns(emitted=possible & qualified, possible=possible)
    return frame.with_columns(
        type=pl.when("emitted").then(label.str.extract(r"([^:]+)$")),
        sequence_number=pl.when("emitted").then(text.str.extract(r", seq = (\d{1,18})").cast(pl.Int64)),
        input_shapes=pl.when("emitted").then(text.str.extract(r", sizes = (\[[\[\]\d, ]*\])").str.replace_all(" ", "")),
        backward=pl.col("emitted")
        & (
            text.str.starts_with(_EVALUATES)
            | label.str.contains(_BACKWARD)
            | label.str.starts_with("torch::autograd::")
        ),
    )


def _emitted(parent: pl.Series, emitted: pl.Series, possible: pl.Series) -> pl.Series:
    """Say which ranges are ops: also those in an op whose name is not qualified, ``detach`` in ``aten::detach``."""
    return emitted.gather(roots(where(possible & ~emitted, parent)))


def _outermost(parent: pl.Series, emitted: pl.Series) -> pl.Series:
    """Return the op of each range: the outermost emitted range around it, or itself; n rows in, n rows out."""
    return roots(where(emitted & emitted.gather(parent), parent))


def _forward(ranges: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Find the forward op of each backward op, by sequence number: rows of ``ranges``, null for all others."""
    numbered = ranges.drop_nulls("sequence_number").sort("start_ns", maintain_order=True)
    back = ranges["backward"].gather(numbered["op"]).fill_null(False)  # noqa: FBT003
    owner = numbered.filter(~back).unique(_KEY, keep="last").select(*_KEY, forward="op")
    answers = numbered.filter(back).join(owner, on=_KEY, maintain_order="left")
    answers = answers.unique("op", keep="first").select("op", "forward")
    return ops.select("op").join(answers, on="op", how="left", maintain_order="left")["forward"]


def _named(ops: pl.DataFrame) -> pl.DataFrame:
    """Name backward passes after their ops, and say which way each op of the framework goes."""
    own = ops.select(pl.col("op_name", "type").cast(pl.String))
    of = own.select(pl.all().gather(ops["forward"]))
    node = pl.coalesce(ops["node"].gather(ops["forward"]).alias("of"), "node")
    updates = pl.col("op_name").cast(pl.String).str.contains(_UPDATES)
    direction = pl.when("backward").then(pl.lit("bprop")).when(pl.col("emitted") & ~updates).then(pl.lit("fprop"))
    return ops.select(
        *["start_ns", "end_ns", "process_id", "thread_id", "range_id", "parent", "sequence_number", "forward"],
        op_name=pl.coalesce(of["op_name"], own["op_name"]),
        op_type=pl.coalesce(of["type"], own["type"], pl.col("label").str.strip_suffix(" *")),
        direction=direction,
        input_shapes="input_shapes",
        node=node,
    )


DIALECT = Dialect("emit-nvtx", "PyTorch's own ranges, of emit_nvtx, inside ranges of the user.", _recognises, _timeline)
