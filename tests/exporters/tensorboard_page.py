"""The real TensorBoard and a browser that opens its page; as a program, it takes the picture of the documentation.

    python tests/exporters/tensorboard_page.py RUN PICTURE.png SELECTED [EXPANDED ...]

Chromium is driven through a pipe (``--remote-debugging-pipe``): messages of its DevTools protocol, each ended by a zero
byte. What stands in the page is asked of the page: its elements hold the graph that they draw.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

WAIT_S = 60
SIZE = (1400, 1000)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-component-update", "--hide-scrollbars"),
)
FIND = """
function find(root, name) {
  for (const e of root.querySelectorAll('*')) {
    if (e.localName === name) return e;
    const inside = e.shadowRoot && find(e.shadowRoot, name);
    if (inside) return inside;
  }
  return null;
}
"""


def missing() -> str | None:
    """Say what is not installed of that which this needs."""
    if importlib.util.find_spec("tensorboard") is None:
        return "tensorboard"
    return None if browser() else "chromium (make browser installs it)"


def browser() -> str | None:
    """Path of a browser."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class TensorBoard(contextlib.AbstractContextManager["TensorBoard"]):
    """TensorBoard serving a folder, until it is left."""

    def __init__(self, logdir: Path) -> None:
        command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", "--host=127.0.0.1", "--port=0"]
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.url = self._address()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(WAIT_S)
        self._folder.cleanup()

    def get(self, path: str, **parameters: str) -> bytes:
        """Ask its HTTP API."""
        with urllib.request.urlopen(f"{self.url}data/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            return bytes(answer.read())

    def loaded(self, plugin: str = "graphs/info") -> Any:
        """Wait until it has read the folder; what it has."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            if found := json.loads(self.get(f"plugin/{plugin}")):
                return found
            time.sleep(0.3)
        raise TimeoutError(plugin)

    def _address(self) -> str:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and self._process.poll() is None:
            if found := re.search(r"at (http://127\.0\.0\.1:\d+/)", self._log.read_text("utf-8")):
                return found[1]
            time.sleep(0.2)
        raise TimeoutError(self._log.read_text("utf-8"))


class Page(contextlib.AbstractContextManager["Page"]):
    """A page in a headless browser."""

    def __init__(self, url: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command, self._commands = os.pipe()
        self._answers, answer = os.pipe()
        shell = f'exec "$@" 3<&{command} 4>&{answer}'
        switches = [*_SWITCHES, f"--user-data-dir={self._profile.name}", f"--window-size={SIZE[0]},{SIZE[1]}"]
        arguments = ["bash", "-c", shell, "page", str(browser()), *switches, "--remote-debugging-pipe", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(arguments, pass_fds=(command, answer), **quiet)
        os.close(command)
        os.close(answer)
        self._number, self._pending, self._session = 0, b"", None
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.navigate", url=url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(WAIT_S)
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def run(self, script: str) -> Any:
        """Run a function body in the page; what it returns. ``find(root, name)`` looks into shadow trees."""
        expression = f"(() => {{ {FIND} {script} }})()"
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:800])
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """Run a function body until what it returns is true."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            if found := self.run(script):
                return found
            time.sleep(0.3)
        raise TimeoutError(script)

    def picture(self, path: Path) -> None:
        """Save the page as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self) -> bytes:
        while b"\0" not in self._pending:
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise EOFError("the browser is gone")
            self._pending += part
        found, _, self._pending = self._pending.partition(b"\0")
        return found


_CONTROLS = "const c = find(document, 'tf-graph-controls');"
_GRAPH = "const g = find(document, 'tf-graph');"


class GraphPage(Page):
    """The page with the graph of the one run of a folder."""

    def __init__(self, board: TensorBoard) -> None:
        super().__init__(f"{board.url}#graphs")
        self.wait(f"{_CONTROLS} return !!(c && c.datasets && c.datasets.length)")
        self.drawn()

    def drawn(self) -> None:
        """Wait until the graph is drawn."""
        self.wait(f"{_GRAPH} return !!(g && g.renderHierarchy && find(g.shadowRoot, 'svg'))")

    def color_by_time(self, tag: str) -> None:
        """Select a step, and color nodes by their compute time."""
        select = f"c._selectedTagIndex = c.datasets[0].tags.findIndex(t => t.tag === {json.dumps(tag)})"
        self.run(f"{_CONTROLS} window.before = c.stats; {select}")
        self.wait(f"{_CONTROLS} return !!c.stats && c.stats !== window.before")
        self.run(f"{_CONTROLS} c.colorBy = 'compute_time'")
        self.wait(f"{_CONTROLS} return !!(c._currentGradientParams && c._currentGradientParams.maxValue)")

    def expand(self, name: str) -> None:
        """Open a group."""
        self.run(f"{_GRAPH} g.fire('node-toggle-expand', {{name: {json.dumps(name)}}})")
        time.sleep(1)

    def select(self, name: str) -> None:
        """Select a node; its card is shown."""
        self.run(f"{_GRAPH} g.fit(); g.set('selectedNode', {json.dumps(name)})")
        time.sleep(2)

    def card(self) -> str:
        """What the card of the selected node says."""
        return str(self.run("return find(document, 'tf-node-info').shadowRoot.textContent.replace(/\\s+/g, ' ')"))

    def scale(self) -> list[str]:
        """Ends of the scale of colors."""
        found = self.run(f"{_CONTROLS} const p = c._currentGradientParams; return [p.minValue, p.maxValue]")
        return list(found)

    def labels(self) -> list[str]:
        """Names that are drawn."""
        script = (
            "return [...find(g.shadowRoot, 'svg').querySelectorAll('g.node')].map(e => e.getAttribute('data-name'))"
        )
        return list(self.run(f"{_GRAPH} {script}"))

    def times(self) -> dict[str, int | None]:
        """Compute time of every node and group in us, as the page computed it; null for none."""
        script = "const found = {}; for (const [name, node] of Object.entries(g.graphHierarchy.getNodeMap()))"
        found = self.run(
            f"{_GRAPH} {script} found[name] = node.stats ? node.stats.getTotalMicros() : null; return found"
        )
        return dict(found)


def main(run: str, picture: str, selected: str, *expanded: str) -> None:
    """Take a picture of the graph of a run."""
    with TensorBoard(Path(run)) as board:
        board.loaded()
        with GraphPage(board) as page:
            page.color_by_time("all iterations")
            for name in expanded:
                page.expand(name)
            page.select(selected)
            page.picture(Path(picture))


if __name__ == "__main__":
    main(*sys.argv[1:])
