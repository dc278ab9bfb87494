"""The communication between ranks: of all captures if they are the ranks of a job, else of one capture."""

from __future__ import annotations

import pytest
import tracekit as tk
from tests.view.support import FIXTURES, call, captures_of, running, table, texts
from tracekit.errors import TracekitError
from tracekit.view import query as queries
from tracekit.view import ranks
from tracekit.view.datasets import dataset
from tracekit.view.query import Query
from tracekit.view.sources import Scope
from tracekit.view.state import Aggregated

RANKS = sorted((FIXTURES / "ranks").glob("*.nsys-rep"))


def test_captures_that_are_the_ranks_of_a_job() -> None:
    wanted = tk.load_many(RANKS).communication()
    with running(*RANKS) as viewer:
        for capture in ("", "?capture=1"):
            answer = call(viewer, "navigation.children", ["/communication", capture, "light"])
            shown = texts(answer.json["response"]["page"]["children"])
            assert {"Clocks of the ranks", "Iterations across ranks", "MPI calls by function"} <= set(shown)
        for name in ranks.TABLES:
            rows = queries.load_rows(viewer._captures, Query(f"ranks_{name}", Aggregated(1)))
            assert rows.frame.rows() == getattr(wanted, name).rows()
            assert set(rows.titles) == set(rows.frame.columns)
        assert "start_ns" not in queries.load_rows(viewer._captures, Query("ranks_operations", Aggregated())).frame


def test_captures_that_are_not_ranks() -> None:
    """Each is analyzed by itself. Its times are on its own timeline."""
    with running(FIXTURES / "ddp2.sqlite", FIXTURES / "train_amp.sqlite") as viewer:
        found = ranks.communication(viewer._captures, viewer._captures.all[0].trace)
        assert ranks.communication(viewer._captures, viewer._captures.all[0].trace) is found
        assert "summary" in ranks.present(found)
        frame = queries.load_rows(viewer._captures, Query("ranks_operations", Aggregated())).frame
        assert frame.rows() == tk.load_many(FIXTURES / "ddp2.sqlite").communication().operations.rows()
        assert "start_ns" in frame
        other = ranks.communication(viewer._captures, viewer._captures.all[1].trace)
        assert ranks.present(other) == []
        answer = call(viewer, "navigation.children", ["/communication", "?capture=1", "light"])
        shown = texts(answer.json["response"]["page"]["children"])
        assert "This capture contains neither kernels of NCCL nor MPI calls." in shown


def test_a_capture_without_a_file() -> None:
    trace = tk.Trace.from_tables({"kernels": table("kernels", [{"kernel_id": 1}])})
    with pytest.raises(TracekitError, match="without a file"):
        ranks.communication(captures_of(trace), trace)
    with pytest.raises(TracekitError, match="by the server of the viewer"):
        dataset("ranks_summary").rows(Scope(trace))
