/* Functions of the tables, links and downloads of tracekit view. Text from captures is only ever inserted as text. */
"use strict";

window.dashAgGridFunctions = window.dashAgGridFunctions || {};
window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {};
window.dash_clientside = window.dash_clientside || {};

(() => {
  const functions = window.dashAgGridFunctions;
  const components = window.dashAgGridComponentFunctions;
  const integer = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const decimal = new Intl.NumberFormat("en-US", { maximumFractionDigits: 3 });

  const formatNumber = (value, format) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return format.format(value);
    return /^-?\d+$/.test(value) ? integer.format(BigInt(value)) : String(value);
  };

  /* Characters that change the direction of text would show a name in another order than it has. components.py escapes
     them in the other texts of pages. */
  const escapeDirections = (text) =>
    text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

  functions.tracekitText = (params) => (typeof params.value === "string" ? escapeDirections(params.value) : params.value);
  functions.tracekitInteger = (params) => formatNumber(params.value, integer);
  functions.tracekitFloat = (params) => formatNumber(params.value, decimal);
  functions.tracekitLabel = (params) => {
    if (params.node && params.node.rowPinned) return params.data._label;
    return typeof params.value === "number" ? integer.format(params.value) : functions.tracekitText(params);
  };
  /* The Tab key leaves the grid. The arrow keys move from cell to cell. */
  functions.tracekitLeaveGrid = () => false;

  /* Enter expands or collapses a row of a tree, and opens the link of a cell. Ctrl-C or Cmd-C copies the complete value of
     the focused cell, unless text is selected. */
  functions.tracekitPressKey = (params) => {
    const event = params.event;
    if (event && event.key === "Enter" && event.target instanceof Element) {
      const link = event.target.querySelector("a.row-link");
      if (link) link.click();
      else toggle(params.api, params.node);
      return;
    }
    if (!event || !(event.ctrlKey || event.metaKey) || event.key !== "c") return;
    if (String(window.getSelection() || "") !== "" || params.value === null || params.value === undefined) return;
    navigator.clipboard.writeText(String(params.value));
  };

  /* The row that the URL selects is marked when its page of rows arrives. */
  functions.tracekitSelectRow = (params) => {
    const { selected } = params.api.getGridOption("context") || {};
    const node = selected ? params.api.getRowNode(selected) : null;
    if (node) node.setSelected(true);
  };

  /* Expand or collapse a row. The rows whose state differs from the default of the chosen depth are stored. */
  const toggle = (api, node) => {
    const { table } = api.getGridOption("context") || {};
    if (!table || !node || !node.data || typeof node.data._expanded !== "boolean") return;
    const toggled = new Set((stateOf(table).toggled || "").split(",").filter((key) => key));
    if (!toggled.delete(node.data._id)) toggled.add(node.data._id);
    dash_clientside.set_props({ part: "toggled", ...table }, { data: [...toggled].join(",") });
  };

  components.TreeCell = (props) => {
    const text = escapeDirections(String(props.value ?? ""));
    const name = text.replace(/^\u2007+/, "");
    const indent = text.slice(0, text.length - name.length);
    const expanded = props.data ? props.data._expanded : null;
    if (typeof expanded !== "boolean") return React.createElement("span", null, `${indent}\u2007\u2007${name}`);
    const button = {
      type: "button",
      className: "tree-button",
      tabIndex: -1,
      "aria-expanded": expanded,
      "aria-label": `${expanded ? "Collapse" : "Expand"} ${name}`,
      /* The click must not reach the grid, which would select the row. React handles clicks only after the grid. */
      ref: (element) => {
        if (!element) return;
        element.onclick = (event) => {
          event.stopPropagation();
          toggle(props.api, props.node);
        };
      },
    };
    return React.createElement("span", null, indent, React.createElement("button", button, expanded ? "▾" : "▸"), name);
  };

  const addParameters = (url, parameters) => {
    const target = new URL(url, window.location.origin);
    Object.entries(parameters).forEach(([name, value]) => target.searchParams.set(name, value));
    return target.pathname + target.search;
  };

  const link = (href, text, label) => React.createElement("a", { href, "aria-label": label, className: "row-link" }, text);

  components.TimelineLink = (props) => {
    if (!props.data || props.node.rowPinned) return null;
    const start = Number(props.data[props.start]);
    if (props.data[props.start] === null || !Number.isFinite(start)) return null;
    const end = props.data.end_ns === null || props.data.end_ns === undefined ? start + Number(props.data.duration_ns || 0) : Number(props.data.end_ns);
    return link(addParameters(props.url, { start, end }), "Show", "Show in timeline");
  };

  components.PageLink = (props) => {
    if (!props.data || props.node.rowPinned) return null;
    const filter = {};
    Object.entries(props.filters).forEach(([column, source]) => {
      const value = props.data[source];
      filter[column] = value === null ? { filterType: "text", type: "blank" } : { filterType: "text", type: "equals", filter: String(value) };
    });
    return link(addParameters(props.url, { [`${props.table}.filter`]: JSON.stringify(filter) }), props.label, props.label);
  };

  /* Request a URL and return the text of the response. If the server reports an error, this text is the error message. */
  const request = (url) => fetch(url).then((answer) => answer.text().then((text) => (answer.ok ? text : Promise.reject(new Error(text)))));

  /* The state of each table, for the URL and for downloads. */
  const tables = new Map();

  const stateOf = (id) => {
    const found = [...tables.entries()].find(([key]) => {
      if (key.endsWith(" first")) return false;
      const other = JSON.parse(key);
      return ["table", "at", "arguments"].every((name) => other[name] === id[name]);
    });
    return found ? found[1] : {};
  };

  const gridApi = (id) => dash_ag_grid.getApi(JSON.stringify(Object.fromEntries(Object.entries(id).sort())));

  const sortOf = (columns) =>
    (columns || [])
      .filter((column) => column.sort)
      .sort((a, b) => (a.sortIndex || 0) - (b.sortIndex || 0))
      .map((column) => `${column.colId}:${column.sort}`)
      .join(",");

  const replaceUrl = (changes) => {
    const url = new URL(window.location.href);
    Object.entries(changes).forEach(([name, value]) => {
      if (value === "" || value === null || value === undefined) url.searchParams.delete(name);
      else url.searchParams.set(name, value);
    });
    window.history.replaceState(window.history.state, "", url.pathname + url.search);
  };

  window.dash_clientside.tracekit = {
    remember: (filter, columns, search, condition, shown, selected, toggled, id) => {
      const key = JSON.stringify(id);
      const before = tables.get(key);
      const name = id.table;
      const now = {
        filter: filter && Object.keys(filter).length ? JSON.stringify(filter) : "",
        sort: sortOf(columns),
        search: search || "",
        condition: condition || "",
        columns: (shown || []).join(","),
        toggled: toggled || "",
      };
      tables.set(key, now);
      const api = gridApi(id);
      if (before && api) {
        if (before.search !== now.search || before.condition !== now.condition) {
          api.purgeInfiniteCache();
          api.paginationGoToFirstPage();
        }
        if (before.toggled !== now.toggled) api.refreshInfiniteCache();
        if (before.columns !== now.columns) {
          const wanted = new Set(shown);
          const all = api.getColumns().map((column) => column.getColId()).filter((column) => !column.startsWith("_"));
          api.setColumnsVisible(all.filter((column) => !wanted.has(column)), false);
          api.setColumnsVisible(all.filter((column) => wanted.has(column)), true);
        }
      }
      if (before || columns) {
        const first = tables.get(`${key} first`) || now.columns;
        tables.set(`${key} first`, first);
        const row = Array.isArray(selected) && selected.length ? selected[0]._id : undefined;
        const changes = {
          [`${name}.filter`]: now.filter,
          [`${name}.search`]: now.search,
          [`${name}.where`]: now.condition,
          [`${name}.toggled`]: now.toggled,
        };
        if (columns && api) {
          const { sort } = api.getGridOption("context") || {};
          changes[`${name}.sort`] = now.sort === sort ? "" : now.sort || "none";
        }
        if (now.columns !== first) changes[`${name}.columns`] = now.columns;
        if (row !== undefined) changes[`${name}.select`] = row;
        replaceUrl(changes);
      }
      return window.dash_clientside.no_update;
    },

    clear: (clicks) => (clicks ? ["", "", {}] : Array(3).fill(window.dash_clientside.no_update)),

    exportRows: (clicks, id) => {
      if (!clicks) return window.dash_clientside.no_update;
      const state = stateOf(id);
      const url = addParameters("/download", {
        table: id.table,
        at: id.at,
        arguments: id.arguments,
        format: id.format,
        filter: state.filter || "",
        sort: state.sort || "",
        search: state.search || "",
        condition: state.condition || "",
        columns: state.columns || "",
      });
      const failed = (error) => announce(`The rows could not be exported: ${error.message}`);
      if (id.format === "tsv") {
        request(url)
          .then((text) => navigator.clipboard.writeText(text))
          .then(() => announce("Copied the rows to the clipboard."))
          .catch(failed);
      } else {
        request(url.replace("/download?", "/download/check?"))
          .then(() => {
            const anchor = document.createElement("a");
            anchor.href = url;
            anchor.download = "";
            document.body.append(anchor);
            anchor.click();
            anchor.remove();
          })
          .catch(failed);
      }
      return String(clicks);
    },

    /* The color scheme is the one that the user chose last or, by default, the scheme of the system. */
    scheme: (clicks, stored) => {
      const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      const now = stored === "dark" || stored === "light" ? stored : system;
      const next = clicks ? (now === "dark" ? "light" : "dark") : now;
      return [next, clicks ? next : window.dash_clientside.no_update];
    },

    title: (title) => {
      if (title) document.title = title;
      return window.dash_clientside.no_update;
    },

    /* Perfetto's page ignores a request to zoom until it shows the tracks of the trace. */
    zoom: () => {
      const frame = document.getElementById("perfetto");
      if (!frame) return window.dash_clientside.no_update;
      const { start, end } = frame.dataset;
      const limit = Date.now() + 120000;
      const ask = () => {
        if (!frame.isConnected || Date.now() > limit) return;
        const page = frame.contentDocument;
        if (!page || !page.querySelector(".pf-track")) {
          window.setTimeout(ask, 250);
          return;
        }
        frame.contentWindow.postMessage(
          { perfetto: { timeStart: Number(start) / 1e9, timeEnd: Number(end) / 1e9, viewPercentage: 1 } }, window.location.origin);
        frame.dataset.zoomed = "yes";
      };
      window.setTimeout(ask, 250);
      return "zooming";
    },

    /* The values of these controls are URLs. If a value differs from the initial one, open this URL. */
    navigate: (hrefs, initials) => {
      const changed = hrefs.findIndex((href, index) => href && href !== initials[index]);
      return changed < 0 ? window.dash_clientside.no_update : hrefs[changed];
    },
  };

  /* Ask the server once per second while a page is computed, and otherwise every five seconds, whether it still runs,
     what it computes, and whether the files of the captures have changed. */
  const LOST = "The server of this page does not answer. Start tracekit view again, and reload this page.";
  const REFUSED = "The server refuses the requests of this page. Open the URL that tracekit view printed.";
  const RESTARTED = "The server was started again. Reload this page.";
  const requestDirectly = window.fetch.bind(window);
  let server = null;
  let seconds = 0;

  const report = (text) => {
    const region = document.getElementById("connection");
    if (region && region.textContent !== text) region.textContent = text;
  };

  const showStatus = (status) => {
    server = server || status.server;
    const changed = status.changed.length && !document.querySelector(".replaced");
    if (server !== status.server) report(RESTARTED);
    else report(changed ? `${escapeDirections(status.changed.join(", "))}: the file has changed. Start tracekit view again.` : "");
    const progress = document.getElementById("progress");
    if (progress && status.activities.length) progress.textContent = `${escapeDirections(status.activities.join(", "))} …`;
  };

  const checkServer = () =>
    requestDirectly("/status", { cache: "no-store" })
      .then((answer) => (answer.ok ? answer.json().then(showStatus) : report(REFUSED)))
      .catch(() => report(LOST));

  /* A failed request of any control of the page also shows that the server is lost. */
  window.fetch = (...request) =>
    requestDirectly(...request).catch((error) => {
      if (error.name !== "AbortError") checkServer();
      throw error;
    });

  window.setInterval(() => {
    const waiting = document.getElementById("progress") || document.querySelector(".pending");
    seconds += 1;
    if (!document.hidden && (waiting || seconds % 5 === 0)) checkServer();
  }, 1000);

  /* The link to the content must not change the URL, because a new URL would reload the page. */
  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element) || !event.target.closest("a.skip")) return;
    event.preventDefault();
    document.getElementById("page").focus();
  });

  /* Screen readers read these messages aloud. The messages are visible for 15 seconds. */
  let clearing = 0;
  const announce = (text) => {
    const region = document.getElementById("announcement");
    if (!region) return;
    region.textContent = text;
    window.clearTimeout(clearing);
    clearing = window.setTimeout(() => (region.textContent = ""), 15000);
  };
})();
