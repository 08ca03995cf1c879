"""Reports: headings, words, tables and figures in; one HTML page out that needs nothing beside itself, and its Markdown."""

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fewpairs.data.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Entry", "Page", "Table", "as_png"]

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
    """The figure as the bytes of a PNG file, in 128 colours: a third of the bytes, for readers on a phone."""
    from PIL import Image  # comes with matplotlib

    drawn, buffer = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    Image.open(drawn).convert("RGB").quantize(128).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


class Part(Protocol):
    """A piece of a page, in both languages."""

    def as_html(self) -> str: ...
    def as_markdown(self) -> str: ...


@dataclass(frozen=True)
class Heading:
    text: str
    level: int

    def as_html(self) -> str:
        return f"<h{self.level}>{html.escape(self.text)}</h{self.level}>"

    def as_markdown(self) -> str:
        return f"{'#' * self.level} {self.text}\n"


@dataclass(frozen=True)
class Words:
    """A paragraph; a list of points if there are several texts; `summary` folds them away on the page."""

    texts: Sequence[str]
    is_list: bool = False
    is_small: bool = False
    summary: str = ""

    def as_html(self) -> str:
        texts = [f"<small>{html.escape(text)}</small>" if self.is_small else html.escape(text) for text in self.texts]
        mark = "li" if self.is_list else "p"
        body = "".join(f"<{mark}>{text}</{mark}>" for text in texts)
        body = f"<ul>{body}</ul>" if self.is_list else body
        return f"<details><summary>{html.escape(self.summary)}</summary>{body}</details>" if self.summary else body

    def as_markdown(self) -> str:
        if self.summary:
            return ""
        return "\n".join(f"- {text}" if self.is_list else f"{text}\n" for text in self.texts) + "\n" * self.is_list


@dataclass(frozen=True)
class Picture:
    """A PNG picture, the name of its file, and what it shows in words."""

    name: str
    png: bytes
    caption: str

    def as_html(self) -> str:
        source = f"data:image/png;base64,{base64.b64encode(self.png).decode()}"
        caption = html.escape(self.caption)
        return f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>'

    def as_markdown(self) -> str:
        return f"![{self.caption}](figures/{self.name}.png)\n\n*{self.caption}*\n"


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

    def as_markdown(self) -> str:
        text = (f"**{self.text}**" if self.is_best else self.text) + (f" ({self.note})" if self.note else "")
        return text.replace("|", "\\|")  # a bar would end the cell


@dataclass(frozen=True)
class Table:
    """A header, and rows of as many entries."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]

    def as_html(self) -> str:
        lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)]
        lines += ["".join(f"<td>{entry.as_html()}</td>" for entry in row) for row in self._entries()]
        return '<div class="wide"><table>' + "".join(f"<tr>{line}</tr>" for line in lines) + "</table></div>"

    def as_markdown(self) -> str:
        lines = [list(self.header), ["---"] * len(self.header)]
        lines += [[entry.as_markdown() for entry in row] for row in self._entries()]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def _entries(self) -> list[list[Entry]]:
        return [[cell if isinstance(cell, Entry) else Entry(cell) for cell in row] for row in self.rows]


@dataclass
class Page:
    """A page that grows part by part, and is written in the end.

    Arguments:
        title: Its title.
        made: By what it was made: versions, a seed.
    """

    title: str
    made: str
    parts: list[Part] = field(default_factory=list)

    def head(self, text: str, level: int = 2) -> None:
        """A heading."""
        self.parts.append(Heading(text, level))

    def say(self, *texts: str, is_small: bool = False) -> None:
        """Paragraphs."""
        self.parts.append(Words(texts, is_small=is_small))

    def list(self, texts: Sequence[str], summary: str = "") -> None:
        """Points; with a summary, they are folded away under it (and not in the Markdown)."""
        self.parts.append(Words(texts, is_list=True, summary=summary))

    def show(self, name: str, figure: "Figure", caption: str) -> None:
        """A picture."""
        self.parts.append(Picture(name, as_png(figure), caption))

    def tabulate(self, header: Sequence[str], rows: Sequence[Sequence[str | Entry]]) -> None:
        """A table."""
        self.parts.append(Table(header, rows))

    def write(self, folder: Path, results: Any = None) -> Path:
        """Writes `report.html`, `report.md`, `figures/` and, if there are results, `results.json`; returns the page's path."""
        folder.mkdir(parents=True, exist_ok=True)
        for part in self.parts:
            if isinstance(part, Picture):
                (folder / "figures").mkdir(exist_ok=True)
                write_atomically(folder / "figures" / f"{part.name}.png", part.png)
        if results is not None:
            write_atomically(folder / "results.json", json.dumps(results, indent=1, allow_nan=True).encode())
        write_atomically(folder / "report.md", self.as_markdown().encode())
        write_atomically(folder / "report.html", self.as_html().encode())
        return folder / "report.html"

    def as_html(self) -> str:
        title, body = html.escape(self.title), "".join(part.as_html() for part in self.parts)
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
            f"<h1>{title}</h1>{body}<footer>{html.escape(self.made)}</footer></html>\n"
        )

    def as_markdown(self) -> str:
        parts = [part.as_markdown() for part in (Heading(self.title, 1), *self.parts)]
        return "\n".join([*(part for part in parts if part), f"*{self.made}*\n"])
