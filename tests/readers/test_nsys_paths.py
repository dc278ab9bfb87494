"""Folders of paths, which may be private, are not read."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.readers.nsys.paths import extract_file_names, remove_folders

UNCHANGED = (
    "Try\nsudo sh -c 'echo 1 >/proc/sys/kernel/perf_event_paranoid'\n to change the level to 1.",
    "For more details, please visit https://example.com/a/b.",
    "SLI/NVLink and/or legacy/software traces were collected.",
    "Level: /proc/sys/kernel/perf_event_paranoid",
    "perf event paranoid level is 2. Ratio 1/2, kworker/0:1",
    "",
)
SHORTENED = {
    "Loaded library: /home/alice/my tools/libcupti.so.13.2": "Loaded library: libcupti.so.13.2",
    "see /tmp/s_1/streams/out.log and err.log for output": "see out.log and err.log for output",
    "symbols from '/scratch/a b/lib m.so' and \"/x/y\"": "symbols from 'lib m.so' and \"y\"",
    "C:\\Users\\alice\\a.exe ended (D:/b/c.dll)": "a.exe ended (c.dll)",
    "file:///home/alice/x, TMP=/home/alice/y;../z/w ~/v/u": "file:x, TMP=y;w u",
    "failed: /home/alice/a.so: see https://example.com/b/c": "failed: a.so: see https://example.com/b/c",
    "Read: /sys/a b: /home/alice/my tools/c.so": "Read: /sys/a b: c.so",
    "two\n/home/alice/lines\n": "two\nlines\n",
    "/home/alice/bin/": "",
}


def shortened(text: str) -> str:
    return str(remove_folders(pa.array([text], pa.string()))[0].as_py())


@pytest.mark.parametrize("text", UNCHANGED)
def test_texts_without_private_folders_are_unchanged(text: str) -> None:
    assert shortened(text) == text


@pytest.mark.parametrize("text", SHORTENED)
def test_paths_in_texts_become_file_names(text: str) -> None:
    assert shortened(text) == SHORTENED[text]


@given(st.lists(st.sampled_from("ab c"), min_size=1).map("".join), st.sampled_from(["", "see ", "at '", "x: "]))
def test_a_folder_after_a_separator_never_stays(name: str, before: str) -> None:
    folder = "/home/" + name.replace(" ", "_") + "/secret/"
    assert "secret" not in shortened(f"{before}{folder}file")


def test_file_names() -> None:
    paths = pa.array(["/usr/bin/python3", "kworker/0:1", "C:\\a\\b.exe", "./a/b", "~/a", "plain", None])
    assert extract_file_names(paths).to_pylist() == ["python3", "kworker/0:1", "b.exe", "b", "a", "plain", None]
