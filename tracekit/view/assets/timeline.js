/* The timeline: tracks on a canvas, with their names, the search and the details in HTML. The server sends the events of a
   window that are wide enough to be drawn, and blocks of shorter ones. Until the events of a new window arrive, those of
   the old one are drawn at the new scale. Times are numbers relative to the start of the capture, which are exact below
   2^53. Text from captures is only ever inserted as text or as HTML that the server escaped. */
"use strict";

(() => {
  const root = document.getElementById("timeline");
  if (!root) return;
  const $ = (name) => root.querySelector(`.tl-${name}`);
  const [scroller, labels, pane, axis, tip, message] = ["scroll", "labels", "pane", "axis", "tip", "message"].map($);
  const canvas = pane.querySelector("canvas");
  const details = document.getElementById("timeline-details");
  const list = document.getElementById("timeline-events");
  const LANE = 15, FLAT = 14, GAP = 3, GROUP = 24, COUNTER = 30, MIN_SPAN = 200, EDGE = 5;
  const base = BigInt(root.dataset.first);
  const toNumber = (text) => Number(BigInt(text) - base);
  const toText = (time) => String(base + BigInt(Math.round(time)));
  const whole = { start: 0, end: toNumber(root.dataset.last) };
  const parameters = new URLSearchParams(root.dataset.parameters);
  const view = { start: toNumber(root.dataset.start), end: toNumber(root.dataset.end) };
  const state = { tracks: new Map(), rows: [], contexts: new Map(), groups: new Map(), flat: new Map(), selected: null,
    related: new Map(), cause: root.dataset.cause || "", cursor: null, row: null, hover: null };
  const shownCapture = Number(parameters.get("capture") || 0);
  const parts = root.dataset.parts.split(",").filter(Boolean);
  const opened = new Set(root.dataset.opened.split(",").filter(Boolean));
  const TITLES = { ranges: "Ranges on the GPU and synchronization", counters: "Counters", other: "Other events" };
  const span = () => view.end - view.start;
  const width = () => pane.clientWidth;

  /* Colors come from the style sheet, so that light and dark need one script. */
  let colors = {};
  const readColors = () => {
    const style = getComputedStyle(root);
    const get = (name) => style.getPropertyValue(`--tl-${name}`).trim();
    const names = ["ink", "label", "line", "ground", "band", "warm-up", "cold", "accent", "call", "range", "work", "cause", "block",
      "kernels", "communication", "memcpys", "memsets", "graph_launches", "api_calls", "osrt_calls", "syncs", "step", "projection",
      "other", "focus"];
    colors = Object.fromEntries(names.map((name) => [name, get(name)]));
    colors.names = [0, 1, 2, 3, 4, 5, 6, 7].map((number) => get(`name-${number}`));
    colors.idle = [0, 1, 2, 3, 4, 5, 6, 7].map((number) => get(`idle-${number}`));
  };
  const hash = (text) => {
    let value = 7;
    for (let i = 0; i < text.length; i += 1) value = (value * 31 + text.charCodeAt(i)) >>> 0;
    return value;
  };
  const colorOf = (color, name, part) => {
    if (part === "ranges" && color !== "syncs") return colors.projection;
    if (color === "kernels" || color === "nvtx_ranges") return colors.names[hash(name) % colors.names.length];
    if (color === "cause") return colors.idle[hash(name) % colors.idle.length];
    if (color.startsWith("idle-")) return colors.idle[Number(color.slice(5)) % colors.idle.length];
    return colors[color === "warm-up" ? "cold" : color] || colors.other;
  };

  /* Times as text. Units suit the size of a duration, and the distance of two ticks. */
  const UNITS = [["s", 9], ["ms", 6], ["µs", 3], ["ns", 0]];
  const isExact = () => document.documentElement.dataset.units === "exact";
  const group = (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ",");
  const formatExact = (value) => `${value < 0n ? "-" : ""}${group(String(value < 0n ? -value : value))} ns`;
  const format = (value, step) => {
    if (isExact()) return formatExact(value);
    const size = value < 0n ? -value : value;
    const [unit, digits] = UNITS.find(([, power]) => size >= 10n ** BigInt(power)) || UNITS[3];
    const decimals = Math.max(0, Math.min(digits, digits - Math.floor(Math.log10(Math.max(1, step)))));
    const text = String(size).padStart(digits + 1, "0");
    const rest = text.slice(text.length - digits, text.length - digits + decimals);
    return `${value < 0n ? "-" : ""}${group(text.slice(0, text.length - digits))}${digits && rest ? `.${rest}` : ""} ${unit}`;
  };
  const formatDuration = (ns) => {
    const value = BigInt(Math.round(ns));
    return format(value, Math.max(1, 10 ** (Math.floor(Math.log10(Math.max(1, ns))) - 3)));
  };

  /* Requests. A newer request of the same kind aborts the older one. */
  const running = new Map();
  const request = async (kind, path, values) => {
    running.get(kind)?.abort();
    const control = new AbortController();
    running.set(kind, control);
    const all = new URLSearchParams(parameters);
    for (const [name, value] of Object.entries(values)) all.set(name, value);
    try {
      const answer = await fetch(`${path}?${all}`, { signal: control.signal });
      if (!answer.ok) throw new Error(await answer.text());
      return answer;
    } finally {
      if (running.get(kind) === control) running.delete(kind);
    }
  };
  const say = (text) => { message.textContent = text; };
  const announce = (text) => { root.querySelector(".tl-spoken").textContent = text; };

  const load = async (names, kind = "data") => {
    const margin = span() / 2;
    const wanted = { start: view.start - margin, end: view.end + margin, pixel: span() / width() };
    try {
      const answer = await request(kind, "/timeline/data", { start: toText(wanted.start), end: toText(wanted.end),
        width: Math.max(50, Math.min(10000, Math.round(2 * width()))), parts: names.join(",") });
      const data = await answer.json();
      const first = toNumber(data.start);
      for (const name of names) {
        for (const [id, track] of state.tracks) if (track.part === name) state.tracks.delete(id);
        state.contexts.set(name, { start: wanted.start, end: wanted.end, pixel: data.pixel });
      }
      for (const track of data.tracks) state.tracks.set(track.id, unpack(track, data, first));
      if (data.notes.length) say(data.notes.join(" "));
      layout();
    } catch (error) {
      if (error.name !== "AbortError") say(`The timeline could not be loaded: ${error.message}`);
    }
  };
  const unpack = (track, data, first) => {
    const shift = (times) => times.map((time) => time + first);
    if (track.time) return { ...track, time: shift(track.time), height: COUNTER };
    const kinds = track.kind.map((code) => data.kinds[code]);
    const texts = track.name.map((index) => data.names[index]);
    const keys = kinds.map(([table], i) => (track.event ? track.event[i] : table && track.ids[i] !== null ? `${table}:${track.ids[i]}@${track.capture}` : ""));
    return { ...track, start: shift(track.start), end: shift(track.end), texts, keys,
      fill: kinds.map(([, color], i) => colorOf(color, texts[i], track.part)), colors: kinds.map(([, color]) => color) };
  };
  const isCovered = (name) => {
    const known = state.contexts.get(name);
    return known && known.start <= view.start && known.end >= view.end
      && (known.pixel <= (1.5 * span()) / width() || known.pixel <= 1 || !hasBlocks(name));
  };
  const hasBlocks = (name) => [...state.tracks.values()].some((t) => t.part === name && t.count && t.count.some((count) => count > 1));
  let pending = 0;
  const refresh = () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
      const missing = [...opened].filter((name) => state.contexts.has(name) && !isCovered(name));
      if (missing.length) load(missing);
      keepUrl();
    }, 120);
  };

  /* The URL is that of the picture, and links of the page that depend on the window follow it. */
  let listing = 0;
  const keepUrl = () => {
    const url = new URL(location.href);
    url.searchParams.set("start", toText(view.start));
    url.searchParams.set("end", toText(view.end));
    const kept = { event: state.selected?.short, cause: state.cause, window: state.cause && !state.selected ? "exact" : "" };
    for (const [name, value] of Object.entries(kept)) {
      if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
    }
    history.replaceState(null, "", url);
    for (const link of document.querySelectorAll("a[data-window]")) {
      const target = new URL(link.href);
      target.searchParams.set("start", toText(view.start));
      target.searchParams.set("end", toText(view.end));
      link.href = target;
    }
    clearTimeout(listing);
    listing = setTimeout(writeList, 500);
  };
  const writeList = async () => {
    if (!list.open) return;
    try {
      const answer = await request("list", "/timeline/events", { start: toText(view.start), end: toText(view.end) });
      list.querySelector(".tl-list").innerHTML = await answer.text();
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  };

  /* Rows: the heading of each group of tracks, and its tracks. The names are HTML, and the events are on the canvas. */
  const heightOf = (track) => {
    if (track.time) return COUNTER + GAP;
    return (isFlat(track) ? FLAT : track.lanes * LANE) + GAP;
  };
  const isFlat = (track) => track.lanes > 1 && (state.flat.get(track.id) ?? (track.part === "ranges" || track.part === "other"));
  const layout = () => {
    const groups = new Map();
    for (const part of parts) {
      const own = [...state.tracks.values()].filter((track) => track.part === part && (track.events || track.time));
      if (!opened.has(part)) groups.set(part, { title: TITLES[part] || part, part, tracks: [], closed: true });
      for (const track of own) {
        const title = (part === "other" ? `Other · ${track.group}` : track.group) || (part === "steps" || part === "causes" ? "Steps, causes and idle times" : part);
        const key = track.group ? `${part}/${title}` : title;
        if (!groups.has(key)) groups.set(key, { title, part, tracks: [], closed: state.groups.get(key) === false });
        groups.get(key).tracks.push(track);
      }
    }
    const rows = [];
    let y = 0;
    for (const [key, each] of groups) {
      rows.push({ key: `g:${key}`, group: key, title: each.title, part: each.part, open: !each.closed, y, height: GROUP });
      y += GROUP;
      for (const track of each.closed ? [] : each.tracks) {
        rows.push({ key: `t:${track.id}`, track, title: track.label, open: !isFlat(track), y, height: heightOf(track) });
        y += heightOf(track);
      }
    }
    state.rows = rows;
    writeLabels(y);
    draw();
  };
  const writeLabels = (total) => {
    const before = new Map([...labels.children].map((label) => [label.dataset.key, label]));
    const current = state.rows.map((row) => {
      const label = before.get(row.key) || Object.assign(document.createElement("button"), { type: "button" });
      before.delete(row.key);
      label.dataset.key = row.key;
      label.className = row.track ? "tl-track" : "tl-group";
      if (label.textContent !== row.title) [label.textContent, label.title] = [row.title, row.title];
      if (!row.track || row.track.lanes > 1) label.setAttribute("aria-expanded", String(row.open));
      label.style.top = `${row.y}px`;
      label.style.height = `${row.height}px`;
      return label;
    });
    before.forEach((label) => label.remove());
    current.forEach((label, index) => { if (labels.children[index] !== label) labels.insertBefore(label, labels.children[index] || null); });
    labels.style.height = `${total + 6}px`;
  };
  const toggle = (key) => {
    const row = state.rows.find((each) => each.key === key);
    if (!row) return;
    if (row.track) state.flat.set(row.track.id, row.open);
    else if (!opened.has(row.part)) {
      opened.add(row.part);
      say("");
      load([row.part], `data-${row.part}`);
    } else state.groups.set(row.group, !row.open);
    layout();
  };

  /* Drawing. */
  const prepare = (target, height) => {
    const ratio = devicePixelRatio || 1, wide = width();
    if (target.width !== Math.round(wide * ratio) || target.height !== Math.round(height * ratio)) {
      target.width = Math.round(wide * ratio);
      target.height = Math.round(height * ratio);
      target.style.width = `${wide}px`;
      target.style.height = `${height}px`;
    }
    const context = target.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, wide, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    return context;
  };
  const toX = (time) => ((time - view.start) / span()) * width();
  const toTime = (x) => view.start + (x / width()) * span();
  let frame = 0;
  const draw = () => { frame = frame || requestAnimationFrame(() => { frame = 0; drawNow(); }); };
  const drawNow = () => {
    const height = scroller.clientHeight;
    const context = prepare(canvas, height);
    drawBands(context, height);
    for (const row of state.rows) {
      const y = row.y - scroller.scrollTop;
      if (y + row.height < 0 || y > height) continue;
      context.fillStyle = colors.line;
      context.fillRect(0, y + row.height - 1, width(), 1);
      if (!row.track) continue;
      if (row.track.time) drawCounter(context, row.track, y);
      else drawTrack(context, row.track, y);
      if (state.row === row.key) { context.strokeStyle = colors.focus; context.strokeRect(0.5, y + 0.5, width() - 1, row.height - 2); }
    }
    drawArrow(context);
    drawAxis();
  };
  const drawBands = (context, height) => {
    context.fillStyle = colors.ground;
    context.fillRect(0, 0, width(), height);
    const steps = [...state.tracks.values()].filter((track) => track.part === "steps")
      .sort((a, b) => (b.capture === shownCapture) - (a.capture === shownCapture))[0];
    if (!steps || span() / width() > (steps.end[0] - steps.start[0]) / 3) return;
    steps.start.forEach((start, i) => {
      const warm = steps.colors[i] === "warm-up";
      if (steps.count[i] > 1 || (!warm && i % 2)) return;
      const x = Math.max(0, toX(start)), end = Math.min(width(), toX(steps.end[i]));
      context.fillStyle = warm ? colors["warm-up"] : colors.band;
      if (end > x) context.fillRect(x, 0, end - x, height);
    });
  };
  const laneHeight = (track) => (isFlat(track) ? FLAT : LANE);
  const placeOf = (track, i, y) => [y + 1 + (isFlat(track) ? 0 : track.lane[i] * LANE), laneHeight(track) - 2];
  const drawTrack = (context, track, y) => {
    const wide = width(), dims = state.selected || state.cause;
    const quiet = track.part === "ranges" && isFlat(track);
    for (let i = 0; i < track.start.length; i += 1) {
      const x = toX(track.start[i]), end = toX(track.end[i]);
      if (end < 0 || x > wide) continue;
      const left = Math.max(x, -EDGE), right = Math.max(left + 1, Math.min(end, wide + EDGE));
      const [top, tall] = placeOf(track, i, y);
      const length = track.end[i] - track.start[i];
      const share = track.count[i] > 1 && length > 0 ? Math.min(1, track.busy[i] / length) : 1;
      const role = roleOf(track, i);
      context.globalAlpha = (0.3 + 0.7 * share) * (dims && !role ? 0.5 : 1) * (quiet ? 0.35 : 1);
      context.fillStyle = track.fill[i];
      context.fillRect(left, quiet ? top + tall / 2 - 1 : top, Math.max(1, right - left - (right - left > 4 ? 0.6 : 0)), quiet ? 2 : tall);
      context.globalAlpha = 1;
      if (role) {
        context.strokeStyle = colors[role];
        context.lineWidth = 2;
        context.strokeRect(left + 1, top, Math.max(2, right - left - 2), tall);
        context.lineWidth = 1;
      }
      if (right - left > 28 && !quiet) drawText(context, textOf(track, i), Math.max(left, 0) + 3, top + tall / 2 + 0.5, Math.min(right, wide) - Math.max(left, 0) - 6);
    }
  };
  const roleOf = (track, i) => {
    const key = track.keys[i];
    if (track.part === "causes" && state.cause && track.texts[i] === state.cause && track.colors[i] === "cause") return "cause";
    if (!key || track.count[i] > 1) return "";
    if (state.selected?.key === key) return "accent";
    return state.related.get(key) || (state.cause && track.part !== "causes" && causeKeys().has(key) ? "cause" : "");
  };
  let causes = null;
  const causeKeys = () => {
    if (causes?.from === state.tracks && causes.cause === state.cause && causes.at === state.contexts.get("causes")) return causes.keys;
    const keys = new Set();
    for (const track of state.tracks.values()) {
      if (track.part === "causes") track.keys.forEach((key, i) => { if (key && track.texts[i] === state.cause) keys.add(key); });
    }
    causes = { from: state.tracks, cause: state.cause, at: state.contexts.get("causes"), keys };
    return keys;
  };
  const textOf = (track, i) => (track.count[i] > 1 ? `${track.count[i].toLocaleString("en")} × ${track.texts[i]}` : track.texts[i]);
  const drawText = (context, text, x, y, room) => {
    const fits = Math.floor(room / 6);
    if (fits < 3) return;
    context.fillStyle = colors.ink;
    context.save();
    context.beginPath();
    context.rect(x - 1, y - 9, room + 2, 18);
    context.clip();
    context.fillText(text.slice(0, fits + 8), x, y);
    context.restore();
  };
  const drawCounter = (context, track, y) => {
    const [low, high] = track.range || [0, 1];
    const top = y + 3, tall = COUNTER - 5, from = Math.min(0, low), scale = high > from ? tall / (high - from) : 0;
    const toY = (value) => top + tall - (value - from) * scale;
    context.fillStyle = colors.api_calls;
    for (let i = 0; i < track.time.length; i += 1) {
      const x = Math.max(0, toX(track.time[i])), end = Math.min(width(), i + 1 < track.time.length ? toX(track.time[i + 1]) : toX(whole.end));
      if (end < 0 || x > width() || end < x) continue;
      context.globalAlpha = 0.3;
      context.fillRect(x, toY(track.low[i]), Math.max(1, end - x), Math.max(0, top + tall - toY(track.low[i])));
      context.globalAlpha = 0.85;
      context.fillRect(x, toY(track.high[i]), Math.max(1, end - x), Math.max(1.2, toY(track.low[i]) - toY(track.high[i])));
    }
    context.globalAlpha = 1;
    context.fillStyle = colors.label;
    context.fillText(high.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 }), 3, y + 8);
  };
  const placeOfKey = (key) => {
    for (const row of state.rows) {
      const at = row.track?.keys ? row.track.keys.findIndex((each, i) => each === key && row.track.count[i] === 1) : -1;
      if (at >= 0 && row.track.part !== "causes" && row.track.part !== "ranges") return [row, at];
    }
    return null;
  };
  const drawArrow = (context) => {
    if (!state.arrow) return;
    const [from, to] = state.arrow.map(placeOfKey);
    if (!from || !to) return;
    const [[x, y], [endX, endY]] = [from, to].map(([row, i]) => {
      const [top, tall] = placeOf(row.track, i, row.y - scroller.scrollTop);
      return [toX(row.track.start[i]), top + tall / 2];
    });
    context.strokeStyle = colors.call;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x + 30, y, endX - 30, endY, endX, endY);
    context.stroke();
    context.lineWidth = 1;
  };
  const chooseStep = () => {
    const room = (span() / width()) * (isExact() ? 160 : 125);
    const power = 10 ** Math.floor(Math.log10(Math.max(1, room)));
    return Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= room));
  };
  const drawAxis = () => {
    const context = prepare(axis, 26);
    const step = chooseStep();
    const first = (base + BigInt(Math.floor(view.start))) / BigInt(step);
    context.strokeStyle = colors.label;
    for (let n = first - 1n; n <= first + BigInt(Math.ceil(span() / step) + 2); n += 1n) {
      const x = toX(Number(n * BigInt(step) - base));
      if (x < 0 || x > width()) continue;
      const text = format(n * BigInt(step), step);
      context.fillStyle = colors.label;
      context.fillRect(Math.round(x), 18, 1, 8);
      if (x + 3 + context.measureText(text).width <= width()) context.fillText(text, x + 3, 10);
    }
    if (state.hover !== null) { context.fillStyle = colors.accent; context.fillRect(state.hover, 0, 1, 26); }
  };

  /* Moving. */
  const show = (start, end) => {
    const limit = whole.end - whole.start;
    let size = Math.min(Math.max(end - start, MIN_SPAN), 3 * limit + 1e6);
    let low = (start + end - size) / 2;
    low = Math.min(Math.max(low, whole.start - size * 0.75), whole.end - size * 0.25);
    [view.start, view.end] = [low, low + size];
    hideTip();
    draw();
    refresh();
  };
  const zoom = (factor, x = width() / 2) => {
    const time = toTime(x);
    show(time - (time - view.start) * factor, time + (view.end - time) * factor);
  };
  const pan = (share) => show(view.start + span() * share, view.end + span() * share);
  const showSteps = () => {
    let [low, high] = [Infinity, -Infinity];
    for (const track of state.tracks.values()) {
      if (track.part !== "steps") continue;
      track.colors.forEach((color, i) => {
        if (color === "step") [low, high] = [Math.min(low, track.start[i]), Math.max(high, track.end[i])];
      });
    }
    if (low > high) say("No steps are known.");
    else show(low - (high - low) / 50, high + (high - low) / 50);
  };
  const actions = { in: () => zoom(0.5), out: () => zoom(2), earlier: () => pan(-0.5), later: () => pan(0.5), all: () => show(whole.start, whole.end), steps: showSteps };

  /* What is at a place of the canvas: the row, and the smallest event or block there. */
  const find = (x, y) => {
    const at = y + scroller.scrollTop;
    const row = state.rows.find((each) => at >= each.y && at < each.y + each.height);
    if (!row?.track) return null;
    const { track } = row;
    const low = toTime(x - 1.5), high = toTime(x + 1.5);
    if (track.time) {
      let index = -1;
      for (let i = 0; i < track.time.length && track.time[i] <= high; i += 1) index = i;
      return index < 0 ? null : { row, track, index };
    }
    let index = -1;
    for (let i = 0; i < track.start.length; i += 1) {
      if (track.start[i] > high || track.end[i] < low) continue;
      const [top, tall] = placeOf(track, i, row.y);
      if (at < top - 1 || at > top + tall + 1) continue;
      if (index < 0 || track.end[i] - track.start[i] <= track.end[index] - track.start[index]) index = i;
    }
    return index < 0 ? null : { row, track, index };
  };
  const describe = ({ track, index: i }) => {
    if (track.time) return `${track.label}: ${track.low[i] === track.high[i] ? "" : `${track.low[i]} to `}${track.high[i]}, ${format(base + BigInt(track.time[i]), 1)}`;
    const start = base + BigInt(track.start[i]);
    const place = `${format(start, 1)} (${formatExact(start)})`;
    if (track.count[i] > 1) return `${track.count[i].toLocaleString("en")} events, ${formatDuration(track.busy[i])} in total, from ${place}; the longest: ${track.texts[i]}`;
    return `${track.texts[i]}, ${formatDuration(track.end[i] - track.start[i])} (${formatExact(BigInt(track.end[i] - track.start[i]))}), at ${place}`;
  };
  const hideTip = () => { tip.hidden = true; };
  const showTip = (x, y, target) => {
    tip.textContent = describe(target);
    tip.hidden = false;
    const box = root.querySelector(".tl-view").getBoundingClientRect(), at = pane.getBoundingClientRect();
    const left = Math.min(at.left - box.left + x + 12, box.width - Math.min(tip.offsetWidth, box.width) - 4);
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${axis.offsetHeight + Math.max(0, Math.min(y + 14, scroller.clientHeight - tip.offsetHeight - 4))}px`;
  };

  /* Selecting. */
  const choose = (target) => {
    if (!target || target.track.time) return;
    const { track, index: i } = target;
    const margin = (track.end[i] - track.start[i]) * 0.15;
    if (track.count[i] > 1 || ["step", "warm-up"].includes(track.colors[i])) show(track.start[i] - margin, track.end[i] + margin);
    else if (track.keys[i]) {
      if (track.colors[i] === "cause") state.cause = track.texts[i];
      select(track.keys[i]);
    } else announce(describe(target));
  };
  const shorten = (key) => key.replace(new RegExp(`@${parameters.get("capture") || "0"}$`), "");
  const ROLES = { "API call": "call", Ranges: "range", "Work on the GPU": "work" };
  const accept = (panel) => {
    const key = panel.dataset.event;
    state.selected = { key, short: shorten(key), start: toNumber(panel.dataset.start), end: toNumber(panel.dataset.end) };
    state.related = new Map();
    const related = JSON.parse(panel.dataset.related);
    for (const [role, keys] of Object.entries(related)) for (const each of keys) state.related.set(each, ROLES[role]);
    const [call, work] = [related["API call"]?.[0], related["Work on the GPU"]?.[0]];
    state.arrow = call ? [call, key] : key.startsWith("api_calls:") && work ? [key, work] : null;
  };
  const select = async (key, { centered = false } = {}) => {
    try {
      const answer = await request("event", "/timeline/event", { event: key, cause: state.cause });
      details.innerHTML = await answer.text();
      accept(details.querySelector(".event-details"));
      details.querySelectorAll("[data-fragment]").forEach(complete);
      if (centered) center();
      reveal();
      draw();
      keepUrl();
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  };
  const complete = async (part) => {
    try {
      const answer = await fetch(part.dataset.fragment);
      if (answer.ok) part.outerHTML = await answer.text(); else part.textContent = await answer.text();
    } catch (error) {
      part.textContent = error.message;
    }
  };
  const deselect = () => {
    [state.selected, state.arrow, state.cause] = [null, null, ""];
    state.related = new Map();
    details.replaceChildren();
    draw();
    keepUrl();
  };
  const center = () => {
    const { start, end } = state.selected;
    const margin = Math.max(4 * (end - start), 10000);
    show(start - margin, end + margin);
  };
  const reveal = () => {
    const place = state.selected && placeOfKey(state.selected.key);
    if (!place) return;
    const [row, i] = place;
    const [top, tall] = placeOf(row.track, i, row.y);
    if (top < scroller.scrollTop || top + tall > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = Math.max(0, top - scroller.clientHeight / 3);
  };

  /* The keyboard: a cursor moves from event to event of a track. */
  const currentRow = () => {
    const focused = document.activeElement?.dataset?.key;
    return state.rows.find((row) => row.key === (focused || state.row)) || null;
  };
  const moveRow = (step) => {
    const tracks = state.rows.filter((row) => row.track);
    const at = tracks.findIndex((row) => row.key === state.row);
    const next = tracks[Math.max(0, Math.min(tracks.length - 1, at + step))];
    if (!next) return;
    state.row = next.key;
    if (next.y < scroller.scrollTop || next.y + next.height > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = Math.max(0, next.y - 40);
    announce(next.title);
    draw();
  };
  const moveCursor = (step) => {
    const row = currentRow() || state.rows.find((each) => each.track?.start?.length);
    if (!row?.track?.start?.length) return;
    state.row = row.key;
    const { track } = row;
    const order = track.start.map((_, i) => i).sort((a, b) => track.start[a] - track.start[b] || track.lane[a] - track.lane[b]);
    const known = state.cursor?.row === row.key ? order.indexOf(state.cursor.index) : -1;
    const visible = order.findIndex((i) => track.end[i] >= view.start && track.start[i] <= view.end);
    const next = order[known >= 0 && track.start[order[known]] === state.cursor.start ? known + step : Math.max(0, visible)];
    if (next === undefined) return;
    state.cursor = { row: row.key, index: next, start: track.start[next] };
    if (track.start[next] < view.start || track.start[next] > view.end) show(track.start[next] - span() / 2, track.start[next] + span() / 2);
    const target = { row, track, index: next };
    announce(describe(target));
    showTip(toX(track.start[next]), row.y - scroller.scrollTop + track.lane[next] * LANE, target);
  };
  const keys = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), ArrowUp: () => moveRow(-1), ArrowDown: () => moveRow(1),
    "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), Home: () => show(whole.start, whole.end),
    "[": () => moveCursor(-1), "]": () => moveCursor(1), Escape: deselect,
  };
  root.querySelector(".tl-view").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowLeft: "[", ArrowRight: "]" };
    const action = keys[event.shiftKey && steps[event.key] ? steps[event.key] : event.key];
    if (action) {
      event.preventDefault();
      action();
    } else if (event.key === "Enter" && state.cursor && event.target === canvas) {
      const row = state.rows.find((each) => each.key === state.cursor.row);
      if (row?.track) choose({ row, track: row.track, index: state.cursor.index });
    }
  });
  labels.addEventListener("click", (event) => {
    const label = event.target.closest("button");
    if (label) toggle(label.dataset.key);
  });

  /* The pointer: dragging moves, dragging with Shift or on the axis zooms to a window, two fingers zoom. */
  const pointers = new Map();
  let drag = null;
  const placeOn = (event) => {
    const box = pane.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - scroller.getBoundingClientRect().top];
  };
  const startDrag = (event) => {
    if (event.button) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    const [x, y] = placeOn(event);
    pointers.set(event.pointerId, x);
    drag = { x, y, start: view.start, end: view.end, moved: false, zooms: event.shiftKey || event.currentTarget === axis };
  };
  const moveDrag = (event) => {
    const [x, y] = placeOn(event);
    if (!pointers.has(event.pointerId)) {
      const target = event.currentTarget === canvas ? find(x, y) : null;
      state.hover = x;
      if (target) showTip(x, y, target); else hideTip();
      canvas.classList.toggle("tl-over", Boolean(target));
      drawAxis();
      return;
    }
    const before = pointers.get(event.pointerId);
    const other = [...pointers].find(([id]) => id !== event.pointerId);
    pointers.set(event.pointerId, x);
    if (other) {
      const [near, far] = [Math.abs(before - other[1]), Math.abs(x - other[1])];
      if (near > 5 && far > 5) zoom(near / far, other[1]);
      drag.moved = true;
      return;
    }
    if (Math.abs(x - drag.x) > 3) drag.moved = true;
    if (!drag.moved) return;
    if (drag.zooms) {
      const mark = $("window");
      mark.hidden = false;
      mark.style.left = `${pane.offsetLeft + Math.min(x, drag.x)}px`;
      mark.style.width = `${Math.abs(x - drag.x)}px`;
      return;
    }
    const shift = ((drag.x - x) / width()) * (drag.end - drag.start);
    show(drag.start + shift, drag.end + shift);
  };
  const endDrag = (event) => {
    if (!pointers.delete(event.pointerId) || !drag) return;
    const [x, y] = placeOn(event);
    $("window").hidden = true;
    if (drag.zooms && drag.moved) show(Math.min(toTime(x), toTime(drag.x)), Math.max(toTime(x), toTime(drag.x)));
    else if (!drag.moved && event.type === "pointerup" && event.currentTarget === canvas) choose(find(x, y));
    if (!pointers.size) drag = null;
  };
  for (const target of [canvas, axis]) {
    target.addEventListener("pointerdown", startDrag);
    target.addEventListener("pointermove", moveDrag);
    target.addEventListener("pointerup", endDrag);
    target.addEventListener("pointercancel", endDrag);
    target.addEventListener("pointerleave", () => { state.hover = null; hideTip(); drawAxis(); });
    target.addEventListener("wheel", (event) => {
      const [x] = placeOn(event);
      if (event.ctrlKey || event.metaKey || target === axis) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 250))), x);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 1500);
      else return;
      event.preventDefault();
    }, { passive: false });
  }

  /* Controls, and links of the page to events. */
  root.querySelector(".tl-tools").addEventListener("click", (event) => {
    const action = actions[event.target.closest("button[data-do]")?.dataset.do];
    if (action) action();
  });
  root.querySelector("form.tl-search").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("q").trim();
    if (!text) return;
    const from = state.selected ? state.selected.start : view.start - 1;
    try {
      const answer = await request("search", "/timeline/search", { q: text, after: toText(from), parts: [...opened].filter((p) => p !== "steps" && p !== "causes").join(",") });
      const hit = await answer.json();
      say(hit.event ? "" : `No event has a name with ${text}.`);
      if (hit.event) await select(hit.event, { centered: true });
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  });
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest("a[data-show-event]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    select(link.dataset.showEvent, { centered: !link.closest("#timeline-details") || !isVisible(link.dataset.showEvent) });
  });
  const isVisible = (key) => {
    const place = placeOfKey(key);
    return place && place[0].track.end[place[1]] > view.start && place[0].track.start[place[1]] < view.end;
  };
  list.addEventListener("toggle", writeList);
  scroller.addEventListener("scroll", () => { hideTip(); draw(); });
  new ResizeObserver(() => { draw(); refresh(); }).observe(scroller);
  const recolor = () => {
    readColors();
    for (const track of state.tracks.values()) if (track.fill) track.fill = track.colors.map((color, i) => colorOf(color, track.texts[i], track.part));
    draw();
  };
  new MutationObserver(recolor).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "data-units"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);

  /* Kernels first, then the CPU, then what takes the server longer. */
  const start = async () => {
    root.setAttribute("aria-busy", "true");
    readColors();
    const panel = details.querySelector(".event-details");
    if (panel) accept(panel);
    keepUrl();
    layout();
    for (const names of [["gpu"], ["cpu", "other"], ["steps", "causes"]]) {
      const own = names.filter((name) => opened.has(name));
      if (!own.length) continue;
      say(names[0] === "steps" ? "Looking for steps and causes …" : "");
      await load(own, `data-${names[0]}`);
      if (names[0] !== "steps") reveal();
    }
    if (message.textContent.endsWith("…")) say("");
    root.removeAttribute("aria-busy");
  };
  start();
})();
