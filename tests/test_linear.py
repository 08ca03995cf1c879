"""The linear plan against least squares, plain leave-one-out loops and the truth."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from fewpairs import MixtureTranslator, Search, Training
from fewpairs.datasets.made import LinearGaussian
from fewpairs.plans.linear import RIDGES, fit_linear

PROBLEM = LinearGaussian(matrix=((1.0, -0.5), (0.5, 1.0)), shift=(0.3, -0.2), covariance=((0.5, 0.3), (0.3, 0.25)))


def tensors(n_pairs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.from_numpy(rows) for rows in PROBLEM.draw_pairs(n_pairs, seed=seed))


def test_with_many_pairs_it_is_the_truth() -> None:
    """The expected loss of log-likelihood is the number of parameters over 2P: nine over 8,000, and 4 times that allowed."""
    x, y = tensors(4000)
    plan = fit_linear(x, y, torch.ones(4000))
    fresh_x, fresh_y = tensors(4000, seed=1)
    loss = PROBLEM.conditional(fresh_x.numpy()).log_prob(fresh_y) - plan.log_prob(fresh_x, fresh_y)
    assert loss.mean().item() < 4 * 9 / 8000


def test_penalty_and_residuals_are_those_of_leaving_out_one_by_one() -> None:
    """A loop that leaves out each pair in turn, with weights: the best penalty of each output, and the spread of the noise."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(12, 4, generator=generator).double(), torch.rand(12, generator=generator).double() + 0.2
    y = torch.stack([x[:, 0] + 0.3 * torch.randn(12, generator=generator), torch.randn(12, generator=generator)], dim=1)
    plan = fit_linear(x, y, weight)
    rows, outputs, share = x.numpy(), y.numpy(), (weight / weight.sum()).numpy()

    def solve(kept: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        part = share[kept] / share[kept].sum()
        mean_x, mean_y = part @ rows[kept], part @ outputs[kept]
        w = 12 * share[kept][:, None]
        gram = (w * (rows[kept] - mean_x)).T @ (rows[kept] - mean_x) + ridge * np.eye(4)
        matrix = np.linalg.solve(gram, (w * (rows[kept] - mean_x)).T @ (outputs[kept] - mean_y))
        return matrix, mean_y - mean_x @ matrix

    tried = []
    for ridge in 12 * RIDGES:
        missed = np.zeros((12, 2))
        for one in range(12):
            matrix, offset = solve(np.arange(12) != one, ridge)
            missed[one] = outputs[one] - rows[one] @ matrix - offset
        tried.append((share @ missed**2, ridge))
    losses = np.array([loss for loss, _ in tried])
    best = losses.argmin(0)
    assert len(set(best)) == 2  # the outputs differ in how much x says about them
    variances = plan.potential.atoms().variances()[0].detach().numpy()
    np.testing.assert_allclose(variances, losses.min(0), rtol=0.35)  # shrunk towards each other
    x_new = torch.randn(5, 4, generator=generator).double()
    mean = plan.conditional(x_new).mean.detach().numpy()
    for output in range(2):
        matrix, offset = solve(np.arange(12) >= 0, tried[best[output]][1])
        np.testing.assert_allclose(mean[:, output], (x_new.numpy() @ matrix + offset)[:, output], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n_pairs", [3, 5])
def test_few_pairs_in_many_dimensions_stay_finite(n_pairs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n_pairs, 30, generator=generator), torch.randn(n_pairs, 20, generator=generator)
    plan = fit_linear(x, y, torch.ones(n_pairs))
    assert torch.isfinite(plan.log_prob(100 * x.double(), y.double())).all()
    constant = fit_linear(torch.ones(n_pairs, 2), y, torch.ones(n_pairs))
    assert torch.isfinite(constant.log_prob(torch.ones(n_pairs, 2).double(), y.double())).all()


def test_a_sharp_linear_relation_is_not_left_to_training() -> None:
    """A default fit is as good as least squares where these are right, within the 0.05 nats that the mixture's doubts cost."""
    problem = LinearGaussian(matrix=((1.0, 0.0), (0.0, 1.0)), shift=(0.0, 0.0), covariance=((4e-4, 0.0), (0.0, 1e-4)))
    (x, y), (fresh_x, fresh_y) = problem.draw_pairs(60, seed=0), problem.draw_pairs(2000, seed=1)
    model = MixtureTranslator(random_state=0, training=Training(max_steps=20), verbose=False).fit(x, y)
    centred, mean = x - x.mean(0), y.mean(0)
    matrix = np.linalg.lstsq(centred, y - mean, rcond=None)[0]
    residuals = y - mean - centred @ matrix
    noise = residuals.T @ residuals / (60 - 3)
    squares = multivariate_normal(np.zeros(2), noise).logpdf(fresh_y - mean - (fresh_x - x.mean(0)) @ matrix).mean()
    assert model.score(fresh_x, fresh_y) > squares - 0.05
    assert model.linear_share_ > 0.9 and "linear regression has 9" in model.summary()


def test_the_papers_loss_and_fixed_networks_are_left_alone() -> None:
    x, y = PROBLEM.draw_pairs(40, seed=0)
    for settings in ({"objective": "inverse_eot"}, {"search": Search(hidden=(8,))}):
        model = MixtureTranslator(random_state=0, training=Training(max_steps=2), verbose=False, **settings).fit(x, y)
        assert model.linear_share_ == 0
