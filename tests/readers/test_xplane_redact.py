"""A copy of a profile of XLA contains no private values, and says the same."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import tracekit as tk
from tests.readers.test_xplane import FIXTURE, TPU, Plane, load, message, save
from tracekit.errors import CorruptTraceError


def encode(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def build_private_profile(folder: Path) -> Path:
    """Return a profile with private values, also in the field source_file of a program, which is not read."""
    host, metadata = Plane("/host:CPU", user_name="jdoe9"), Plane("/host:metadata")
    event = {"source": "/home/jdoe9/secretproject/train.py:3", "cmd_line": "python train.py --api-key=abcd1234efgh"}
    host.line(1, "python", ("step", 0, 1_000, event), ("on node-17 by jdoe9", 0, 0, {"n": 1}))
    command = message("XStat", metadata_id=host.name("cmd_line"), str_value=b"python sum.py")
    host.plane.lines[0].events.add(metadata_id=1, num_occurrences=7, stats=[command])
    of_op = encode(2, b"jit(f)/add") + encode(3, b"/data/secretproject/model.py")
    instruction = encode(1, b"i") + encode(2, b"add") + encode(7, of_op)
    module = encode(1, b"m") + encode(3, encode(1, b"e") + encode(2, instruction))
    key = metadata.name("f")
    entry = next(e for e in metadata.plane.event_metadata if e.key == key)
    entry.value.stats.extend(metadata.values({"Hlo Proto": encode(1, module)}))
    return save(folder, host, metadata, hostnames=[b"node-17.example.org"])


def test_private_values_are_replaced(tmp_path: Path) -> None:
    path, copy = build_private_profile(tmp_path), tmp_path / "copy.xplane.pb"
    counts = tk.redact(path, copy)
    data = copy.read_bytes()
    for private in (b"jdoe9", b"node-17", b"example.org", b"secretproject", b"abcd1234efgh", b"sum.py"):
        assert private not in data
    assert (counts["host name"], counts["user name"], counts["command line"]) == (1, 1, 2)
    assert not any(tk.unredacted(copy).values())
    assert tk.unredacted(path) == counts
    with load(path) as before, load(copy) as after:
        for name in ("threads", "hlo_instructions"):
            assert before[name] == after[name]


@pytest.mark.parametrize("path", [FIXTURE, TPU])
def test_copies_of_real_profiles_say_the_same(path: Path, tmp_path: Path) -> None:
    packed = tmp_path / "a.xplane.pb.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), 1))
    tk.redact(packed, tmp_path / "b.xplane.pb.gz", key=b"a key of the tests")
    assert (tmp_path / "b.xplane.pb.gz").read_bytes().startswith(b"\x1f\x8b")
    with load(path) as before, load(tmp_path / "b.xplane.pb.gz") as after:
        for name in before.tables:
            assert before[name] == after[name]


def test_the_trace_beside_a_profile_is_redacted(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.trace.json", tmp_path / "b.trace.json"
    name = '{"ph":"M","pid":1,"name":"process_name","args":{"name":"/host:CPU"}}'
    event = '{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1,"name":"a","args":{"source":"/home/jdoe9/model.py"}}'
    path.write_text(f'{{"traceEvents":[{name},{event}]}}')
    tk.redact(path, copy)
    assert "jdoe9" not in copy.read_text()
    with load(copy) as trace:
        assert trace.count("nvtx_ranges") == 1


def test_a_damaged_profile_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(TPU.read_bytes()[:-30])
    with pytest.raises(CorruptTraceError):
        tk.redact(path, tmp_path / "b.xplane.pb")
    assert not (tmp_path / "b.xplane.pb").exists()
