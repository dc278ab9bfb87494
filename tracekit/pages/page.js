/* The script of all pages, in the viewer and exported: color scheme, units, and sorting and searching of the tables whose
   rows are all on the page. Text from captures is only ever inserted as text. It works without network and storage. */
"use strict";

(() => {
  const root = document.documentElement;

  /* The choices are kept where the browser allows it. Pages of files may have no storage. */
  const recall = (name) => {
    try { return localStorage.getItem(`tracekit.${name}`); } catch { return null; }
  };
  const keep = (name, value) => {
    try { localStorage.setItem(`tracekit.${name}`, value); } catch { /* The choice lasts until the page is left. */ }
  };

  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (systemIsDark.matches ? "dark" : "light")) === "dark";
  const isExact = () => root.dataset.units === "exact";
  root.dataset.scripts = "";
  if (["light", "dark"].includes(recall("theme"))) root.dataset.theme = recall("theme");
  if (recall("units") === "exact") root.dataset.units = "exact";

  /* Each number has its rounded text, and its exact text as the title. The two are exchanged. */
  const writeUnits = (part) => {
    const wanted = isExact() ? "exact" : "rounded";
    const numbers = [...(part.matches("data[title]") ? [part] : []), ...part.querySelectorAll("data[title]")];
    for (const number of numbers) {
      if ((number.dataset.shown || "rounded") === wanted) continue;
      [number.textContent, number.title] = [number.title, number.textContent];
      number.dataset.shown = wanted;
    }
  };
  const showSwitches = () => {
    const states = { theme: isDark(), units: isExact() };
    for (const button of document.querySelectorAll("button[data-switch]")) {
      button.setAttribute("aria-pressed", String(states[button.dataset.switch]));
    }
  };
  const flip = (name) => {
    if (name === "theme") {
      root.dataset.theme = isDark() ? "light" : "dark";
      keep("theme", root.dataset.theme);
    } else {
      root.dataset.units = isExact() ? "human" : "exact";
      keep("units", root.dataset.units);
      writeUnits(document.body);
    }
    showSwitches();
  };

  /* Integers above 2^53 are compared exactly. Cells without a number come last in both orders. */
  const readKey = (cell) => {
    if (!cell) return null;
    const text = cell.querySelector("data")?.value ?? cell.textContent.trim();
    if (/^-?\d+$/.test(text)) return BigInt(text);
    const number = text === "" ? NaN : Number(text);
    return Number.isNaN(number) ? text : number;
  };
  const compareKeys = (a, b) => {
    const isNumber = (key) => typeof key !== "string";
    if (isNumber(a) !== isNumber(b)) return isNumber(a) ? -1 : 1;
    if (!isNumber(a)) return a < b ? -1 : a > b ? 1 : 0;
    return a < b ? -1 : a > b ? 1 : 0;
  };
  const sortRows = (heading) => {
    const table = heading.closest("table");
    const body = table.tBodies[0];
    const index = heading.cellIndex;
    const isNumeric = heading.classList.contains("number");
    const before = heading.getAttribute("aria-sort");
    const order = before === "descending" || (!before && !isNumeric) ? "ascending" : "descending";
    table.querySelectorAll("th[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const keys = [...body.rows].map((row) => [readKey(row.cells[index]), row]);
    const isEmpty = (key) => key === null || key === "";
    keys.sort(([a], [b]) => (isEmpty(a) || isEmpty(b) ? isEmpty(a) - isEmpty(b) : sign * compareKeys(a, b)));
    body.append(...keys.map(([, row]) => row));
  };

  const searchRows = (field) => {
    const part = field.closest(".table");
    const rows = [...part.querySelector("tbody").rows];
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    part.querySelector("[role=status]").textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  };

  /* Explanations of columns stay within the window, and Escape hides them. */
  const placeHelp = (heading) => {
    const help = heading.querySelector(":scope > .help");
    if (!help) return;
    heading.classList.remove("quiet");
    const place = heading.getBoundingClientRect();
    const width = Math.min(360, innerWidth - 16);
    help.style.width = `${width}px`;
    help.style.left = `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px`;
    const isAbove = place.top > help.offsetHeight;  // below, it would cover the fields and rows that people go to
    help.style.top = `${isAbove ? place.top - help.offsetHeight : place.bottom}px`;
  };
  const headingOf = (event) => (event.target instanceof Element ? event.target.closest("th[scope=col]") : null);
  for (const kind of ["mouseover", "focusin"]) {
    document.addEventListener(kind, (event) => {
      const heading = headingOf(event);
      if (heading && !(kind === "mouseover" && heading.contains(event.relatedTarget))) placeHelp(heading);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    document.querySelectorAll("th:hover, th:focus-within").forEach((heading) => heading.classList.add("quiet"));
  });

  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element)) return;
    const control = event.target.closest("button[data-switch]");
    if (control) flip(control.dataset.switch);
    const sort = event.target.closest("table.static button.sort");
    if (sort) sortRows(sort.closest("th"));
  });
  document.addEventListener("input", (event) => {
    if (event.target instanceof Element && event.target.matches(".table > .search input")) searchRows(event.target);
  });
  /* On paper, the evidence of causes and the warm-up are not collapsed. */
  addEventListener("beforeprint", () => {
    document.querySelectorAll(".answer details:not([open])").forEach((each) => {
      each.open = true;
      each.dataset.printed = "";
    });
  });
  addEventListener("afterprint", () => {
    document.querySelectorAll("details[data-printed]").forEach((each) => {
      each.open = false;
      delete each.dataset.printed;
    });
  });
  systemIsDark.addEventListener("change", showSwitches);

  /* Parts of pages that arrive later get the chosen units, too. */
  const start = () => {
    showSwitches();
    if (isExact()) writeUnits(document.body);
    new MutationObserver((changes) => {
      if (!isExact() && !changes.some((change) => change.addedNodes.length)) return;
      for (const { addedNodes } of changes) {
        for (const part of addedNodes) {
          if (!(part instanceof Element)) continue;
          if (isExact()) writeUnits(part);
          if (part.querySelector("button[data-switch]")) showSwitches();
        }
      }
    }).observe(document.body, { childList: true, subtree: true });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
