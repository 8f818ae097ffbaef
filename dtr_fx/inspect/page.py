"""The parts of HTML pages: one file, complete in itself; nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

# The policy holds the browser to it that nothing is loaded.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
{script}</body>
</html>
"""


def document(title: str, body: str, *, styles: Sequence[str] = (), scripts: Sequence[str] = ()) -> str:
    """A page with the given title and body; ``styles`` and ``scripts`` name files in ``assets``."""
    script = "".join(map(_text, scripts))
    return _PAGE.format(
        title=escape(title),
        style="".join(map(_text, ("base.css", *styles))),
        body=body,
        script=f'<script>\n"use strict";\n{script}</script>\n' if scripts else "",
    )


def row(cell: str, texts: Iterable[str]) -> str:
    """A row of a table, of cells ``th`` or ``td``."""
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"


def asset(name: str) -> Template:
    """A file of ``assets``, in which ``$name`` may stand for what is filled in."""
    return Template(_text(name))


def _text(name: str) -> str:
    return resources.files("dtr_fx.inspect").joinpath("assets").joinpath(name).read_text(encoding="utf-8")
