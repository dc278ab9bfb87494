/* The script of the viewer: parts of pages that arrive later, forms, and the state of the server. Without this script,
   links and buttons show the same. Text from captures is only ever inserted as text or as HTML that the server escaped. */
"use strict";

(() => {
  const LOST = "The server of this page does not answer. Start tracekit view again, and reload this page.";
  const REFUSED = "The server refuses the requests of this page. Open the URL that tracekit view printed.";
  const RESTARTED = "The server was started again. Reload this page.";
  const AT_ONCE = 2;

  /* Screen readers read these messages aloud. The messages are visible for 15 seconds. */
  let clearing = 0;
  const announce = (text) => {
    const region = document.getElementById("announcement");
    region.textContent = text;
    clearTimeout(clearing);
    clearing = setTimeout(() => (region.textContent = ""), 15000);
  };

  /* Each element with data-fragment is replaced with the answer to a request of this URL, first those
     of the content. The answer may contain such elements itself. Scripts of parts of pages listen to the event tracekit:insert. */
  const waiting = [];
  let active = 0;
  const collect = (root) => {
    for (const part of [...root.querySelectorAll("main [data-fragment]"), ...root.querySelectorAll("[data-fragment]")]) {
      if (part.hasAttribute("data-requested")) continue;
      part.setAttribute("data-requested", "");
      part.setAttribute("aria-busy", "true");
      waiting.push(part);
    }
    while (active < AT_ONCE && waiting.length) load(waiting.shift());
  };
  const replace = (part, text) => {
    const template = document.createElement("template");
    template.innerHTML = text;
    const added = [...template.content.children];
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const href = focused && focused.getAttribute("href");
    part.replaceWith(template.content);
    if (focused) {
      const again = added.flatMap((each) => [...each.querySelectorAll("a[href]")]).find((each) => each.getAttribute("href") === href);
      if (again) again.focus();
    }
    for (const each of added) {
      each.dispatchEvent(new CustomEvent("tracekit:insert", { bubbles: true }));
      if (each.matches("[data-fragment]")) collect(each.parentNode);
      else collect(each);
    }
  };
  const load = async (part) => {
    active += 1;
    try {
      const answer = await request(part.dataset.fragment);
      if (part.isConnected) replace(part, await answer.text());
    } catch (error) {
      part.removeAttribute("aria-busy");
      const status = part.querySelector(".pending");
      if (status) [status.className, status.textContent] = ["failed", `This panel could not be loaded: ${error.message}`];
    }
    active -= 1;
    collect(document);
  };

  /* Ask the server once per second while something is computed, and otherwise every five seconds, whether it still runs,
     what it computes, and whether the files of the captures have changed. */
  const report = (text) => {
    const region = document.getElementById("connection");
    if (region.textContent !== text) region.textContent = text;
  };
  /* Captures that are opened while the page is shown, without losing its state. */
  const showCaptures = (status) => {
    const shown = document.getElementById("captures");
    if (!shown || (!status.waiting && status.version === Number(shown.dataset.version))) return;
    const added = status.opened - Number(shown.dataset.opened);
    let text = "A capture was read again, because its file changed.";
    if (status.waiting) text = `${status.opened} of ${status.opened + status.waiting} captures are read.`;
    else if (Number(shown.dataset.waiting)) text = `All ${status.opened} captures are read.`;
    else if (added) text = added === 1 ? "1 new capture." : `${added} new captures.`;
    const link = document.createElement("a");
    [link.href, link.textContent] = [location.pathname + location.search, "Show"];
    const message = document.createElement("p");
    message.setAttribute("role", "status");
    message.append(`${text} `, ...(status.version === Number(shown.dataset.version) ? [] : [link]));
    const before = shown.querySelector("p");
    if (before && before.textContent === message.textContent) return;
    if (before) before.replaceWith(message);
    else shown.append(message);
  };
  let server = null;
  const showStatus = (status) => {
    server = server || status.server;
    const changed = status.changed.length && !document.querySelector(".replaced");
    if (server !== status.server) report(RESTARTED);
    else report(changed ? `${status.changed.join(", ")}: the file has changed. It is read again when it is complete.` : "");
    showCaptures(status);
    const text = document.querySelector("#progress p");
    if (status.activities.length) text.textContent = `${status.activities.join(", ")} …`;
  };
  const checkServer = () =>
    fetch("/status", { cache: "no-store" })
      .then((answer) => (answer.ok ? answer.json().then(showStatus) : report(REFUSED)))
      .catch(() => report(LOST));

  /* A failed request of any part of the page also shows that the server is lost. */
  const request = async (url, options) => {
    let answer;
    try {
      answer = await fetch(url, options);
    } catch (error) {
      if (error.name !== "AbortError") checkServer();
      throw error;
    }
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  };
  let seconds = 0;
  setInterval(() => {
    const isWaiting = !document.getElementById("progress").hidden || active > 0;
    seconds += 1;
    if (!document.hidden && (isWaiting || seconds % 5 === 0)) checkServer();
  }, 1000);

  /* A page that takes long to compute: say what the server does. */
  let leaving = 0;
  const leave = () => {
    clearTimeout(leaving);
    leaving = setTimeout(() => (document.getElementById("progress").hidden = false), 400);
  };
  const stay = () => {
    clearTimeout(leaving);
    document.getElementById("progress").hidden = true;
  };
  addEventListener("pageshow", stay);

  /* The parameters of tables change without a new page. Links and forms of the scope keep them. */
  const isOfTable = (name) => name.includes(".") && !/\.(select|page)$/.test(name);
  const keepTables = (parameters) => {
    for (const name of [...parameters.keys()]) if (name.includes(".")) parameters.delete(name);
    for (const [name, value] of new URLSearchParams(location.search)) if (isOfTable(name)) parameters.append(name, value);
  };
  addEventListener("keydown", (event) => { if (event.key === "Escape") stay(); });
  document.addEventListener("submit", (event) => { if (!event.defaultPrevented) leave(); });
  document.addEventListener("formdata", (event) => { if (event.target.closest(".scope")) keepTables(event.formData); });
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (link && link.closest(".scope")) {
      const url = new URL(link.href);
      keepTables(url.searchParams);
      link.href = url;
    }
    const isPlain = link && !event.defaultPrevented && event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey);
    if (isPlain && !link.hasAttribute("download") && !link.target && !link.getAttribute("href").startsWith("#")) leave();
  });

  /* A choice with the pointer opens the page at once. With the keyboard, the button does. Escape closes menus. */
  document.addEventListener("pointerdown", (event) => {
    if (event.target instanceof HTMLSelectElement) event.target.dataset.pointer = "";
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLSelectElement) delete event.target.dataset.pointer;
    const menu = event.key === "Escape" && event.target instanceof Element && event.target.closest("details.menu[open]");
    if (menu) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  document.addEventListener("change", (event) => {
    const { target } = event;
    if (target instanceof HTMLSelectElement && "pointer" in target.dataset && target.form) target.form.requestSubmit();
  });

  window.tracekit = { announce, request, collect, replace };
  collect(document);
})();
