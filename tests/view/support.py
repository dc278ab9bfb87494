"""What the tests of the viewer share: a capture with hostile names, running servers, and the texts of pages."""

from __future__ import annotations

import contextlib
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import tracekit as tk
from flask.testing import FlaskClient
from tracekit import schemas
from tracekit.text.elements import render
from tracekit.view import layout, open_viewer
from tracekit.view.captures import ViewedCapture, ViewedCaptures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl
    from tracekit.text.elements import Content
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
    """Answer requests in a thread, so that coverage sees the server. All captures are open, and pages are complete."""
    viewer = open_viewer(paths, port=0, **options)
    while viewer._captures.waiting:
        time.sleep(0.01)
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    try:
        with mock.patch.object(layout, "PATIENCE_S", None):
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
    return Client(viewer.flask)


def get(viewer: Viewer, path: str, **headers: str) -> TestResponse:
    """Return the answer to a request of the page itself."""
    return flask_client(viewer).get(path, base_url=BASE, headers=headers)


def show(viewer: Viewer, path: str, query: str = "") -> list[str]:
    """Return the texts of a page with all its panels, in the order in which they are shown."""
    separator = "&" if query else "?"
    return texts(get(viewer, f"{path}{query}{separator}scripts=no").text, "main")


def texts(content: Content, part: str = "") -> list[str]:
    """Return the texts of content or of a document, in the order in which they are shown.

    Args:
        content: The content. Strings are HTML.
        part: Name of an element. If not empty, only the texts inside such elements are returned.
    """
    reader = _TextReader(part)
    reader.feed(content if isinstance(content, str) else render(content))
    reader.close()
    return [text for text in reader.texts if text.strip()]


class _TextReader(HTMLParser):
    """Collects the texts of an HTML document."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._part, self._depth, self._hidden = part, 0, 0

    def handle_starttag(self, tag: str, _: object) -> None:
        self._depth += tag == self._part
        self._hidden += tag in ("svg", "script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == self._part
        self._hidden -= tag in ("svg", "script", "style")

    def handle_data(self, data: str) -> None:
        if (self._depth or not self._part) and not self._hidden:
            self.texts.append(data)
