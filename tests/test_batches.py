"""Minibatches: every row once before any comes again, and nothing of what a fold holds out."""

import numpy as np
import pytest
import torch

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.training.batches import Dealer, Deck, JointDealer, minibatches

N_FOLDS = 3


@pytest.fixture
def samples(generator: torch.Generator) -> Samples:
    x, source, noise = torch.randn(3, 60, 2, dtype=torch.float64, generator=generator)
    return Samples.gather(x, x + 0.1 * noise, unpaired_x=source, unpaired_y=source.flip(0))


@pytest.fixture
def folds(samples: Samples) -> Folds:
    return Folds.cut(samples, N_FOLDS, np.random.RandomState(0))


@pytest.mark.parametrize("n_hands, n_cards", [(1, 7), (3, 5), (3, 40)])
def test_every_row_is_dealt_once_before_any_comes_again(n_hands: int, n_cards: int, generator: torch.Generator) -> None:
    deck = Deck(50, torch.device("cpu"), generator)
    dealt = torch.cat([deck.deal(n_hands, n_cards).flatten() for _ in range(50)])
    rounds = dealt[: len(dealt) // 50 * 50].reshape(-1, 50)
    assert torch.equal(rounds.sort(dim=1).values, torch.arange(50).expand_as(rounds))
    assert not torch.equal(rounds[0], rounds[1])


def test_a_small_deck_is_dealt_whole(generator: torch.Generator) -> None:
    assert torch.equal(Deck(5, torch.device("cpu"), generator).deal(3, 8), torch.arange(5).expand(3, -1))


@pytest.mark.parametrize("batch_size", [16, 1000])
def test_a_minibatch_has_no_weight_on_what_its_fold_holds_out(
    batch_size: int, samples: Samples, folds: Folds, generator: torch.Generator
) -> None:
    numbered = Samples(
        torch.arange(60.0)[:, None], 2 * torch.arange(60.0)[:, None], *[torch.arange(120.0)[:, None]] * 2
    )
    dealer = Dealer(numbered, batch_size=batch_size, pairs_batch_size=batch_size, generator=generator)
    for _ in range(10):
        batch = dealer.deal(dealer.hands(N_FOLDS), folds, 2 * N_FOLDS)
        assert torch.equal(batch.pairs_y, 2 * batch.pairs_x)  # pairs stay together
        for rows, weight, of_row in (
            (batch.pairs_x, batch.pairs_weight, folds.pairs),
            (batch.source, batch.source_weight, folds.source),
            (batch.target, batch.target_weight, folds.target),
        ):
            assert rows.shape == (2 * N_FOLDS, min(batch_size, len(of_row)), 1)
            assert torch.equal(rows[:N_FOLDS], rows[N_FOLDS:])  # candidates differ in their settings alone
            fold = torch.arange(N_FOLDS).repeat(2)[:, None]
            assert torch.equal(weight == 0, of_row[rows[..., 0].long()] == fold)


def test_a_hand_for_one_network_keeps_pairs_together_and_numbers_its_xs(samples: Samples) -> None:
    hands = minibatches(samples, 15)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        seen = [next(hands) for _ in range(8)]
    for hand in seen:
        assert hand.pairs_x.shape == hand.source.shape == (15, 2)
        assert torch.equal(hand.source, samples.source[hand.numbers])
        for x, y in zip(hand.pairs_x, hand.pairs_y, strict=True):
            assert torch.equal(y, samples.pairs_y[(samples.pairs_x == x).all(1)][0])
    numbers = torch.cat([hand.numbers for hand in seen])
    assert torch.equal(numbers.sort().values, torch.arange(120))


def test_data_sets_of_other_sizes_are_not_dealt_together(samples: Samples, generator: torch.Generator) -> None:
    short = Samples.gather(samples.pairs_x[:-1], samples.pairs_y[:-1])
    dealers = [Dealer(one, batch_size=8, pairs_batch_size=8, generator=generator) for one in (samples, short)]
    with pytest.raises(ValueError, match="equally many rows of each kind"):
        JointDealer(dealers)
