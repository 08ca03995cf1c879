"""Stacking: shares that explain held-out pairs best, judged without the pairs that are scored; no claim where nothing is."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fewpairs.selection.stacking import IGNORE_X_PAIRS, LOG_ODDS, cross_fit, find_shares, optimism, trust

N_PAIRS = 60
FOLD = torch.arange(N_PAIRS) % 3
EVEN = torch.ones(N_PAIRS, dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


WEIGHT = draw(N_PAIRS, seed=7).exp()


def log_posterior(shares: torch.Tensor, log_probs: torch.Tensor, weight: torch.Tensor, prior: float = IGNORE_X_PAIRS):
    """What `find_shares` maximises, for shares of shape (..., models)."""
    log_mixture = torch.logsumexp(log_probs + shares.log().unsqueeze(-1), dim=-2)
    return (weight * log_mixture).sum(-1) + prior * shares[..., -1].log()


@pytest.mark.parametrize("lead", [-0.5, 0.0, 0.3, 3.0])
def test_shares_maximise_the_likelihood_of_the_mixture(lead: float) -> None:
    """Against a grid of ten thousand shares. At its top the posterior is flat: the share is known less well than the value."""
    log_probs = draw(2, 40) + torch.tensor([[lead], [0.0]])
    weight = draw(40, seed=1).exp()
    ours = torch.linspace(0, 1, 10_001, dtype=torch.float64)[1:-1]
    values = log_posterior(torch.stack([ours, 1 - ours], dim=-1), log_probs, weight)
    shares = find_shares(log_probs, weight)
    assert shares.sum().item() == pytest.approx(1)
    assert log_posterior(shares, log_probs, weight) >= values.max() - 1e-6
    assert shares[0].item() == pytest.approx(ours[values.argmax()].item(), abs=1e-3)


def test_shares_of_three_models() -> None:
    log_probs, weight = draw(3, 60) + torch.tensor([[0.3], [0.2], [0.0]]), torch.ones(60).double()
    step = torch.arange(1, 100, dtype=torch.float64) / 100
    grid = torch.cartesian_prod(step, step)
    grid = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], dim=1)
    grid = grid[grid[:, 2] > 1e-9]
    shares = find_shares(log_probs, weight)
    assert log_posterior(shares, log_probs, weight) >= log_posterior(grid, log_probs, weight).max() - 1e-6


@pytest.mark.parametrize("n_models", [2, 3])
@pytest.mark.parametrize("uncovered", [0.0, 0.4])
def test_shares_are_where_an_optimiser_ends(n_models: int, uncovered: float) -> None:
    """SciPy climbs the same posterior over the logarithms of the shares; what pairs do not cover is as many more pairs for the
    model that ignores x."""
    log_probs = draw(n_models, N_PAIRS) + 0.3 * torch.arange(n_models - 1, -1, -1)[:, None]
    prior = IGNORE_X_PAIRS + float(WEIGHT.sum()) * uncovered / (1 - uncovered)

    def loss(logits: np.ndarray) -> float:
        shares = torch.tensor([*logits, 0.0], dtype=torch.float64).softmax(0)
        return -float(log_posterior(shares, log_probs, WEIGHT, prior))

    best = minimize(loss, np.zeros(n_models - 1), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    shares = find_shares(log_probs, WEIGHT, uncovered)
    assert -float(log_posterior(shares, log_probs, WEIGHT, prior)) <= best.fun + 1e-6
    torch.testing.assert_close(shares, torch.tensor([*best.x, 0.0]).softmax(0).double(), atol=1e-3, rtol=0)


def test_a_model_that_is_worthless_gets_nothing() -> None:
    shares = find_shares(torch.tensor([[-50.0] * 20, [0.0] * 20], dtype=torch.float64), torch.ones(20).double())
    assert shares[0] < 1e-9
    shares = find_shares(torch.tensor([[50.0] * 20, [0.0] * 20], dtype=torch.float64), torch.ones(20).double())
    assert shares[1].item() == pytest.approx(IGNORE_X_PAIRS / (20 + IGNORE_X_PAIRS))  # the prior alone


def test_crossfit_is_a_choice_by_the_other_folds() -> None:
    """Written out: for each fold, the best look by the others, and shares from a grid by the others."""
    looks, ignored = draw(4, N_PAIRS) + 0.2, draw(N_PAIRS, seed=1)
    outcome = cross_fit([looks], ignored, FOLD, WEIGHT)
    ours = torch.linspace(0, 1, 10_001, dtype=torch.float64)[1:-1]
    grid = torch.stack([ours, 1 - ours], dim=-1)
    for fold in range(3):
        here, others = fold == FOLD, fold != FOLD
        best = max(looks, key=lambda scores: float((scores * WEIGHT)[others].sum()))
        both = torch.stack([best, ignored])
        shares = grid[log_posterior(grid, both[:, others], WEIGHT[others]).argmax()]
        expected = torch.logsumexp(both[:, here] + shares.log()[:, None], dim=0)
        torch.testing.assert_close(outcome[here], expected, atol=2e-3, rtol=0)  # the width of the grid, times slopes


def test_crossfit_uses_nothing_of_a_pairs_own_fold() -> None:
    """Scores of fold 0 that would turn every choice, moved all together: its own outcome moves with them, and by no more."""
    looks, ignored = draw(4, N_PAIRS), draw(N_PAIRS, seed=1)
    here = FOLD == 0
    before = cross_fit([looks], ignored, FOLD, WEIGHT)
    after = cross_fit([looks + 100 * here], ignored + 100 * here, FOLD, WEIGHT)
    torch.testing.assert_close(after[here], before[here] + 100, atol=1e-9, rtol=0)

    chosen = max(range(4), key=lambda look: float((looks[look] * WEIGHT)[~here].sum()))
    tempting = looks + 100 * here * (torch.arange(4) != chosen)[:, None]
    after = cross_fit([tempting], ignored, FOLD, WEIGHT)
    torch.testing.assert_close(after[here], before[here], atol=1e-12, rtol=0)
    assert (after[~here] - before[~here]).abs().max() > 0.01  # the other folds do listen to it


def test_crossfit_passes_over_a_look_that_broke() -> None:
    looks, ignored = draw(3, N_PAIRS), draw(N_PAIRS, seed=1)
    broken = torch.cat([looks, torch.full((1, N_PAIRS), math.nan)])
    expected = cross_fit([looks], ignored, FOLD, WEIGHT)
    torch.testing.assert_close(cross_fit([broken], ignored, FOLD, WEIGHT), expected, atol=1e-12, rtol=0)


def test_pairs_that_nobody_holds_out_have_no_score_and_no_say() -> None:
    looks, ignored = draw(3, N_PAIRS), draw(N_PAIRS, seed=1)
    fold = torch.where(torch.arange(N_PAIRS) < 10, -1, FOLD)
    outcome = cross_fit([looks], ignored, fold, WEIGHT)
    assert torch.isnan(outcome[:10]).all()
    kept = cross_fit([looks[:, 10:]], ignored[10:], fold[10:], WEIGHT[10:])
    torch.testing.assert_close(outcome[10:], kept, atol=1e-12, rtol=0)
    trusted, of_kept = trust(outcome, ignored, fold, WEIGHT), trust(kept, ignored[10:], fold[10:], WEIGHT[10:])
    assert trusted[0] == pytest.approx(of_kept[0])
    torch.testing.assert_close(trusted[1][10:], of_kept[1], atol=1e-12, rtol=0)


def test_trust_is_the_posterior_of_two_models() -> None:
    """The odds before, times the ratio of the held-out pairs' likelihoods, are the odds after. Computed with plain numbers."""
    scores, ignored = 0.1 * draw(N_PAIRS), 0.1 * draw(N_PAIRS, seed=1)
    found, trusted = trust(scores, ignored, FOLD, EVEN)
    before = math.exp(LOG_ODDS)
    ours, theirs = before * float(scores.sum().exp()), float(ignored.sum().exp())
    assert found == pytest.approx(ours / (ours + theirs), rel=1e-9)
    others = FOLD != 0
    ours, theirs = before * float(scores[others].sum().exp()), float(ignored[others].sum().exp())
    share = ours / (ours + theirs)
    expected = (share * scores[~others].exp() + (1 - share) * ignored[~others].exp()).log()
    torch.testing.assert_close(trusted[~others], expected, atol=1e-12, rtol=0)


def test_weights_count_as_pairs_in_trust() -> None:
    scores, ignored = 0.1 * draw(N_PAIRS), 0.1 * draw(N_PAIRS, seed=1)
    twice = torch.cat([torch.arange(N_PAIRS), torch.arange(20)])
    weight = 1.0 + (torch.arange(N_PAIRS) < 20).double()
    again = trust(scores[twice], ignored[twice], FOLD[twice], torch.ones(80).double())
    assert trust(scores, ignored, FOLD, weight)[0] == pytest.approx(again[0])


@pytest.mark.parametrize(("gain", "expected"), [(0.5, 1.0), (-0.5, 0.0)])
def test_many_pairs_leave_no_doubt(gain: float, expected: float) -> None:
    ignored = draw(N_PAIRS)
    found, trusted = trust(ignored + gain, ignored, FOLD, WEIGHT)  # evidence of 13 nats in a fold's others
    assert found == pytest.approx(expected, abs=1e-4)
    torch.testing.assert_close(trusted, ignored + max(gain, 0.0), atol=1e-2, rtol=0)


def test_optimism_is_what_the_best_of_many_owes_to_luck() -> None:
    """Forty candidates that differ by chance alone: the winner, less the optimism, is as good as any, to three errors."""
    table = torch.stack([draw(N_PAIRS, seed=seed) for seed in range(40)])
    winner = float(table.mean(1).max())
    assert winner > 0.2
    assert abs(winner - optimism(table, FOLD, EVEN)) < 3 / N_PAIRS**0.5
    assert optimism(torch.cat([table, draw(1, N_PAIRS) + 5]), FOLD, EVEN) == 0  # every fold picks the same
    assert optimism(table[:1], FOLD, EVEN) == 0


def test_optimism_is_what_picking_the_best_of_noise_brings() -> None:
    """Twenty equal candidates: the best mean of 100 scores lies 1.87 standard errors up by chance (the mean of the largest
    of twenty normal numbers), and what other folds pick does not. A candidate that is best everywhere is not flattered."""
    generator = torch.Generator().manual_seed(0)
    fold, weight = torch.arange(100) % 5, torch.ones(100, dtype=torch.float64)
    tables = [torch.randn(20, 100, generator=generator, dtype=torch.float64) for _ in range(200)]
    found = [optimism(table, fold, weight) for table in tables]
    assert min(found) >= 0
    assert np.mean(found) == pytest.approx(0.187, abs=0.03)  # 200 draws of spread 0.1: four standard errors
    ahead = torch.randn(20, 100, generator=generator, dtype=torch.float64)
    ahead[3] += 10
    assert optimism(ahead, fold, weight) == 0


def test_optimism_by_brute_force() -> None:
    """Every fold's honest winner, found by a loop over the candidates; pairs that some trial has seen do not count."""
    table = draw(5, N_PAIRS)
    table[2, :7] = math.nan
    rows, weights = range(7, N_PAIRS), WEIGHT.tolist()

    def total(candidate: int, some: list[int]) -> float:
        return sum(weights[row] * float(table[candidate, row]) for row in some)

    honest = 0.0
    for fold in range(3):
        others = [row for row in rows if row % 3 != fold]
        winner = max(range(5), key=lambda candidate, others=others: total(candidate, others))
        honest += total(winner, [row for row in rows if row % 3 == fold])
    best = max(total(candidate, list(rows)) for candidate in range(5))
    expected = max((best - honest) / sum(weights[7:]), 0.0)
    assert optimism(table, FOLD, WEIGHT) == pytest.approx(expected, abs=1e-12)
