"""The lines of README and guide run as they stand, one block after the other; those of the README with fewer steps and rows."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FEWER = {
    "import MixtureTranslator, load": "import MixtureTranslator, Training, load",
    "Translator(random_state=0": "Translator(random_state=0, training=Training(max_steps=2), verbose=False",
    "n_pairs=128": "n_pairs=40",
    "draw_pairs(1000": "draw_pairs(20",
}
MOST_WORDS = 800


def run_blocks(page: str, fewer: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # some of them write files
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        for whole, less in fewer.items():
            block = block.replace(whole, less)
        exec(compile(block, page, "exec"), names)


@pytest.mark.filterwarnings("ignore")
def test_the_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks("README.md", FEWER, tmp_path, monkeypatch)
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.filterwarnings("ignore")
def test_the_lines_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks("docs/guide.md", {}, tmp_path, monkeypatch)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/guide.md", "docs/results.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    for target in targets:
        assert not target or (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"
