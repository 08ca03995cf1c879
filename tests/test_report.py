"""Reports: what is put on a page is on it, in both languages, and nothing that is put there can break it."""

from pathlib import Path

from matplotlib.figure import Figure

from fewpairs.report.page import Entry, Page


def page() -> Page:
    page = Page("a < b", "made by a test")
    page.head("p(y|x)")
    page.say("one & two")
    page.list(["first", "second"])
    page.list(["hidden"], summary="more")
    page.tabulate(["", "NLL"], [["p(y|x)", Entry("0.1", "paper 0.2", is_best=True)]])
    page.show("curve", Figure(), "a curve")
    return page


def test_the_page_escapes_what_would_be_read_as_markup(tmp_path: Path) -> None:
    text = page().write(tmp_path).read_text()
    assert "a &lt; b" in text and "one &amp; two" in text and "a < b" not in text
    assert "<strong>0.1</strong><small>paper 0.2</small>" in text
    assert "<details><summary>more</summary><ul><li>hidden</li></ul></details>" in text
    assert "data:image/png;base64" in text


def test_the_markdown_says_the_same(tmp_path: Path) -> None:
    page().write(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# a < b\n\n## p(y|x)\n\none & two\n\n- first\n- second\n")
    assert "| p(y\\|x) | **0.1** (paper 0.2) |" in text  # the bar must not begin a new cell
    assert "![a curve](figures/curve.png)" in text
    assert (tmp_path / "figures" / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_results_are_written_only_if_there_are_some(tmp_path: Path) -> None:
    page().write(tmp_path)
    assert not (tmp_path / "results.json").exists()
    page().write(tmp_path, {"nll": 0.5})
    assert "0.5" in (tmp_path / "results.json").read_text()
