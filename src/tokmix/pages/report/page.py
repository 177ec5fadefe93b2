"""A page of its own: tables in the HTML, charts drawn by the script inside it, nothing from outside.

The security policy in its head allows the two blocks of script by their hashes and nothing else, so that even a text that
escaped escaping would not run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import tokmix
from tokmix.pages.report import html

MARK = "<!-- a report of tokmix -->"


def asset(name: str) -> str:
    return (resources.files("tokmix.pages.report") / name).read_text(encoding="utf-8")


def page(title: str, sections: Sequence[str], charts: dict[str, Any]) -> str:
    scripts = [asset("charts.js"), asset("page.js")]
    allowed = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"
    filled = [one for one in sections if one]
    made = f"Made with tokmix {tokmix.__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    return f"""<!doctype html>
{MARK}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{html.text(policy)}">
<title>{html.text(title)}</title>
<link rel="icon" href="data:,">
<style>
{asset("style.css")}
</style>
</head>
<body>
<header><h1>{html.text(title)}</h1>
{html.paragraph(made, "note")}
<nav>{_links(filled)}</nav></header>
<main>
<noscript><p class="warning">The tables are all here; the charts need JavaScript.</p></noscript>
{chr(10).join(filled)}
</main>
<script type="application/json" id="data">{html.data(charts)}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def _links(sections: Sequence[str]) -> str:
    """To each section, by the id and the heading it begins with."""
    links = []
    for one in sections:
        name, heading = one.split('id="', 1)[1].split('"', 1)[0], one.split("<h2>", 1)[1].split("</h2>", 1)[0]
        links.append(f'<a href="#{name}">{heading}</a>')
    return " ".join(links)
