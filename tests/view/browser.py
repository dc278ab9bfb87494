"""A browser without network that opens the viewer, and notes everything that goes wrong on its pages."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, urlsplit

from tests.view.support import FIXTURES

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Locator, Page, Request, Response
    from tracekit.view.server import Viewer

SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
TIMEOUT_MS = 60_000
AXE_VERSION = "4.10.3"
AXE_FOLDER = FIXTURES.parent / "out" / f"axe-{AXE_VERSION}"
SETTLED = """
() => document.readyState === "complete" && document.querySelector("main h1")
  && !document.querySelector('[data-fragment], [aria-busy="true"]') && document.getElementById("progress").hidden
"""

_MARK_CONTROLS = """() => {
  const all = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")].filter((e) =>
    e.tabIndex >= 0 && e.checkVisibility({visibilityProperty: true}) && !e.disabled);
  all.forEach((e) => e.setAttribute("data-wanted", "yes"));
  return all.map((e) => e.outerHTML.slice(0, 80));
}"""
_MARK_REACHED = """() => {
  document.activeElement?.setAttribute("data-reached", "yes");
  return document.querySelector("[data-wanted]:not([data-reached])") !== null;
}"""
_UNREACHED = """() => {
  const left = [...document.querySelectorAll("[data-wanted]:not([data-reached])")]
    .map((e) => e.outerHTML.slice(0, 200));
  document.querySelectorAll("[data-wanted]").forEach((e) => e.removeAttribute("data-wanted"));
  document.querySelectorAll("[data-reached]").forEach((e) => e.removeAttribute("data-reached"));
  return left;
}"""


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
        problems: Errors of scripts, failed requests, and requests to other addresses.
    """

    def __init__(self, page: Page, viewer: Viewer) -> None:
        self.page, self.viewer = page, viewer
        self.base = viewer.url.partition("/?")[0].rstrip("/")
        self.problems: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._response)

    def _is_other(self, url: str) -> bool:
        return not url.startswith((f"{self.base}/", "data:", "blob:"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"failed: {request.url} {request.failure}")

    def _response(self, response: Response) -> None:
        if self._is_other(response.url) or response.status >= 400:
            self.problems.append(f"status: {response.status} {response.url}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.page.close()
        if kind is None:
            assert self.problems == []

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
        """Return the titles of the pages in the navigation that have data, by URL."""
        links = self.page.locator("nav[aria-label=Pages] a:not(.absent)")
        return {str(a.get_attribute("href")): str(a.text_content()) for a in links.all()}

    def table(self, name: str) -> Table:
        """Return a table of the page."""
        return Table(self, name)

    def query(self) -> str:
        """Return the query string of the URL."""
        return urlsplit(self.page.url).query

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the URL."""
        return dict(parse_qsl(self.query(), keep_blank_values=True))

    def wait_for_url(self, part: str) -> None:
        """Wait until the path and the query string contain a text, and until the page has its rows."""
        self.page.wait_for_function("(part) => (location.pathname + location.search).includes(part)", arg=part)
        self.settle()

    def choices(self) -> dict[str, list[str]]:
        """Return the URLs that each row of choices of the page offers, by its name."""
        rows: list[tuple[str, list[str]]] = self.page.locator("main .choices").evaluate_all(
            """(all) => all.map((e) => [e.getAttribute("aria-label"),
              [...e.querySelectorAll("a")].map((a) => a.getAttribute("href"))])"""
        )
        return dict(rows)

    def choose(self, name: str, url: str) -> None:
        """Choose one of the choices of a row."""
        self.page.locator(f'main .choices[aria-label="{name}"] a[href={json.dumps(url)}]').click()
        self.page.wait_for_function("(url) => location.pathname + location.search === url", arg=url)
        self.settle()

    def pick(self, label: str, option: str) -> None:
        """Choose an option of a list, and open the page with it."""
        chooser = self.page.get_by_role("combobox", name=label, exact=True)
        chooser.select_option(label=option)
        with self.page.expect_navigation():
            self.page.locator("form").filter(has=chooser).get_by_role("button").click()
        self.settle()

    def unreachable(self) -> list[str]:
        """Return the controls of the page that the Tab key reaches neither forwards nor backwards."""
        self.page.evaluate("() => document.activeElement.blur()")
        wanted = self.page.evaluate(_MARK_CONTROLS)
        for number in range(2 * len(wanted) + 400):
            self.page.keyboard.press("Tab" if number < len(wanted) + 200 else "Shift+Tab")
            if not self.page.evaluate(_MARK_REACHED):
                break
        left: list[str] = self.page.evaluate(_UNREACHED)
        return left

    def faults(self) -> list[str]:
        """Return the faults in accessibility that axe-core finds."""
        self.page.evaluate(str(axe()))
        found = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{fault['id']}: {node['target']} {node['html'][:200]} {node.get('failureSummary', '')[:200]}"
            for fault in found["violations"]
            for node in fault["nodes"][:3]
        ]


class Table:
    """A table of a page."""

    def __init__(self, tab: Tab, name: str) -> None:
        self.tab, self.name = tab, name
        self.panel: Locator = tab.page.locator(f'section[data-table="{name}"]')

    @staticmethod
    def names(page: Page) -> list[str]:
        """Return the names of the tables of a page."""
        names: list[str] = page.locator("section[data-table]").evaluate_all("(all) => all.map((e) => e.dataset.table)")
        return names

    def arguments(self) -> dict[str, str]:
        """Return the arguments of a table with details about a row."""
        source = str(self.panel.get_attribute("data-source"))
        return dict(parse_qsl(dict(parse_qsl(source.partition("?")[2])).get("arguments", ""), keep_blank_values=True))

    def status(self) -> str:
        """Return what the table says about the number of its rows."""
        return str(self.panel.locator(":scope > .table-foot .table-status").text_content())

    def wait_for(self, status: str) -> None:
        """Wait until the table says how many rows it has."""
        self.tab.page.wait_for_function(
            """([name, text]) => document.querySelector(
              `section[data-table="${name}"] > .table-foot .table-status`)?.textContent === text""",
            arg=[self.name, status],
        )

    def rows(self, number: int = 3) -> list[dict[str, str]]:
        """Return the exact values of the cells of the first rows, as texts."""
        return self._read_rows(":scope > .scroll > table > tbody > tr", number)

    def sums(self) -> list[dict[str, str]]:
        """Return the exact values of the cells below a filtered table, as texts."""
        return self._read_rows(":scope > .scroll > table > tfoot > tr", 2)

    def _read_rows(self, selector: str, number: int) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = self.panel.evaluate(
            """(section, [selector, number]) => {
              const columns = [...section.querySelectorAll(":scope > .scroll > table th[data-column]")];
              const read = (cell) => cell.querySelector("data")?.getAttribute("value")
                ?? cell.querySelector("a.select[title]")?.title
                ?? (cell.querySelector("details")?.lastChild ?? cell).textContent;
              return [...section.querySelectorAll(selector)].slice(0, number).map((row) =>
                Object.fromEntries(columns.map((column, n) => [column.dataset.column, read(row.cells[n])])));
            }""",
            [selector, number],
        )
        return rows

    def columns(self) -> list[str]:
        """Return the names of the columns that are shown."""
        names: list[str] = self.panel.locator(":scope > .scroll th[data-column]").evaluate_all(
            "(all) => all.map((e) => e.dataset.column)"
        )
        return names

    def sort_link(self, column: str) -> Locator:
        """Return the link in the heading of a column, which sorts."""
        return self.panel.locator(f':scope > .scroll th[data-column="{column}"] a.sort')

    def entry(self, name: str) -> Locator:
        """Return a field of the table: ``search``, ``where``, or ``filter.`` and the name of a column."""
        return self.tab.page.locator(f'input[name="{self.name}.{name}"]:not([type=hidden])')

    def select(self, index: int) -> None:
        """Select a row."""
        self.panel.locator(":scope > .scroll > table > tbody > tr").nth(index).locator("a.select").click()
