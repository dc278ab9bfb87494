"""A browser without network that opens the viewer, and notes everything that goes wrong on its pages."""

from __future__ import annotations

import json
import shutil
import subprocess
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, Self
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
() => document.querySelector("main h1") && !document.querySelector('[data-dash-is-loading="true"]')
  && [...document.querySelectorAll(".table-status")].every((e) => e.textContent)
  && !document.querySelector(".dash-graph--pending") && !document.querySelector(".pending")
  && [...document.querySelectorAll(".js-plotly-plot")].every((e) => e.querySelector("svg.main-svg"))
"""

_MARK_CONTROLS = """() => {
  const all = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")].filter((e) =>
    e.tabIndex >= 0 && e.checkVisibility({visibilityProperty: true}) && !e.closest(".ag-root, .ag-tab-guard, iframe")
    && !e.disabled && !(e.type === "radio" && !e.checked && document.querySelector(`input[name="${e.name}"]:checked`)));
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

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the URL."""
        return dict(parse_qsl(self.query(), keep_blank_values=True))

    def wait_for_url(self, part: str) -> None:
        """Wait until the path and the query string contain a text, and until the page has its rows."""
        self.page.wait_for_function("(part) => (location.pathname + location.search).includes(part)", arg=part)
        self.settle()

    def choices(self) -> dict[str, list[str]]:
        """Return the URLs that each row of choices of the page offers, by its name. They are radio buttons."""
        found: list[list[str]] = self.page.locator("""main [id*='"part":"navigate"'] input[type=radio]""").evaluate_all(
            """(all) => all.map((e) => [e.closest("[id*=navigate]").id, e.value])"""
        )
        names: dict[str, list[str]] = {}
        for id_, url in found:
            names.setdefault(json.loads(id_)["name"], []).append(url)
        return names

    def choose(self, name: str, url: str) -> None:
        """Choose one of the choices of a row, unless it is the current one."""
        control = f"""main [id*='"name":"{name}"']"""
        radio = self.page.locator(f"{control} input[type=radio][value={json.dumps(url)}]")
        if radio.is_checked():
            return
        self.page.locator(f'{control} label[for="{radio.get_attribute("id")}"]').click()
        self.page.wait_for_function("(url) => location.pathname + location.search === url", arg=url)
        self.settle()

    def pick(self, label: str, option: str) -> None:
        """Choose an option of a list that opens."""
        self.page.get_by_role("combobox", name=label, exact=True).or_(
            self.page.get_by_label(label, exact=True)
        ).first.click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def unreachable(self) -> list[str]:
        """Return the controls of the page that the Tab key reaches neither forwards nor backwards.

        One radio button of a group and one cell of a grid are reached, and the arrow keys move from there.
        """
        self.page.evaluate("() => document.activeElement.blur()")
        wanted = self.page.evaluate(_MARK_CONTROLS)
        for number in range(2 * len(wanted) + 400):
            self.page.keyboard.press("Tab" if number < len(wanted) + 200 else "Shift+Tab")
            if not self.page.evaluate(_MARK_REACHED):
                break
        left: list[str] = self.page.evaluate(_UNREACHED)
        return left

    def faults(self) -> list[str]:
        """Return serious and critical faults in accessibility that axe-core finds. Perfetto's page is not ours."""
        self.page.evaluate(str(axe()))
        found = self.page.evaluate("() => axe.run(document, {iframes: false, resultTypes: ['violations']})")
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

    def sums(self) -> dict[str, str]:
        """Return the texts of the first row below the table."""
        cells = self.part("grid").locator('.ag-floating-bottom .ag-row[row-index="b-0"] .ag-cell')
        found: dict[str, str] = cells.evaluate_all(
            "(all) => Object.fromEntries(all.map((c) => [c.getAttribute('col-id'), c.textContent]))"
        )
        return found

    def header(self, column: str) -> Locator:
        """Return the label of the header of a column. A click on it sorts."""
        return self.part("grid").locator(f'.ag-header-cell[col-id="{column}"] .ag-header-cell-label')

    def filter(self, column: str, text: str) -> None:
        """Fill the filter below the header of a column."""
        order = [c for c in self.columns() if not c.startswith("_")]
        cells = self.part("grid").locator(
            ".ag-header-container .ag-floating-filter, .ag-header-viewport .ag-floating-filter"
        )
        cells.nth(order.index(column)).locator("input").first.fill(text)

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
        rounded = Decimal(repr(value)).quantize(Decimal("0.001"), ROUND_HALF_UP)
        return f"{rounded:,.3f}".rstrip("0").rstrip(".")
    return str(value)
