"""What mutated files once did to the readers."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from tests import fork_server
from tests.builders.nsys_rep import Parts, message, strings
from tracekit.errors import CorruptTraceError
from tracekit.readers.common.damage import Damage, checked_property
from tracekit.readers.nsys.capture import NsysCapture

ROOT = Path(__file__).parents[2]
EMPTY = b"\x0a\x00"


def read(path: Path) -> list[int]:
    with tk.load(path, "nsys-rep") as trace:
        return [trace[name].num_rows for name in trace.tables]


@pytest.mark.parametrize("blocks", [[EMPTY], [EMPTY * 3], [EMPTY * 2, EMPTY]])
def test_an_empty_event_may_end_a_block(blocks: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "empty.nsys-rep"
    path.write_bytes(Parts(blocks=blocks, strings=[strings("a")]).pack())
    assert sum(read(path)) > 0  # what is known of the capture


@pytest.mark.parametrize("what", ["events", "strings"])
def test_damage_is_looked_for_once(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "damaged.nsys-rep"
    many = {"events": (EMPTY * 400_000, strings("a")), "strings": (EMPTY, b"\x0a\x01a" * 100_000 + b"\x09")}
    block, texts = many[what]
    path.write_bytes(
        Parts(blocks=[block], strings=[texts], stream=message((1, 1 << 40), (3, 200_000), (9, "lz4"))).pack()
    )
    seconds = []
    with tk.load(path, "nsys-rep") as trace:
        for name in ["kernels"] + ["api_calls", "osrt_calls", "nvtx_ranges"] * 2:
            began = time.process_time()
            with pytest.raises(CorruptTraceError):
                trace[name]
            seconds.append(time.process_time() - began)
    assert sum(seconds[1:]) / len(seconds[1:]) < seconds[0] / 2


def test_a_damaged_property_stays_damaged() -> None:
    class Things:
        looks = 0

        @checked_property
        def bad(self) -> int:
            self.looks += 1
            raise Damage("torn")

        @checked_property
        def good(self) -> int:
            self.looks += 1
            return 7

    things = Things()
    for _ in range(3):
        assert things.good == 7
        with pytest.raises(Damage, match="torn"):
            _ = things.bad
    assert things.looks == 2
    assert isinstance(Things.good, checked_property)


def test_a_misfit_without_a_source_table_names_no_row() -> None:
    class Tables:
        path, hint, columns = Path("x.nsys-rep"), "copy it", {}

    capture = NsysCapture.__new__(NsysCapture)
    capture.tables, capture.path = Tables(), Tables.path  # type: ignore[assignment]
    error = capture._create_invalid_value_error(
        "contexts", "TABLE", pa.table({"context_id": pa.array([None], pa.int64())}), "otherwise"
    )
    assert error.row is None
    assert "context_id is null" in str(error)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the system does not limit memory")
def test_an_export_reads_where_memory_may_not_be_promised() -> None:
    code = """
import resource, sys, tracekit as tk
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
with tk.load(sys.argv[1]) as trace:
    print(sum(trace[name].num_rows for name in trace.tables))
"""
    command = [sys.executable, "-c", code, str(ROOT / "fixtures" / "graph_node.sqlite")]
    done = fork_server.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert int(done.stdout) > 500
