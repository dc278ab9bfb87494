"""What the tests of the viewer share: a capture with hostile names, running servers, and calls of callbacks."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import tracekit as tk
from flask.testing import FlaskClient
from tracekit import schemas
from tracekit.view import open_viewer
from tracekit.view.captures import ViewedCapture, ViewedCaptures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl
    from tracekit.view.server import Viewer
    from werkzeug.test import TestResponse

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = (
    *("train_amp.sqlite", "ddp2.sqlite", "jax_mlp.sqlite", "ncu/ncu_roofline_raw.csv", "empty.sqlite"),
    *("osrt_libs.sqlite", "gpu_metrics.sqlite"),
)
"""Captures that are opened in a browser: PyTorch, two GPUs, whole graphs of JAX, Nsight Compute, an empty one."""
BASE = "http://127.0.0.1:8000"
BIG = 2**53 + 1
NAMES = (
    "<script>alert(1)</script>",
    '=HYPERLINK("http://x")',
    "+1",
    "@x",
    "-2+3",
    "\t=1+1",
    "\r=1+1",
    "a\tb\nc",
    'say "no", twice',
    "<img src=x onerror=alert(1)>",
    "plain",
)
"""Names that are markup, formulas, or contain separators of text formats."""
CALLS = "/_dash-update-component"


def table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return a declared table. Columns that a row does not name are 0, "x", or null where that is allowed."""
    schema = schemas.table(name)
    defaults = {
        c.name: None if c.nullable else (c.values or ("x",))[0] if c.type in ("string", "dictionary") else 0
        for c in schema.columns
    }
    return pa.Table.from_pylist([defaults | dict(row) for row in rows], schema=schemas.arrow_schema(schema))


def hostile_tables() -> dict[str, pa.Table]:
    """Return tables with hostile names, and with integers that a browser and Excel would round."""
    kernels = [
        {"kernel_id": i + 1, "start_ns": 1000 * i, "end_ns": 1000 * i + 500 + i, "name": name, "short_name": name}
        | {"grid_id": BIG + 2 * i, "correlation_id": i + 1, "process_id": 1, "grid_x": 1, "block_x": 32}
        for i, name in enumerate(NAMES)
    ]
    ranges = [
        {"range_id": i + 1, "start_ns": 1000 * i, "end_ns": 1000 * i + 900, "name": name, "thread_id": 1}
        | {"process_id": 1, "domain": name}
        for i, name in enumerate(NAMES)
    ]
    calls = [
        {"api_call_id": i + 1, "start_ns": 1000 * i, "end_ns": 1000 * i + 1, "name": "launch", "thread_id": 2}
        | {"process_id": 1, "correlation_id": i + 1}
        for i in range(len(NAMES))
    ]
    return {
        "kernels": table("kernels", kernels),
        "api_calls": table("api_calls", calls),
        "nvtx_ranges": table("nvtx_ranges", ranges),
    }


def captures_of(*traces: tk.Trace) -> ViewedCaptures:
    """Return captures of traces in memory."""
    return ViewedCaptures(ViewedCapture(index, f"capture{index}.parquet", trace) for index, trace in enumerate(traces))


def frame_of(trace: tk.Trace, name: str) -> pl.DataFrame:
    """Return all rows of a table of a correlated and rolled-up trace."""
    return trace.correlate().rollup().frame(name).collect()


@contextlib.contextmanager
def running(*paths: Path, **options: Any) -> Iterator[Viewer]:
    """Answer requests in a thread, so that coverage sees the server."""
    viewer = open_viewer(paths, port=0, **options)
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    try:
        yield viewer
    finally:
        viewer.shutdown()
        thread.join()
        viewer.close()


class Client(FlaskClient):
    """A client that reads answers completely, so that the files that they send are closed."""

    def open(self, *args: Any, **kwargs: Any) -> TestResponse:
        return super().open(*args, **{"buffered": True, **kwargs})


def flask_client(viewer: Viewer) -> FlaskClient:
    """Return a client that calls the server without a connection."""
    return Client(viewer._dash.server)


def output(viewer: Viewer, part: str) -> str:
    """Return the key of the callback whose outputs contain a text."""
    (key,) = [key for key in viewer._dash.callback_map if part in key]
    return key


def payload(viewer: Viewer, part: str, values: Sequence[Any], ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the body of a request for a callback, with the values of its inputs and then of its states."""
    key = output(viewer, part)
    declared = viewer._dash.callback_map[key]
    sent = iter(values)

    def concrete(id_: str) -> Any:
        return {**json.loads(id_), **(ids or {})} if id_.startswith("{") else id_

    def properties(group: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
        return [{"id": concrete(g["id"]), "property": g["property"], "value": next(sent)} for g in group]

    inputs, states = properties(declared["inputs"]), properties(declared["state"])
    first = inputs[0]
    name = (
        first["id"] if isinstance(first["id"], str) else json.dumps(first["id"], sort_keys=True, separators=(",", ":"))
    )
    names = [each.rpartition(".") for each in key.strip(".").split("...")]
    outputs = [{"id": concrete(id_), "property": prop.partition("@")[0]} for id_, _, prop in names]
    return {
        "output": key,
        "outputs": outputs if key.startswith("..") else outputs[0],
        "inputs": inputs,
        "state": states,
        "changedPropIds": [f"{name}.{first['property']}"],
    }


def call(viewer: Viewer, part: str, values: Sequence[Any], ids: Mapping[str, str] | None = None) -> TestResponse:
    """Call a callback as the page does."""
    return flask_client(viewer).post(CALLS, json=payload(viewer, part, values, ids), base_url=BASE)


def texts(component: Any) -> list[str]:
    """Return the strings in components, as they are sent to the browser."""
    if isinstance(component, str):
        return [component]
    if isinstance(component, list):
        return [text for each in component for text in texts(each)]
    return texts(component["props"].get("children", [])) if isinstance(component, dict) and "props" in component else []
