"""Conditional flows on their home ground: they reach known densities, integrate to one, and form all cross terms."""

import math
import sys

import numpy as np
import pytest
import torch

from fewpairs import metrics
from fewpairs.baselines.condnf import CondNF, CondNFSS, log_marginal
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import LinearGaussian, TwoBranches

pytest.importorskip("zuko")

SMALL = {"n_transforms": 3, "hidden": (32, 32), "random_state": 0, "verbose": False, "learning_rate": 3e-3}
PLANE = LinearGaussian(matrix=((1.0, -0.5), (0.5, 1.0)), shift=(3.0, -20.0), covariance=((0.5, 0.3), (0.3, 0.4)))


@pytest.mark.parametrize("flow", ["realnvp", "spline"])
def test_a_flow_reaches_a_gaussian_with_correlated_noise(flow: str) -> None:
    """Couplings can be a linear map and a correlated Gaussian, so what is lost is what 4000 pairs do not tell."""
    data = PLANE.draw(n_pairs=5000, n_source=0, n_target=0, seed=0)
    model = CondNF(flow=flow, max_steps=300, **SMALL).fit(data.X, data.Y)
    x, y = PLANE.draw_pairs(4000, seed=1)
    loss = PLANE.conditional(x).log_prob(torch.tensor(y)).numpy() - model.score_samples(x, y)
    noise = loss.std() / math.sqrt(len(x))
    # k parameters in full use cost k/2 nats in 4000 pairs. There are thousands; stopped early, fewer than 800 are in use.
    assert -3 * noise < loss.mean() < 0.1


def test_splines_reach_two_branches_and_couplings_of_one_output_are_gaussian() -> None:
    """One output has nothing to couple: log p(y|x) is a parabola in y, whatever was learnt, so its third differences vanish."""
    problem = TwoBranches()
    data = problem.draw(n_pairs=2000, n_source=0, n_target=0, seed=0)
    x, y = problem.draw_pairs(4000, seed=1)
    truth = problem.conditional(x).log_prob(torch.tensor(y)).numpy()
    losses, bends = {}, {}
    for flow in ("realnvp", "spline"):
        model = CondNF(flow=flow, max_steps=300, **SMALL).fit(data.X, data.Y[:, 0])
        losses[flow] = (truth - model.score_samples(x, y[:, 0])).mean()
        bends[flow] = abs(np.diff(model.score_samples(np.zeros((41, 1)), np.linspace(-2, 2, 41)), n=3)).max()
    assert losses["spline"] < 0.1  # k/2 nats in 1600 pairs, as above: fewer than 320 in use
    assert losses["realnvp"] > 0.5  # no Gaussian has two branches
    assert bends["realnvp"] < 1e-4 < 0.1 < bends["spline"]  # rounding of float32


@pytest.mark.parametrize("flow", ["realnvp", "spline"])
@pytest.mark.parametrize("dim_y", [1, 2])
def test_densities_integrate_to_one(flow: str, dim_y: int) -> None:
    """By the trapezoid rule over twelve standard deviations of y each way, for two x's."""
    data = PLANE.draw(n_pairs=100, n_source=0, n_target=0, seed=0)
    outputs = data.Y[:, :dim_y]
    model = CondNF(flow=flow, max_steps=40, **SMALL).fit(data.X, outputs)
    line = np.linspace(-12, 12, 401)
    grid = np.stack(np.meshgrid(*[line] * dim_y), -1).reshape(-1, dim_y) * outputs.std(0) + outputs.mean(0)
    cell = np.prod((line[1] - line[0]) * outputs.std(0))
    for x in data.X[:2]:
        total = np.exp(model.score_samples(np.tile(x, (len(grid), 1)), grid)).sum() * cell
        assert total == pytest.approx(
            1, abs=5e-3
        )  # steps of 0.06 standard deviations; splines have corners in their slope


def test_the_marginal_has_all_cross_terms() -> None:
    """log mean_q p(y_r | x_q), one density at a time in two loops; and the loss adds its mean over the target to the pairs'."""
    torch.manual_seed(0)
    samples = Samples.gather(
        torch.randn(6, 2), torch.randn(6, 2), unpaired_x=torch.randn(4, 2), unpaired_y=torch.randn(3, 2)
    )
    model = CondNFSS(cross_size=5)
    flow = model._build(samples).double()
    samples = samples.to(torch.float64)
    slow = []
    for y in samples.target:
        densities = [flow(x).log_prob(y).exp() for x in samples.source]
        slow.append((sum(densities) / len(densities)).log())
    expected = torch.stack(slow)
    torch.testing.assert_close(log_marginal(flow, samples.source, samples.target), expected)
    few = log_marginal(flow, samples.source[:5], samples.target[:5]).mean()
    supervised = -flow(samples.pairs_x).log_prob(samples.pairs_y).mean()
    torch.testing.assert_close(model._loss(flow, samples), supervised - few)


def test_unpaired_rows_bring_the_cloud_of_drawn_ys_nearer() -> None:
    """30 pairs and 500 unpaired rows, two draws: a marginal likelihood betters the marginal, and does not cost the conditional.

    Of a flow without them the cloud is off by the error of 24 pairs; with them it has 500 y's to lie on.
    """
    off, nll = {CondNF: 0.0, CondNFSS: 0.0}, {CondNF: 0.0, CondNFSS: 0.0}
    x, y = PLANE.draw_pairs(500, seed=7)
    for seed in (0, 1):
        data = PLANE.draw(n_pairs=30, n_source=500, n_target=500, seed=seed)
        for kind in off:
            sizes = {"cross_size": 32} if kind is CondNFSS else {}
            model = kind(max_steps=150, **SMALL, **sizes)
            model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
            off[kind] += metrics.transport_cost(model.sample(x, random_state=0)[0], y)
            nll[kind] -= model.score(x, y)
    assert off[CondNFSS] < 0.8 * off[CondNF]
    assert nll[CondNFSS] < nll[CondNF] + 0.2


@pytest.mark.parametrize("kind", [CondNF, CondNFSS])
def test_the_same_random_state_gives_the_same_flow(kind: type[CondNF]) -> None:
    data = PLANE.draw(n_pairs=30, n_source=40, n_target=50, seed=0)
    fits = [
        kind(**{**SMALL, "random_state": seed}, max_steps=10)
        .fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
        .score_samples(data.X, data.Y)
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.allclose(fits[0], fits[2])


def test_an_unknown_flow_and_a_missing_library_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    data = PLANE.draw(n_pairs=10, n_source=0, n_target=0, seed=0)
    with pytest.raises(ValueError, match="flow"):
        CondNF(flow="glow").fit(data.X, data.Y)
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(ModuleNotFoundError, match="need the library zuko"):
        CondNF().fit(data.X, data.Y)
