"""Reports: figures and tables in, one HTML page out that needs nothing beside itself."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Entry", "Picture", "as_page", "as_png", "as_table"]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
figure { margin: 1rem 0; } figcaption { color: #777; font-size: .9rem; }
img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .35rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
td small { display: block; color: #777; } details { margin-top: 2rem; } code { overflow-wrap: anywhere; }
footer { color: #777; font-size: .85rem; margin-top: 2rem; }
"""


def as_png(figure: "Figure") -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


@dataclass(frozen=True)
class Picture:
    """A PNG picture, and what it shows in words."""

    png: bytes
    caption: str

    def as_html(self) -> str:
        source = f"data:image/png;base64,{base64.b64encode(self.png).decode()}"
        caption = html.escape(self.caption)
        return f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>'


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table: a text, a small note below it, and whether it is the best of its column."""

    text: str
    note: str = ""
    is_best: bool = False

    def as_html(self) -> str:
        text = html.escape(self.text)
        note = f"<small>{html.escape(self.note)}</small>" if self.note else ""
        return (f"<strong>{text}</strong>" if self.is_best else text) + note


def as_table(header: Sequence[str], rows: Sequence[Sequence[str | Entry]]) -> str:
    """A table as HTML."""
    lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in header)]
    for row in rows:
        entries = (cell if isinstance(cell, Entry) else Entry(cell) for cell in row)
        lines.append("".join(f"<td>{entry.as_html()}</td>" for entry in entries))
    return '<div class="wide"><table>' + "".join(f"<tr>{line}</tr>" for line in lines) + "</table></div>"


def as_page(title: str, parts: Sequence[str | Picture], footer: str) -> str:
    """A page of parts in their order: strings are HTML already."""
    body = (part.as_html() if isinstance(part, Picture) else part for part in parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"<h1>{html.escape(title)}</h1>{''.join(body)}<footer>{html.escape(footer)}</footer></html>\n"
    )
