"""A copy of a memory snapshot contains no private values, and says the same."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import tracekit as tk
from tracekit.errors import CorruptTraceError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "memory_snapshot"


def build_private_snapshot(tmp_path: Path, protocol: int = 4) -> Path:
    frames = [
        {"name": "forward", "filename": "/home/jdoe9/secretproject/model.py", "line": 3},
        {"name": "main", "filename": "C:\\Users\\jdoe9\\secretproject\\train.py", "line": 4},
        {"name": "call", "filename": "/opt/lib/python3.12/site-packages/torch/nn/modules/module.py", "line": 5},
    ]
    event = {"action": "alloc", "addr": 1, "size": 2, "stream": 0, "time_us": 3, "frames": frames}
    snapshot = {
        "segments": [],
        "device_traces": [[event | {"user_metadata": "run of jdoe9"}]],
        "external_annotations": [{"stage": "START", "name": "stream", "device": 0, "time_us": 3}],
    }
    path = tmp_path / f"private{protocol}.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol))
    return path


@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_private_values_are_replaced(tmp_path: Path) -> None:
    for protocol in (1, 2, 4):
        path, copy = build_private_snapshot(tmp_path, protocol), tmp_path / f"copy{protocol}.pickle"
        counts = tk.redact(path, copy)
        data = copy.read_bytes()
        assert b"jdoe9" not in data
        assert b"secretproject" not in data
        assert b"/site-packages/torch/nn/modules/module.py" in data
        assert counts["path"] == 2
        assert tk.unredacted(path) == counts
        assert not any(tk.unredacted(copy).values())
        with tk.load(path) as before, tk.load(copy) as after:
            for name in before.tables:
                if name != "allocator_events":
                    assert before[name] == after[name]
            assert after.frame("allocator_events").collect()["metadata"].to_list() == ["run of xxxxx"]


@pytest.mark.parametrize("name", ["oom", "ring"])
def test_copies_of_real_snapshots_say_the_same(name: str, tmp_path: Path) -> None:
    path, copy = FIXTURES / f"{name}.pickle", tmp_path / "copy.pickle"
    tk.redact(path, copy, key=b"a key of the tests")
    with tk.load(path) as before, tk.load(copy) as after:
        for table in before.tables:
            assert before[table] == after[table]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps({"segments": [], "more": b"bytes"}), "a string is binary"),
        (pickle.dumps({"segments": [], "more": print}), "it would call builtins.print"),
        (pickle.dumps({"segments": ["a" * 100]})[:-4], "truncated"),
    ],
)
def test_other_snapshots_are_not_copied(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(data)
    with pytest.raises(CorruptTraceError, match=said):
        tk.redact(path, tmp_path / "b.pickle")
    assert [p.name for p in tmp_path.iterdir()] == ["a.pickle"]
