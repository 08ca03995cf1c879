"""Stacking: the shares of several models in a mixture, and what the mixture is worth. Scores in, shares out.

Scores are log p(y|x) of pairs, each by a member that has not seen it. The last model always ignores x: it bounds every loss, and
it is what little evidence falls back on. What is told of a mixture is told of pairs that had no part in its shares.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

__all__ = ["Trusted", "cross_fit", "find_shares", "optimism", "trust"]

IGNORE_X_PAIRS = 2.0  # the model that ignores x gets the share of this many pairs beforehand: it bounds every loss
LOG_ODDS = -2.0  # beforehand, of the search's winner against ignoring x: of dozens of candidates one is lucky
N_ITERATIONS = 200


class Trusted(NamedTuple):
    """How far a mixture is to be trusted against the model that ignores x, and its scores with no more trust than that."""

    trust: float
    scores: Tensor


def find_shares(log_probs: Tensor, weight: Tensor, uncovered: float = 0.0) -> Tensor:
    """The shares of models whose mixture makes the pairs most likely, found by expectation maximisation.

    Arguments:
        log_probs: log p(y|x) of each model, (models, pairs); the last model ignores x.
        weight: Of the pairs, (pairs,).
        uncovered: The part of the population that the pairs say nothing about. There all models but the last are taken to be
            worth nothing: the mixture is then no worse than the last on average, as far as pairs can tell, whatever is there.
    """
    prior = torch.zeros(len(log_probs), dtype=torch.float64)
    prior[-1] = IGNORE_X_PAIRS + float(weight.sum()) * uncovered / max(1 - uncovered, 1e-6)
    shares = torch.full((len(log_probs),), 1 / len(log_probs), dtype=torch.float64)
    for _ in range(N_ITERATIONS):
        owed = (log_probs + shares.clamp(min=1e-300).log().unsqueeze(1)).softmax(0)
        shares = (owed * weight).sum(1) + prior
        shares = shares / shares.sum()
    return shares


def cross_fit(looks: Sequence[Tensor], ignored: Tensor, fold: Tensor, weight: Tensor, uncovered: float = 0.0) -> Tensor:
    """log p(y|x) of each held-out pair under the mixture, with steps and shares that the pair's own fold did not choose.

    Arguments:
        looks: The scores of each model at each of its looks, (looks, P).
        ignored: Those of the model that ignores x, (P,).
        fold: The fold of each pair, (P,); −1 is held out from nobody.
        weight: Of the pairs, (P,).
        uncovered: See `find_shares`.
    """
    outcome = torch.full_like(ignored, math.nan)
    for number in range(int(fold.max()) + 1):
        here, others = fold == number, (fold >= 0) & (fold != number)
        chosen = [some[_argmax(some[:, others], weight[others])] for some in looks]
        log_probs = torch.stack([*chosen, ignored]).nan_to_num(nan=-1e9)  # a look that diverged
        shares = find_shares(log_probs[:, others], weight[others], uncovered)
        outcome[here] = torch.logsumexp(log_probs[:, here] + shares.clamp(min=1e-300).log().unsqueeze(1), 0)
    return outcome


def trust(scores: Tensor, ignored: Tensor, fold: Tensor, weight: Tensor) -> Trusted:
    """How far to trust a mixture against the model that ignores x, and its scores with no more trust than that.

    The trust is how probable the held-out pairs make the mixture, with `LOG_ODDS` beforehand; that in a pair's score comes
    from the other folds. A handful of pairs leaves little of it, however lucky they were; more of them decide, either way.
    (By how much the search flattered its winner is known too badly to be held against it: from 16 pairs it cost 1.3 nats.)

    Arguments:
        scores: log p(y|x) of each pair under the mixture, (P,), as `cross_fit` gives it.
        ignored: Under the model that ignores x, (P,).
        fold: The fold of each pair, (P,); −1 is held out from nobody.
        weight: Of the pairs, (P,).
    """
    trusted, evidence = scores.clone(), weight * (scores - ignored)
    for number in range(int(fold.max()) + 1):
        here, others = fold == number, (fold >= 0) & (fold != number)
        odds = LOG_ODDS + evidence[others].sum()
        trusted[here] = torch.logaddexp(scores[here] + logsigmoid(odds), ignored[here] + logsigmoid(-odds))
    return Trusted(float((LOG_ODDS + evidence[fold >= 0].sum()).sigmoid()), trusted)


def optimism(table: Tensor, fold: Tensor, weight: Tensor) -> float:
    """By how much a search flattered its winner: its score, less that of the winners that the other folds would pick.

    Arguments:
        table: The scores of all that were tried, (candidates, P); NaN where a pair was held out from nobody.
        fold: The fold of each pair, (P,).
        weight: Of the pairs, (P,).
    """
    if len(table) < 2:
        return 0.0
    is_held_out = ~torch.isnan(table).any(0)
    honest = torch.full_like(table[0], math.nan)
    for number in range(int(fold[is_held_out].max()) + 1):
        here, others = is_held_out & (fold == number), is_held_out & (fold != number)
        honest[here] = table[_argmax(table[:, others], weight[others]), here]
    winner = table[_argmax(table[:, is_held_out], weight[is_held_out])]
    share = weight[is_held_out] / weight[is_held_out].sum()
    return max(float((share * winner[is_held_out]).sum() - (share * honest[is_held_out]).sum()), 0.0)


def _argmax(scores: Tensor, weight: Tensor) -> int:
    """The row with the best weighted mean; rows with holes are never best."""
    return int((scores * weight).sum(1).nan_to_num(nan=-math.inf).argmax())
