"""A self-contained page: tables in the HTML, charts drawn by a script inside it, no external files.

The security policy in its head allows only the two script blocks, by their hashes. So a text would not run even if escaping
failed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources

from markupsafe import Markup

import tokmix
from tokmix.pages.report import html

MARK = "<!-- a report of tokmix -->"


def asset(name: str) -> str:
    return (resources.files("tokmix.pages.report") / name).read_text(encoding="utf-8")


def page(title: str, sections: Sequence[str], charts: Mapping[str, object]) -> str:
    scripts = [asset("charts.js"), asset("page.js")]
    allowed = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"
    filled = [one for one in sections if one]
    made = f"Made with tokmix {tokmix.__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    return html.environment().get_template("page.html").render(
        mark=Markup(MARK), policy=policy, title=title, style=Markup(asset("style.css")), made=made, links=Markup(_links(filled)),
        sections=Markup("\n".join(filled)), data=Markup(html.data(charts)), scripts=[Markup(one) for one in scripts],
    )  # fmt: skip


def _links(sections: Sequence[str]) -> str:
    """To each section, by the id and the heading it begins with."""
    links = []
    for one in sections:
        name, heading = one.split('id="', 1)[1].split('"', 1)[0], one.split("<h2>", 1)[1].split("</h2>", 1)[0]
        links.append(f'<a href="#{name}">{heading}</a>')
    return " ".join(links)
