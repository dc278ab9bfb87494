"""Assemble an HTML page from sections, figures, a style sheet and scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING

from tracekit.exporters.html.markup import escape_text
from tracekit.plots import theme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.html.markup import Section
    from tracekit.exporters.html.sections import Contents

STYLE = """
:root { color-scheme: light dark; --ground: #f3f5f8; --card: #ffffff; --text: #1c2128; --quiet: #57606a;
  --line: #d7dde4; --accent: #0b5fa5; --stripe: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --ground: #0e1116; --card: #161a20; --text: #dfe4ea; --quiet: #9aa4b0;
  --line: #303741; --accent: #6cb6ff; --stripe: #1b2027; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
header, main, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 28px; }
h1 { font-size: 1.6rem; margin: 0 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 14px; }
h3 { font-size: 1rem; margin: 0 0 6px; overflow-wrap: anywhere; }
p { margin: 0 0 8px; max-width: 85ch; overflow-wrap: anywhere; }
a { color: var(--accent); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; margin: 0 0 20px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 20px; margin: 0 0 20px; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 10px 24px; margin: 0 0 16px; }
dt { color: var(--quiet); font-size: 0.85rem; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
figure { margin: 0 0 16px; }
article { border-top: 1px solid var(--line); padding: 14px 0 4px; }
article dl { grid-template-columns: repeat(auto-fill, minmax(215px, 1fr)); margin-bottom: 8px; }
.scroll { overflow-x: auto; margin: 0 0 12px; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; }
caption { text-align: left; font-weight: 600; padding: 0 0 6px; }
th, td { padding: 5px 10px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { white-space: nowrap; color: var(--quiet); font-weight: 600; }
tbody th { font-weight: 400; }
.long { overflow-wrap: anywhere; min-width: 14em; }
tbody tr:nth-child(even) { background: var(--stripe); }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; }
td > details, th > details { margin-left: 1.1em; }
td summary, th summary { list-style-position: outside; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
footer { color: var(--quiet); padding-bottom: 28px; font-size: 0.85rem; }
@page { margin: 14mm; }
@media print {
  :root { --ground: #ffffff; --card: #ffffff; --text: #000000; --quiet: #444444; --line: #bbbbbb; --stripe: #f4f4f4; }
  body { font-size: 10pt; } nav { display: none; } header, main, footer { max-width: none; padding: 0; }
  section { border: 0; border-top: 1px solid var(--line); border-radius: 0; padding: 12px 0; }
  figure, article, tr { break-inside: avoid; } h2, h3, caption { break-after: avoid; }
  .scroll { overflow: visible; } table { font-size: 8pt; } th, td { padding: 3px 5px; }
  thead th { white-space: normal; } .long { min-width: 12em; }
}
"""

SCRIPT = """
"use strict";
const {figures, templates, colors} = JSON.parse(document.getElementById("data").textContent);
const shade = (value, key) => {
  if (typeof value === "string") return key === "text" ? value.replace(/#[0-9A-F]{6}/g, (c) => colors[c] || c) : value;
  if (Array.isArray(value)) return value.map((each) => (key.startsWith("color") && colors[each]) || shade(each, ""));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) =>
    [name, (name.startsWith("color") && colors[each]) || (name === "customdata" ? each : shade(each, name))]));
};
const config = {responsive: true, displayModeBar: false};
const dark = matchMedia("(prefers-color-scheme: dark)");
const draw = (name, width) => Object.entries(figures).forEach(([id, {data, layout}]) => {
  const size = width ? {width, autosize: false} : {autosize: true};
  const [traces, own] = name === "dark" ? [data.map((each) => shade(each, "")), shade(layout, "")] : [data, layout];
  Plotly.react("figure-" + id, traces, {...own, ...size, template: templates[name]}, config);
});
const redraw = () => draw(dark.matches ? "dark" : "light");
redraw();
dark.addEventListener("change", redraw);
addEventListener("beforeprint", () => draw("light", 680));
addEventListener("afterprint", redraw);
"""


def render_page(contents: Contents) -> str:
    """Return the HTML of a page with the given contents."""
    library, data = _escape_script(theme.load_plotly_javascript()), _serialize_figures(contents)
    policy_directives = (
        f"script-src {_compute_policy_hash(library)} {_compute_policy_hash(SCRIPT)}",
        "style-src 'unsafe-inline'",  # plotly sets style attributes
        "img-src data: blob:",
    )
    sections = "".join(section.to_html() for section in contents.sections)
    body = f"{_build_notices(contents)}{sections}{_build_missing_data_section(contents)}"
    note = (
        "Written by tracekit. Times are in ns since the start of the capture. Percentages, and times and sizes in\n"
        "brackets, are rounded.</p><noscript><p>The charts need JavaScript. The tables do not.</p></noscript>"
    )
    scripts = f"""<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script>{SCRIPT}</script>
"""
    return _build_html_document(
        contents.title,
        _build_navigation(contents.sections),
        body,
        f"<p>{note}",
        policy_directives=policy_directives,
        scripts=scripts,
    )


def build_static_page(title: str, sections: Sequence[Section], note: str) -> str:
    """Return the HTML of a page without figures and scripts.

    Args:
        title: Title of the page.
        sections: Sections of the page.
        note: Sentence at the end of the page.
    """
    policy_directives = (f"style-src {_compute_policy_hash(STYLE)}",)
    body = "".join(section.to_html() for section in sections)
    return _build_html_document(
        title, _build_navigation(sections), body, f"<p>{escape_text(note)}</p>", policy_directives=policy_directives
    )


def _build_html_document(
    title: str, navigation: str, body: str, footer: str, *, policy_directives: Sequence[str], scripts: str = ""
) -> str:
    """Return a complete HTML document with a content security policy.

    Args:
        title: Title, as plain text.
        navigation: Links to the sections, as HTML.
        body: Sections, as HTML.
        footer: Content of the footer, as HTML.
        policy_directives: Directives of the content security policy that allow scripts, styles or images.
        scripts: Script elements, as HTML.
    """
    policy = "; ".join(("default-src 'none'", *policy_directives, "base-uri 'none'", "form-action 'none'"))
    title = escape_text(title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{navigation}</header>
<main>
{body}</main>
<footer>{footer}</footer>
{scripts}</body>
</html>
"""


def _build_navigation(sections: Sequence[Section]) -> str:
    links = "".join(f'<li><a href="#{s.anchor}">{escape_text(s.title)}</a></li>' for s in sections)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n'


def _build_notices(contents: Contents) -> str:
    """Return an HTML section with the notices of a page, or an empty string if there are none.

    If the page has no figures, the last notice states this, unless ``Contents.nothing_to_draw`` is empty.
    """
    content = "".join(f"<p>{escape_text(notice)}</p>" for notice in contents.notices)
    if contents.nothing_to_draw and not any(section.figures for section in contents.sections):
        content += (
            f"<p><strong>{escape_text(contents.nothing_to_draw)}</strong> "
            "The list below states why, and how to record them.</p>"
        )
    return f'<section aria-label="Notices">{content}</section>\n' if content else ""


def _build_missing_data_section(contents: Contents) -> str:
    """Return an HTML section that lists the data missing from the capture, or an empty string if none is missing."""
    if not contents.missing:
        return ""
    is_open = "" if any(section.figures for section in contents.sections) else " open"
    items = "".join(
        f"<li>{_format_sentence(message)}{_format_sentence(hint)}</li>" for message, hint in contents.missing
    )
    summary = "<summary>What this capture does not contain</summary>"
    content = f"<details{is_open}>{summary}<ul>{items}</ul></details>"
    return f'<section aria-label="Missing data">{content}</section>\n'


def _format_sentence(words: str) -> str:
    return f"{escape_text(words[:1].upper() + words[1:])}. " if words else ""


def _serialize_figures(contents: Contents) -> str:
    """Serialize the figures, templates and colors of a page as JSON that is safe inside a script element."""
    figures = {name: drawn for section in contents.sections for name, drawn in section.figures.items()}
    templates = {
        name: theme.build_plotly_template(dark=dark).to_plotly_json()
        for name, dark in (("light", False), ("dark", True))
    }
    written = json.dumps(
        {"figures": figures, "templates": templates, "colors": theme.DARK_COLORS},
        ensure_ascii=True,
        separators=(",", ":"),
    )
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _escape_script(script: str) -> str:
    """Escape JavaScript so that the code in a script element neither ends the element nor begins an HTML comment."""
    lines = script.replace("\r\n", "\n").replace("\r", "\n").replace("<!--", "<\\!--")
    return re.sub(r"<(?=/?script)", r"\\x3c", lines, flags=re.IGNORECASE)


def _compute_policy_hash(script: str) -> str:
    """Return the SHA-256 hash of a script or style sheet, as the source expression of a content security policy."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
