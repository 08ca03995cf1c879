"""The README's lines run as they stand, one block after the other, with fewer steps and rows."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
FEWER = {
    "NeuralTranslator(random_state=0": "NeuralTranslator(base=MixtureTranslator(max_steps=2), max_steps=2, random_state=0",
    "Translator(random_state=0": "Translator(random_state=0, max_steps=2, verbose=False",
    "Classifier(random_state=0": "Classifier(random_state=0, max_steps=2, verbose=False",
    "n_pairs=4000": "n_pairs=60",
    "n_pairs=128": "n_pairs=40",
    "draw_pairs(1000": "draw_pairs(20",
    'from_recipe("images", ': 'from_recipe("images", max_steps=1, ',
}


@pytest.mark.filterwarnings("ignore")
def test_all_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one of them saves a model
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    for block in blocks:
        for whole, fewer in FEWER.items():
            block = block.replace(whole, fewer)
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "model.safetensors").exists()
