"""The viewer and the HTML page, with their bounds: ``python -m tests.benchmarks.view LARGE``.

``LARGE`` is a capture of a million events. The command ``tracekit view`` is started for it, and the first page is read
as a browser does: the document, and then its parts, two at a time. Then all pages of a small capture are read, and
small captures are exported as HTML pages. Each line states a value, its bound, and the value divided by the bound.

The small capture is one of ``fixtures``. The seconds are those of one run, and the CPU time of the server beside them
shows how much of them other programs of the machine took.
"""

from __future__ import annotations

import contextlib
import gzip
import html
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "fixtures" / "train_amp.sqlite"
EXPORTED = ("train_amp.sqlite", "ddp2.sqlite", "cudagraph_train.sqlite", "ncu/ncu_roofline_raw.csv")
AT_ONCE = 2
"""Number of parts of a page that the browser requests at the same time."""
SETTLED_S = 3
"""Time after which the allocators have returned freed memory to the system."""
FRAGMENT = re.compile(r'data-fragment="([^"]+)"')
ASSET = re.compile(r'(?:href|src)="(/assets/[^"]+)"')
PAGE = re.compile(r'class="nav-link[^"]*"[^>]*href="([^"]+)"|href="([^"]+)"[^>]*class="nav-link')
VERDICT = re.compile(r'class="sentence"')
ROWS = {
    "first rows of the launches": {},
    "rows from 100,000": {"launches.page": "1001"},
    "filter by duration": {"launches.filter": json.dumps({"duration_ns": {"type": "greaterThan", "filter": 3000}})},
    "search in all text columns": {"launches.search": "gemm"},
    "sort by duration": {"launches.sort": "duration_ns:desc"},
}
"""Requests of a table with one row per kernel, as parameters of the URL."""
HEADER = ("| step | value | bound | of the bound |", "| --- | ---: | ---: | ---: |")


class Answer(NamedTuple):
    """The text of an answer, the bytes that were sent, when it was complete, and the CPU time of the server then."""

    text: str
    sent: int
    seconds: float
    cpu_seconds: float


class Server:
    """A process ``tracekit view``, and the answers that it has sent."""

    def __init__(self, path: Path) -> None:
        self._began = time.perf_counter()
        command = [sys.executable, "-m", "tracekit", "view", path, "--no-browser", "--no-cache", "--port", "0"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        self.ready = self.seconds

    @property
    def seconds(self) -> float:
        """The time since the command was started."""
        return time.perf_counter() - self._began

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of the server."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def read_memory(self, name: str) -> float:
        """Return a line of ``/proc/PID/status`` in MB: VmRSS or VmHWM."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii", errors="replace")
        return int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) * 1024 / 1e6

    def get(self, path: str) -> Answer:
        """Return the answer to a request."""
        request = Request(self.url + html.unescape(path), headers={"Accept-Encoding": "gzip"})
        with urlopen(request, timeout=600) as answer:
            data = answer.read()
            text = gzip.decompress(data) if answer.headers["Content-Encoding"] == "gzip" else data
        return Answer(text.decode("utf-8", "replace"), len(data), self.seconds, self.cpu_seconds)

    def read_parts(self, document: str) -> list[Answer]:
        """Return the parts of a document, and the parts of these parts."""
        answers, missing = [], FRAGMENT.findall(document)
        with ThreadPoolExecutor(AT_ONCE) as browser:
            while missing:
                read = list(browser.map(self.get, missing))
                answers += read
                missing = [url for answer in read for url in FRAGMENT.findall(answer.text)]
        return answers


@contextlib.contextmanager
def serving(path: Path) -> Iterator[Server]:
    """Start a server, and stop it at the end."""
    server = Server(path)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


def line(step: str, value: float, unit: str, bound: float | None = None) -> str:
    """Return a line of the table."""
    digits = 2 if unit == "s" else 0
    ratio = "" if bound is None else f"{value / bound:.2f}"
    return f"| {step} | {value:.{digits}f} {unit} | {'' if bound is None else f'{bound:g} {unit}'} | {ratio} |"


def measure_large(path: Path) -> Iterator[str]:
    """Measure when the first page of a large capture shows something, and the memory of the server."""
    with serving(path) as server:
        document = server.get("/")
        parts = server.read_parts(document.text)
        verdict = min((p for p in [document, *parts] if VERDICT.search(p.text)), key=lambda part: part.seconds)
        yield line("command to server", server.ready, "s")
        yield line("server to first content", document.seconds - server.ready, "s", 1)
        yield line("command to verdict", verdict.seconds, "s", 6)
        yield line("CPU time until the verdict", verdict.cpu_seconds, "s")
        yield line("command to all charts", max((part.seconds for part in parts), default=document.seconds), "s")
        yield line("CPU time until all charts", server.cpu_seconds, "s")
        time.sleep(SETTLED_S)
        yield line("resident memory after the overview", server.read_memory("VmRSS"), "MB", 1000)
        yield line("peak memory", server.read_memory("VmHWM"), "MB")
        yield line("overview, sent", server.get("/").sent / 1000, "kB")
        for step, parameters in ROWS.items():
            before = server.seconds
            answer = server.get(f"/fragment/table/launches?{urlencode({'page': 'kernels', **parameters})}")
            yield line(step, answer.seconds - before, "s")
        time.sleep(SETTLED_S)
        yield line("resident memory after these steps", server.read_memory("VmRSS"), "MB")


def measure_pages(path: Path) -> Iterator[str]:
    """Measure how much the pages of a small capture weigh, with all their parts."""
    with serving(path) as server:
        first = server.get("/").text
        assets = [server.get(url) for url in dict.fromkeys(ASSET.findall(first))]
        yield line("styles and scripts, once", sum(len(each.text) for each in assets) / 1000, "kB")
        yield line("styles and scripts, once, sent", sum(each.sent for each in assets) / 1000, "kB")
        sizes: list[tuple[int, int, str]] = []
        for url in dict.fromkeys(a or b for a, b in PAGE.findall(first)):
            document = server.get(url)
            answers = [document, *server.read_parts(document.text)]
            sizes.append((sum(len(each.text) for each in answers), sum(each.sent for each in answers), url))
        yield line(f"mean of {len(sizes)} pages", sum(size for size, _, _ in sizes) / len(sizes) / 1000, "kB")
        yield line(f"mean of {len(sizes)} pages, sent", sum(sent for _, sent, _ in sizes) / len(sizes) / 1000, "kB")
        size, sent, url = max(sizes)
        yield line(f"largest page {url}", size / 1000, "kB", 3700)
        yield line(f"largest page {url}, sent", sent / 1000, "kB")


def measure_exports() -> Iterator[str]:
    """Measure the sizes of exported HTML pages of small captures."""
    with tempfile.TemporaryDirectory() as folder:
        for name in EXPORTED:
            capture, page = ROOT / "fixtures" / name, Path(folder) / f"{Path(name).stem}.html"
            if capture.exists():
                command = [sys.executable, "-m", "tracekit", "convert", capture, page, "--quiet"]
                subprocess.run(command, check=True, cwd=ROOT)
                yield line(f"HTML page of {name}", page.stat().st_size / 1000, "kB", 600)


def measured(path: Path) -> Iterator[str]:
    """Yield the lines of the table."""
    yield from HEADER
    with serving(SMALL) as server:  # the modules are compiled and in memory
        server.get("/")
    yield from measure_large(path)
    yield from measure_pages(SMALL)
    yield from measure_exports()


if __name__ == "__main__":
    for each in measured(Path(sys.argv[1])):
        print(each, flush=True)
