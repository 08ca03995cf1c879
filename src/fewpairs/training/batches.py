"""Minibatches: rows are dealt like cards, every row once before any comes again, so that training sees all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples

__all__ = ["Dealer", "Deck", "Hand", "JointDealer", "minibatches"]


class Deck:
    """Creates a deck of row numbers, shuffled whenever it runs out.

    Arguments:
        n_rows: How many there are.
        device: Where the numbers are wanted.
        generator: The source of randomness; None is torch's own.
    """

    def __init__(self, n_rows: int, device: torch.device, generator: torch.Generator | None) -> None:
        self.n_rows, self.device, self.generator = n_rows, device, generator
        self.left = torch.zeros(0, dtype=torch.long, device=device)

    def deal(self, n_hands: int, n_cards: int) -> Tensor:
        """Row numbers, (n_hands, n_cards), or all rows for each hand if there are no more."""
        if n_cards >= self.n_rows:
            return torch.arange(self.n_rows, device=self.device).expand(n_hands, -1)
        while len(self.left) < n_hands * n_cards:
            shuffled = torch.randperm(self.n_rows, generator=self.generator, device=self.device)
            self.left = torch.cat([self.left, shuffled])
        dealt, self.left = self.left.split([n_hands * n_cards, len(self.left) - n_hands * n_cards])
        return dealt.reshape(n_hands, n_cards)


class Dealer:
    """Deals to a population: a minibatch for each fold, the same for all candidates, without the rows that the fold holds out.

    Arguments:
        samples: What to deal from.
        batch_size: The rows of source and of target in a minibatch.
        pairs_batch_size: The pairs in it.
        generator: The source of randomness.
    """

    def __init__(
        self, samples: Samples, *, batch_size: int, pairs_batch_size: int, generator: torch.Generator | None
    ) -> None:
        self.samples = samples
        self.sizes = (pairs_batch_size, batch_size, batch_size)
        n_rows = (len(samples.pairs_x), len(samples.source), len(samples.target))
        self.decks = [Deck(n, samples.source.device, generator) for n in n_rows]

    def reshuffle_pairs(self, generator: torch.Generator) -> None:
        """Pairs from a full deck, in an order of their own; unpaired rows, of which there may be too many for one run, go on."""
        self.decks[0] = Deck(self.decks[0].n_rows, self.decks[0].device, generator)

    def hands(self, n_folds: int) -> tuple[Tensor, ...]:
        """The numbers of the next rows of pairs, source and target, (n_folds, rows) each."""
        return tuple(deck.deal(n_folds, size) for deck, size in zip(self.decks, self.sizes, strict=True))

    def deal(self, hands: tuple[Tensor, ...], folds: Folds, n_members: int) -> Samples:
        """A minibatch with a leading axis of members; a row that a member must not see has weight zero."""
        some, (p, q, r) = self.samples, hands
        fold = torch.arange(folds.n_folds, device=some.source.device).unsqueeze(1)
        parts = {
            "pairs_x": some.pairs_x[p],
            "pairs_y": some.pairs_y[p],
            "source": some.source[q],
            "target": some.target[r],
            "pairs_weight": some.pairs_weight[p] * (folds.pairs[p] != fold),
            "source_weight": some.source_weight[q] * (folds.source[q] != fold),
            "target_weight": some.target_weight[r] * (folds.target[r] != fold),
            "relevance": some.relevance[p],
        }
        n_candidates = n_members // folds.n_folds
        return Samples(**{name: part.repeat(n_candidates, *[1] * (part.ndim - 1)) for name, part in parts.items()})


class JointDealer:
    """Deals for members that learn from data sets of their own, with equally many rows: one dealer and one member each."""

    def __init__(self, dealers: Sequence[Dealer]) -> None:
        self.dealers = dealers
        if len({tuple(deck.n_rows for deck in dealer.decks) for dealer in dealers}) > 1:
            raise ValueError("Data sets that are learnt from together must have equally many rows of each kind.")

    def hands(self, n_folds: int) -> tuple[Tensor, ...]:
        each = [dealer.hands(n_folds) for dealer in self.dealers]
        return tuple(torch.cat(parts) for parts in zip(*each, strict=True))

    def deal(self, hands: tuple[Tensor, ...], folds: Folds, n_members: int) -> Samples:
        batches = [
            vars(dealer.deal(tuple(hand[place : place + 1] for hand in hands), folds, 1))
            for place, dealer in enumerate(self.dealers)
        ]
        return Samples(**{name: torch.cat([batch[name] for batch in batches]) for name in batches[0]})


@dataclass(frozen=True)
class Hand(Samples):
    """A minibatch for one network: samples, and the numbers of the x's of their source."""

    numbers: Tensor = None  # type: ignore[assignment]  # a dealt hand has them; fields before it have defaults


def minibatches(samples: Samples, batch_size: int) -> Iterator[Hand]:
    """Minibatches for one network, without end; torch's own generator shuffles."""
    device = samples.source.device
    decks = [Deck(len(rows), device, None) for rows in (samples.pairs_x, samples.source, samples.target)]
    while True:
        hands = (deck.deal(1, batch_size)[0] for deck in decks)
        # A deck that is no larger than a hand comes whole and in order: it is shuffled here.
        p, q, r = (hand[torch.randperm(len(hand), device=device)] for hand in hands)
        yield Hand(samples.pairs_x[p], samples.pairs_y[p], samples.source[q], samples.target[r], numbers=q)
