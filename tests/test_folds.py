"""Folds: a held-out pair leaves no trace in what its member learns from, and common values stay."""

import numpy as np
import pytest
import torch

from fewpairs.data.folds import Folds, row_keys
from fewpairs.data.samples import Samples


def draw(n_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n_rows, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_samples(n_pairs: int = 40) -> Samples:
    return Samples.gather(draw(n_pairs), draw(n_pairs, 1), unpaired_x=draw(30, 2), unpaired_y=draw(50, 3))


def cut(samples: Samples, n_folds: int = 5, **arguments) -> Folds:
    return Folds.cut(samples, n_folds, np.random.RandomState(0), **arguments)


def nearest(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """The distance of each row to the nearest of the others, largest coordinate."""
    return (rows[:, None] - others[None]).abs().amax(-1).amin(1)


def test_every_pair_is_held_out_once_and_folds_are_even() -> None:
    folds = cut(make_samples(42))
    assert folds.n_folds == 5
    assert sorted(torch.bincount(folds.pairs).tolist()) == [8, 8, 8, 9, 9]


@pytest.mark.parametrize("shift", [0.0, 1e-6], ids=["exact", "rounded"])
def test_a_held_out_pair_leaves_no_trace(shift: float) -> None:
    """The user passes all x's and y's again as unpaired ones, as people do, perhaps rounded on the way."""
    samples = make_samples()
    again = Samples.gather(
        samples.pairs_x, samples.pairs_y, unpaired_x=samples.source + shift, unpaired_y=samples.target - shift
    )
    folds = cut(again)
    for fold in range(5):
        held = folds.pairs == fold
        for rows, of_row, paired in (
            (again.source, folds.source, again.pairs_x),
            (again.target, folds.target, again.pairs_y),
        ):
            left = rows[of_row != fold]
            assert nearest(paired[held], left).min() > 10 * max(shift, 1e-9)
            assert len(left) == len(rows) - 2 * int(held.sum())  # the pairs' own and their copies, and no other row


def test_common_values_stay() -> None:
    """Integers repeat by nature: taking them out of the target would empty it."""
    y = (torch.arange(20) % 3).double()[:, None]
    samples = Samples.gather(torch.arange(20).double()[:, None], y, unpaired_y=y.repeat(3, 1))
    folds = cut(samples, 4)
    assert (folds.target == -1).all()
    assert torch.equal(folds.source, folds.pairs)


def test_a_value_more_frequent_than_the_pairs_explain_stays() -> None:
    """One pair has y = 0, and so have a hundred unpaired rows: none of them tells that pair's y."""
    samples = make_samples()
    y = samples.pairs_y.clone()
    y[3] = 0
    samples = Samples.gather(samples.pairs_x, y, unpaired_y=torch.cat([torch.zeros(100, 2).double(), draw(50, 3)]))
    folds = cut(samples)
    is_zero = (samples.target == 0).all(1)
    assert (folds.target[is_zero] == -1).all()
    assert (folds.target[:40][~is_zero[:40]] == folds.pairs[~is_zero[:40]]).all()


@pytest.mark.parametrize("n_copies", [5, 40], ids=["some", "all"])
def test_near_duplicate_pairs_share_a_fold(n_copies: int) -> None:
    samples = make_samples()
    x, y = (torch.cat([rows, rows[:n_copies] + 1e-6]) for rows in (samples.pairs_x, samples.pairs_y))
    folds = cut(Samples.gather(x, y))
    assert torch.equal(folds.pairs[40:], folds.pairs[:n_copies])
    assert torch.equal(folds.source, folds.pairs) and torch.equal(folds.target, folds.pairs)


def test_data_that_are_all_alike_are_cut_all_the_same() -> None:
    samples = Samples.gather(torch.zeros(20, 1).double(), (torch.arange(20) % 2).double()[:, None])
    assert torch.bincount(cut(samples).pairs).tolist() == [4] * 5


def test_known_folds_are_kept() -> None:
    samples = make_samples()
    known = [fold if row % 2 else None for row, fold in enumerate(torch.arange(40).remainder(5).tolist())]
    folds = cut(samples, known=known)
    assert all(folds.pairs[row] == fold for row, fold in enumerate(known) if fold is not None)
    assert torch.equal(folds.source[:40], folds.pairs) and torch.equal(folds.target[:40], folds.pairs)


def test_what_all_members_have_seen_is_held_out_from_none_of_them() -> None:
    """Nor are its near-duplicates; new pairs are dealt to the folds all the same."""
    samples = make_samples()
    x, y = (torch.cat([rows, rows[:8] + 1e-6]) for rows in (samples.pairs_x, samples.pairs_y))
    known = [-1] * 8 + [0, 1] * 6 + [None] * 28
    folds = Folds.cut(Samples.gather(x, y), 2, np.random.RandomState(1), known)
    assert folds.pairs[:8].tolist() == [-1] * 8 == folds.pairs[40:].tolist()
    assert folds.pairs[8:20].tolist() == [0, 1] * 6
    assert torch.bincount(folds.pairs[8:40]).tolist() == [16, 16]


def test_a_new_copy_of_a_known_pair_goes_where_that_is() -> None:
    """The same pairs, handed in once more with a rounding, must not teach the members that they judge."""
    samples = make_samples()
    x, y = (torch.cat([rows, rows[:8] + 1e-6]) for rows in (samples.pairs_x, samples.pairs_y))
    before = cut(samples).pairs.tolist()
    folds = Folds.cut(Samples.gather(x, y), 5, np.random.RandomState(1), [*before, *[None] * 8])
    assert folds.pairs[:40].tolist() == before
    assert folds.pairs[40:].tolist() == before[:8]


def test_pairs_are_known_again_by_their_values() -> None:
    samples = make_samples()
    keys = row_keys(samples)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    shuffled = Samples.gather(samples.pairs_x[order], samples.pairs_y[order])
    assert row_keys(shuffled) == [keys[row] for row in order]
    assert len(set(keys)) == 40
    assert not set(row_keys(Samples.gather(samples.pairs_x, samples.pairs_y + 1e-12))) & set(keys)


def test_fewer_pairs_than_folds_are_one_a_fold() -> None:
    folds = cut(make_samples(3))
    assert folds.n_folds == 3 and sorted(folds.pairs.tolist()) == [0, 1, 2]


def test_a_fold_holds_no_more_than_it_takes_to_judge(monkeypatch) -> None:
    monkeypatch.setattr("fewpairs.data.folds.LARGEST", 4)
    folds = cut(make_samples())
    assert torch.bincount(folds.pairs + 1).tolist() == [20, 4, 4, 4, 4, 4]
    assert torch.equal(folds.source[:40], folds.pairs)


def test_the_first_folds_alone() -> None:
    folds = cut(make_samples())
    some = folds.first(2)
    assert some.n_folds == 2
    for part, whole in ((some.pairs, folds.pairs), (some.source, folds.source), (some.target, folds.target)):
        assert torch.equal(part, torch.where(whole < 2, whole, -1))
        assert part.max() == 1


@pytest.mark.parametrize("n_pairs, expected", [(1, 2), (8, 2), (16, 2), (17, 3), (40, 5), (1000, 5)])
def test_enough_folds_for_so_many_pairs(n_pairs: int, expected: int) -> None:
    assert cut(make_samples()).enough_for(n_pairs) == expected  # eight pairs a fold


def test_rows_of_each_fold() -> None:
    folds = cut(make_samples(42))
    rows = folds.rows()
    assert rows.shape == (5, 9)
    for fold, some in enumerate(rows):
        assert sorted(some[some >= 0].tolist()) == torch.nonzero(folds.pairs == fold).squeeze(1).tolist()


def test_nothing_is_held_out_of_one_fold() -> None:
    samples = make_samples()
    folds = Folds.none(samples)
    assert folds.n_folds == 1 and folds.rows().shape == (1, 0)
    for rows, table in ((folds.pairs, samples.pairs_x), (folds.source, samples.source), (folds.target, samples.target)):
        assert len(rows) == len(table) and (rows == -1).all()
