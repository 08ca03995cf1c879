"""Samples: what source and target, weights and a table with gaps hold."""

import numpy as np
import pandas as pd
import pytest
import torch

from fewpairs import split_frame
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler


def make_samples(n_pairs: int = 20, n_source: int = 30, n_target: int = 50) -> Samples:
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randn(n, 2, dtype=torch.float64, generator=generator)  # noqa: E731
    return Samples.gather(draw(n_pairs), draw(n_pairs), unpaired_x=draw(n_source), unpaired_y=draw(n_target))


def has_row(table: torch.Tensor, row: torch.Tensor) -> bool:
    return bool((table == row).all(dim=1).any())


def test_source_and_target_hold_the_pairs_points() -> None:
    samples = make_samples()
    assert len(samples.source) == 50 and len(samples.target) == 70
    assert all(has_row(samples.source, x) for x in samples.pairs_x)
    alone = Samples.gather(samples.pairs_x, samples.pairs_y)
    assert torch.equal(alone.source, alone.pairs_x) and torch.equal(alone.target, alone.pairs_y)


def test_weights_have_mean_one() -> None:
    samples = Samples.gather(torch.zeros(4, 1), torch.zeros(4, 1), pairs_weight=torch.tensor([1.0, 2.0, 3.0, 6.0]))
    torch.testing.assert_close(samples.pairs_weight, torch.tensor([1.0, 2.0, 3.0, 6.0]) / 3)
    assert samples.source_weight.mean() == 1


def test_scaler_leaves_constant_columns_harmless() -> None:
    rows = torch.stack([torch.linspace(0, 1e6, 9), torch.full((9,), 0.1), torch.zeros(9)], dim=1).double()
    scaled = Scaler.learn(rows, torch.ones(9))(rows)
    torch.testing.assert_close(scaled[:, 0].var(correction=0), torch.tensor(1.0).double())
    assert scaled[:, 1:].abs().max() < 1e-12


FRAME = pd.DataFrame({"x1": [1.0, 2, np.nan, 4], "x2": [1.0, 2, np.nan, 4], "y": [5.0, np.nan, 6, 7]})


def test_a_table_with_gaps_is_a_data_set() -> None:
    X, Y, Xu, Yu = split_frame(FRAME, x=["x1", "x2"], y=["y"])
    assert X.index.tolist() == [0, 3] == Y.index.tolist()
    assert Xu.index.tolist() == [1] and Yu.index.tolist() == [2]
    samples = Samples.from_frame(FRAME, x=["x1", "x2"], y=["y"])
    assert len(samples.pairs_x) == 2 and len(samples.source) == 3 == len(samples.target)


def test_holes_inside_x_are_refused_or_dropped_with_a_count() -> None:
    frame = FRAME.copy()
    frame.loc[3, "x2"] = np.nan
    with pytest.raises(ValueError, match=r"1 of 4 rows have holes.*x2.*on_holes=\"drop\""):
        split_frame(frame, x=["x1", "x2"], y=["y"])
    with pytest.warns(UserWarning, match="Left out 1 of 4 rows"):
        assert len(split_frame(frame, x=["x1", "x2"], y=["y"], on_holes="drop")[0]) == 1
    with pytest.raises(ValueError, match=r"no column \['z'\]"):
        split_frame(frame, x=["z"], y=["y"])


def test_a_table_without_one_kind_of_gap_has_none_of_it() -> None:
    assert split_frame(FRAME.dropna(subset="x1"), x=["x1", "x2"], y=["y"])[3] is None


def test_split_frame_checks_its_arguments() -> None:
    assert len(split_frame(FRAME, x="x1", y="y")[0]) == 2
    for arguments, message in (
        ({"x": "x1", "y": "y", "on_holes": "ignore"}, r'"raise" or "drop", but \'ignore\''),
        ({"x": ["x1", "y"], "y": ["y"]}, r"\['y'\] came as both"),
    ):
        with pytest.raises(ValueError, match=message):
            split_frame(FRAME, **arguments)
    with pytest.raises(ValueError, match="pandas frame"):
        split_frame(FRAME.to_numpy(), x="x1", y="y")
