"""The demo and the command: a table comes back, a page and a picture are written."""

from typer.testing import CliRunner

import fewpairs
from fewpairs.cli.app import app
from fewpairs.studies.demo import run_demo


def test_the_demo_writes_a_page_with_every_method(tmp_path) -> None:
    rows = run_demo(tmp_path / "new", n_test=50, n_points=2, n_draws=20, max_steps=3)
    page = (tmp_path / "new" / "report.html").read_text()
    assert len(rows) == 3
    for row in rows:
        assert f"{row.nll:.3f}" in page
    assert "data:image/png;base64" in page
    assert (tmp_path / "new" / "figures" / "conditionals.png").read_bytes()[:4] == b"\x89PNG"


def test_the_command_tells_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and fewpairs.__version__ in result.output
