"""A browser without network that opens the viewer, and notes everything that goes wrong on its pages."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from tests.view.support import FIXTURES

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Locator, Page, Request, Response
    from tracekit.view.server import Viewer

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
TIMEOUT_MS = 60_000
AXE_VERSION = "4.10.3"
AXE_FOLDER = FIXTURES.parent / "out" / f"axe-{AXE_VERSION}"
SETTLED = """
() => document.querySelector("main h1") && !document.querySelector('[data-dash-is-loading="true"]')
  && [...document.querySelectorAll(".table-status")].every((e) => e.textContent)
  && [...document.querySelectorAll(".js-plotly-plot")].every((e) => e.querySelector("svg.main-svg"))
"""


def missing() -> str | None:
    """Return what is not installed here; None if the tests can run."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright"
    return None if executable() else "chromium"


def executable() -> str | None:
    """Return the path of a browser."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def axe() -> str | None:
    """Return the source of axe-core, which npm installs outside the files of the project; None if it cannot."""
    script = AXE_FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    npm = shutil.which("npm")
    if not script.exists() and npm:
        AXE_FOLDER.mkdir(parents=True, exist_ok=True)
        options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        command = [npm, "install", *options, "--prefix", str(AXE_FOLDER), f"axe-core@{AXE_VERSION}"]
        subprocess.run(command, check=False, timeout=120, capture_output=True)
    return script.read_text() if script.exists() else None


class Tab:
    """A tab of the browser that shows pages of one server.

    Attributes:
        page: The tab.
        problems: Errors of scripts, failed requests, and requests to other hosts, except those of Perfetto's page.
        blocked: Requests of Perfetto's page to other addresses, all of which must fail.
        answered: Requests to other addresses that were answered.
    """

    def __init__(self, page: Page, viewer: Viewer) -> None:
        self.page, self.viewer = page, viewer
        self.base = viewer.url.partition("/?")[0].rstrip("/")
        self.problems: list[str] = []
        self.blocked: list[str] = []
        self.answered: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._response)

    def _is_other(self, url: str) -> bool:
        return not url.startswith((f"{self.base}/", "data:", "blob:"))

    def _console(self, message: ConsoleMessage) -> None:
        place = message.location.get("url", "")
        if message.type == "error" and "/perfetto/" not in place:
            self.problems.append(f"console: {message.text} ({place})")

    def _failed(self, request: Request) -> None:
        if self._is_other(request.url):
            self.blocked.append(request.url)
        elif request.failure != "net::ERR_ABORTED":
            self.problems.append(f"failed: {request.url} {request.failure}")

    def _response(self, response: Response) -> None:
        if self._is_other(response.url):
            self.answered.append(response.url)
        elif response.status >= 400:
            self.problems.append(f"status: {response.status} {response.url}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.page.close()
        if kind is None:
            assert self.problems == []
            assert self.answered == []

    def open(self, url: str) -> None:
        """Load a page."""
        self.page.goto(self.base + url)
        self.settle()

    def settle(self) -> None:
        """Wait until the page has its rows and figures."""
        self.page.wait_for_function(SETTLED)

    def follow(self, href: str, title: str) -> None:
        """Click a link of the navigation."""
        self.page.locator(f'nav a[href="{href}"]').click()
        self.page.wait_for_function("(title) => document.querySelector('main h1')?.textContent === title", arg=title)
        self.settle()

    def links(self) -> dict[str, str]:
        """Return the titles of the pages in the navigation, by URL."""
        links = self.page.locator("nav a")
        return {str(a.get_attribute("href")): str(a.text_content()) for a in links.all()}

    def table(self, name: str) -> Table:
        """Return a table of the page."""
        return Table(self, name)

    def query(self) -> str:
        """Return the query string of the URL."""
        return urlsplit(self.page.url).query

    def faults(self) -> list[str]:
        """Return serious and critical faults in accessibility that axe-core finds. Perfetto's page is not ours."""
        self.page.evaluate(str(axe()))
        found = self.page.evaluate(
            "() => axe.run({exclude: ['iframe']}, {iframes: false, resultTypes: ['violations']})"
        )
        return [
            f"{fault['id']}: {node['target']} {node['html'][:200]} {node.get('failureSummary', '')[:200]}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"][:3]
        ]


class Table:
    """A table of a page."""

    def __init__(self, tab: Tab, name: str) -> None:
        self.tab, self.name = tab, name
        self.panel: Locator = tab.page.locator("section.panel").filter(has=tab.page.locator(self._id("grid"))).last

    def _id(self, part: str) -> str:
        return f"""[id*='"part":"{part}"'][id*='"table":"{self.name}"']"""

    @staticmethod
    def names(page: Page) -> list[dict[str, str]]:
        """Return the ids of the tables of a page."""
        ids = page.locator("""[id*='"part":"grid"']""").evaluate_all("(all) => all.map((e) => e.id)")
        return [json.loads(each) for each in ids]

    def part(self, part: str) -> Locator:
        """Return a control of the table."""
        return self.tab.page.locator(self._id(part)).first

    def status(self) -> str:
        """Return the number of rows that the page shows."""
        return str(self.part("status").text_content())

    def wait_for(self, status: str) -> None:
        """Wait until the table says how many rows it has."""
        self.tab.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.textContent === text",
            arg=[self._id("status"), status],
        )

    def rows(self, number: int = 3) -> list[dict[str, str]]:
        """Return the texts of the cells of the first rows that are on the screen."""
        self.tab.page.wait_for_function(
            "(selector) => document.querySelector(`${selector} .ag-center-cols-container .ag-row .ag-cell`)",
            arg=self._id("grid"),
        )
        grid = self.part("grid")
        grid.evaluate("(grid) => grid.scrollIntoView({block: 'center'})")
        self.tab.page.wait_for_function(
            "(selector) => !document.querySelector(`${selector} .ag-row-loading`)", arg=self._id("grid")
        )
        found: list[dict[str, str]] = grid.evaluate(
            """(grid, number) => Array.from({length: number}, (_, index) => {
              const cells = grid.querySelectorAll(`.ag-center-cols-container .ag-row[row-index="${index}"] .ag-cell`);
              return Object.fromEntries([...cells].map((c) => [c.getAttribute("col-id"), c.textContent]));
            })""",
            number,
        )
        return [row for row in found if row]

    def columns(self) -> list[str]:
        """Return the names of the columns that are shown."""
        headers = self.part("grid").locator(".ag-header-row-column .ag-header-cell")
        return [str(h) for h in headers.evaluate_all("(all) => all.map((e) => e.getAttribute('col-id'))")]


def shown(value: Any) -> str:
    """Return the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        rounded = Decimal(value).quantize(Decimal("0.001"), ROUND_HALF_UP)
        return f"{rounded:,.3f}".rstrip("0").rstrip(".")
    return str(value)
