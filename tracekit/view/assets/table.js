/* The script of tables: only the table that a link or a field changes is requested again. Without this script, the links
   and the form of a table load the whole page. */
"use strict";

(() => {
  const TYPING_MS = 350;
  const requests = new Map();
  const timers = new Map();

  const tableOf = (element) => element.closest("section[data-table]");
  const find = (name) => [...document.querySelectorAll("section[data-table]")].find((each) => each.dataset.table === name);

  /* The URL of the page with other parameters of one table. Other tables may have changed since this one was sent. */
  const mergeParameters = (name, entries) => {
    const parameters = new URLSearchParams(location.search);
    for (const key of new Set(parameters.keys())) if (key.startsWith(`${name}.`)) parameters.delete(key);
    for (const [key, value] of entries) if (key.startsWith(`${name}.`) && value !== "") parameters.append(key, value);
    return parameters;
  };

  /* The focus, what is typed meanwhile, open menus and the scroll position survive. */
  const replace = (section, next) => {
    const { activeElement } = document;
    const focused = section.contains(activeElement) ? activeElement : null;
    const scroll = section.querySelector(".scroll");
    const [left, top] = scroll ? [scroll.scrollLeft, scroll.scrollTop] : [0, 0];
    const open = [...section.querySelectorAll("details[open][id]")].map((each) => each.id);
    const isSamePage = section.dataset.page === next.dataset.page;
    const selection = focused instanceof HTMLInputElement && focused.type !== "checkbox" ? [focused.selectionStart, focused.selectionEnd] : null;
    section.replaceWith(next);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    const region = next.querySelector(".scroll");
    if (region) [region.scrollLeft, region.scrollTop] = [left, isSamePage ? top : 0];
    if (!focused) return;
    const again = (focused.id && document.getElementById(focused.id))
      || (focused.name && [...next.querySelectorAll("input")].find((each) => each.name === focused.name && each.value === focused.value))
      || region;
    again?.focus({ preventScroll: true });
    if (selection && again instanceof HTMLInputElement) {
      again.value = focused.value;
      again.setSelectionRange(...selection);
    }
  };

  /* The selected row is in view, without scrolling the page. */
  const showSelectedRow = (section) => {
    const region = section.querySelector(":scope > .scroll");
    const row = region?.querySelector("tr[aria-current]");
    if (!row) return;
    const [outer, inner] = [region.getBoundingClientRect(), row.getBoundingClientRect()];
    const head = region.querySelector("thead").offsetHeight;
    if (inner.top < outer.top + head) region.scrollTop += inner.top - outer.top - head;
    else if (inner.bottom > outer.bottom) region.scrollTop += inner.bottom - outer.bottom + head;
  };
  for (const section of document.querySelectorAll("section[data-table]")) showSelectedRow(section);

  /* Screen readers read the number of rows when it changes in the element that they know. */
  const updateStatus = (status, next) => {
    const shown = next.querySelector(":scope > .table-foot .table-status");
    if (!status || !shown) return;
    const text = shown.textContent;
    shown.replaceWith(status);
    setTimeout(() => (status.textContent = text));
  };

  /* Of several requests for a table, the last one wins. */
  const load = async (name, entries) => {
    clearTimeout(timers.get(name));
    requests.get(name)?.abort();
    const controller = new AbortController();
    requests.set(name, controller);
    const section = find(name);
    section.setAttribute("aria-busy", "true");
    try {
      const url = `${section.dataset.source}&${mergeParameters(name, entries)}`;
      const answer = await tracekit.request(url, { signal: controller.signal });
      const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = document.adoptNode(parsed.body.firstElementChild);
      if (requests.get(name) !== controller) return;
      const status = find(name).querySelector(":scope > .table-foot .table-status");
      replace(find(name), next);
      updateStatus(status, next);
      showSelectedRow(next);
      if (next.dataset.url) history.replaceState(history.state, "", next.dataset.url);
      next.dispatchEvent(new CustomEvent("tracekit:insert", { bubbles: true }));
    } catch (error) {
      if (error.name === "AbortError") return;
      find(name)?.removeAttribute("aria-busy");
      tracekit.announce(`The table could not be loaded: ${error.message}`);
    }
  };

  const formOf = (element) => (element.form?.classList.contains("table-form") ? element.form : null);
  const submit = (form) => load(tableOf(form).dataset.table, [...new FormData(form)]);

  /* Shift and a click sort by a further column, or change the direction of one of several columns. */
  const addSortColumn = (section, link, url) => {
    const key = `${section.dataset.table}.sort`;
    const { column } = link.closest("th").dataset;
    const direction = (url.searchParams.get(key) || "").split(":")[1];
    const order = section.dataset.sort.split(",").filter(Boolean);
    const place = order.findIndex((each) => each.split(":")[0] === column);
    order.splice(place < 0 ? order.length : place, place < 0 ? 0 : 1, ...(direction ? [`${column}:${direction}`] : []));
    url.searchParams.set(key, order.join(",") || "none");
  };

  const copy = (link) =>
    tracekit.request(link.href)
      .then((answer) => answer.text())
      .then((text) => navigator.clipboard.writeText(text))
      .then(() => tracekit.announce("Copied the rows to the clipboard."))
      .catch((error) => tracekit.announce(`The rows could not be copied: ${error.message}`));

  addEventListener("click", (event) => {
    if (!(event.target instanceof Element) || event.button !== 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const section = tableOf(event.target);
    if (!section) return;
    let link = event.target.closest("a, button, input, label, summary, details");
    if (!link && getSelection().isCollapsed) link = event.target.closest("tbody tr")?.querySelector("a.select") ?? null;
    if (!(link instanceof HTMLAnchorElement)) return;
    if (link.classList.contains("copy")) {
      event.preventDefault();
      copy(link);
      return;
    }
    const isSort = link.classList.contains("sort");
    if (!("change" in link.dataset) || (event.shiftKey && !isSort)) return;
    event.preventDefault();
    const url = new URL(link.href);
    const name = section.dataset.table;
    if (event.shiftKey) addSortColumn(section, link, url);
    load(name, [...url.searchParams]);
  }, true);
  addEventListener("submit", (event) => {
    if (!event.target.classList.contains("table-form")) return;
    event.preventDefault();
    submit(event.target);
  }, true);
  addEventListener("input", (event) => {
    const form = event.target instanceof HTMLInputElement && formOf(event.target);
    if (!form) return;
    const { table } = tableOf(form).dataset;
    clearTimeout(timers.get(table));
    timers.set(table, setTimeout(() => submit(find(table).querySelector(".table-form")), TYPING_MS));
  });
})();
