"""Class plans: the discrete formulas against plain sums, and networks against loops over classes."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.networks.classifiers import make_cnn, make_mlp_classifier, refuse_unfit, reset
from fewpairs.plans.classes import ClassCost, ClassEnsemble, ClassPlan, ClassPotential, Constant
from fewpairs.plans.ensemble import IGNORES_X, Part
from fewpairs.training import objectives
from fewpairs.training.objectives import decisive_marginal
from fewpairs.training.populations import Population
from fewpairs.training.smoothing import AdversarialSmoothing

PRIOR = torch.tensor([0.5, 0.3, 0.2]).double()


def make_plan(seed: int = 0) -> ClassPlan:
    torch.manual_seed(seed)
    network = make_mlp_classifier(2, 3, hidden=(8,), activation="tanh")
    return ClassPlan(ClassCost(network), ClassPotential(torch.randn(3))).double()


def draw(n_labelled: int = 7, n_rows: int = 20) -> Samples:
    generator = torch.Generator().manual_seed(1)
    source = torch.randn(n_rows, 2, generator=generator).double()
    labels = torch.randint(3, (n_labelled, 1), generator=generator).double()
    classes = torch.arange(3).double().unsqueeze(1)
    weight = torch.rand(n_rows, generator=generator).double()
    weight[3] = 0.0
    return Samples(source[:n_labelled], labels, source, classes, weight[:n_labelled] + 0.1, weight, PRIOR)


def test_probabilities_are_the_gibbs_formula() -> None:
    """p(k|x) = exp(f_k − c(x, k)) / Σ_j exp(f_j − c(x, j)), class by class."""
    plan, x = make_plan(), draw().source
    energy = torch.stack([plan.potential.f[k] - plan.cost(x, torch.full((20, 1), float(k))) for k in range(3)], dim=1)
    expected = energy.exp() / energy.exp().sum(1, keepdim=True)
    torch.testing.assert_close(plan.log_probs(x).exp(), expected)
    torch.testing.assert_close(plan.log_partition(x), energy.exp().sum(1).log())
    torch.testing.assert_close(plan.log_prob(x, torch.ones(20, 1)).exp(), expected[:, 1])
    torch.testing.assert_close(
        plan.cost.between(x, torch.tensor([[2.0], [0.0]])), (plan.potential.f - energy)[:, [2, 0]]
    )


def test_the_marginal_is_the_average_prediction() -> None:
    plan, samples = make_plan(), draw()
    probability = plan.log_probs(samples.source).exp()
    weight = samples.source_weight / samples.source_weight.sum()
    found = plan.log_marginal(samples.target, samples.source, samples.source_weight).exp()
    torch.testing.assert_close(found, (weight.unsqueeze(1) * probability).sum(0))
    torch.testing.assert_close(plan.log_marginal(samples.target, samples.source).exp(), probability.mean(0))


def test_objectives_are_those_of_the_paper_and_of_the_prior() -> None:
    """The same functions as for continuous y, with sums over classes in place of integrals."""
    plan, samples = make_plan(), draw()
    pairs_weight = samples.pairs_weight / samples.pairs_weight.sum()
    source_weight = samples.source_weight / samples.source_weight.sum()
    cost = (pairs_weight * plan.cost(samples.pairs_x, samples.pairs_y)).sum()
    log_z = (source_weight * plan.log_partition(samples.source)).sum()
    torch.testing.assert_close(objectives.inverse_eot(plan, samples), cost - (PRIOR * plan.potential.f).sum() + log_z)
    probability = plan.log_probs(samples.source).exp()
    nll = -(pairs_weight * plan.log_prob(samples.pairs_x, samples.pairs_y)).sum()
    of_prior = (PRIOR * (source_weight.unsqueeze(1) * probability).sum(0).log()).sum()
    torch.testing.assert_close(objectives.marginal(plan, samples, 2.0), nll - 2.0 * of_prior)
    entropy = -(source_weight * (probability * probability.log()).sum(1)).sum()
    settings = {"unpaired_weight": torch.tensor(2.0), "emphasis": torch.tensor(0.0)}
    found = decisive_marginal(plan, samples, **settings, decisiveness=0.3)
    torch.testing.assert_close(found, nll - 2.0 * of_prior + 0.3 * entropy)


def test_the_bounded_objective_is_bounded() -> None:
    """It is at least the entropy of the prior, times its weight: likelihoods of classes are at most one, and so is p̂. The
    paper's loss falls without end where labelled and unlabelled x's differ."""
    samples = draw(n_labelled=4)
    entropy = -float((PRIOR * PRIOR.log()).sum())
    settings = {"unpaired_weight": torch.tensor(1.0), "emphasis": torch.tensor(0.0)}
    lowest = {}
    for name, objective in (
        ("paper", objectives.inverse_eot),
        ("bounded", lambda *some: decisive_marginal(*some, **settings, decisiveness=0.3)),
    ):
        plan = make_plan()
        optimizer = torch.optim.Adam(plan.parameters(), lr=0.05)
        for _ in range(400):
            optimizer.zero_grad()
            loss = objective(plan, samples)
            loss.backward()
            optimizer.step()
        lowest[name] = float(loss.detach())
    assert lowest["bounded"] >= entropy
    assert lowest["paper"] < -10


def test_the_adversarial_penalty_is_a_divergence_of_classes() -> None:
    """For every x the penalty is at most the largest KL(p(·|x) ‖ p(·|x + r)) on the circle of its radius, found by trying all
    directions, and on the whole near it."""
    plan, samples = make_plan(), draw()
    radius = 0.1
    angle = torch.linspace(0, 2 * math.pi, 721).double()[:-1]
    circle = radius * math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], dim=1)
    log_p = plan.log_probs(samples.source)
    log_moved = torch.stack([plan.log_probs(samples.source + r) for r in circle])
    largest = (log_p.exp() * (log_p - log_moved)).sum(-1).amax(0)
    weight = samples.source_weight / samples.source_weight.sum()
    batch = Samples(**{name: part.unsqueeze(0) for name, part in vars(samples).items()})
    smoothing = AdversarialSmoothing(std=0.0, radius=radius, n_rows=20)
    found = float(smoothing.penalty(Population([plan]), batch, torch.Generator().manual_seed(0))[0].detach())
    best = float((weight * largest).sum().detach())
    assert 0.7 * best < found <= best * (1 + 1e-3)  # one gradient step from a random direction finds most of it


def test_an_ensemble_averages_probabilities() -> None:
    plans, x = [make_plan(0), make_plan(1)], draw().source
    parts = [Part(f"part {number}", [plan]) for number, plan in enumerate(plans)]
    ensemble = ClassEnsemble(parts, torch.tensor([0.25, 0.75]).double())
    expected = 0.25 * plans[0].log_probs(x).exp() + 0.75 * plans[1].log_probs(x).exp()
    torch.testing.assert_close(ensemble.log_probs(x).exp(), expected)
    torch.testing.assert_close(ensemble(x).probs, expected)


def test_a_plan_that_is_called_is_the_distribution_of_the_class() -> None:
    """Its draws have the shares of the probabilities, to four standard errors."""
    plan, x = make_plan(), draw().source[:4]
    conditional = plan(x)
    torch.testing.assert_close(conditional.probs, plan.log_probs(x).exp())
    torch.testing.assert_close(conditional.log_prob(torch.ones(4)), plan.log_prob(x, torch.ones(4, 1)))
    torch.manual_seed(0)
    drawn = torch.stack([(conditional.sample((10_000,)) == k).double().mean(0) for k in range(3)], dim=-1)
    error = (conditional.probs * (1 - conditional.probs) / 10_000).sqrt()
    assert bool(((drawn - conditional.probs).abs() < 4 * error).all())


def test_a_constant_network_leaves_the_prior() -> None:
    plan, x = ClassPlan(ClassCost(Constant(3)), ClassPotential(PRIOR.log())), draw().source
    torch.testing.assert_close(plan.log_probs(x).exp(), PRIOR.expand(20, 3))
    assert plan.config == {"is_constant": True} and make_plan().config == {"is_constant": False}
    ensemble = ClassEnsemble([Part(IGNORES_X, [plan])], torch.ones(1))
    assert ensemble.config == [{"name": IGNORES_X, "members": [{"is_constant": True}]}]


def test_folds_spread_every_class() -> None:
    labels = torch.tensor([0.0] * 11 + [1.0] * 7 + [2.0]).unsqueeze(1)
    x = torch.randn(30, 2)
    samples = Samples(x[:19], labels, x, torch.arange(3.0).unsqueeze(1))
    folds = Folds.cut_by_class(samples, 3, np.random.RandomState(0))
    for label in (0, 1):
        counts = torch.bincount(folds.pairs[labels[:, 0] == label], minlength=3)
        assert counts.max() - counts.min() <= 1
    assert folds.pairs[18] == -1  # the only row of its class: nobody can do without it
    assert torch.equal(folds.source[:19], folds.pairs) and (folds.source[19:] == -1).all()
    assert (folds.target == -1).all()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_an_embedded_network_is_a_loop_over_classes(kind: str) -> None:
    torch.manual_seed(0)
    make = {"mlp": partial(make_mlp_classifier, 16, 3, hidden=(8, 6)), "cnn": partial(make_cnn, (1, 4, 4), 3)}
    network = make[kind](n_embedded=4)
    x, head = torch.randn(5, 16), network[-1]
    features = network[:-1](x)
    for k in range(3):
        both = torch.cat([features, head.embedding[k].expand(5, -1)], dim=1)
        torch.testing.assert_close(network(x)[:, k], head.layers(both)[:, 0])


def test_fresh_weights_leave_the_users_network_alone() -> None:
    network = make_cnn((1, 8, 8), 3, n_embedded=4)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    fresh = reset(network)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert not torch.equal(tensor, fresh.state_dict()[name])


@pytest.mark.parametrize(
    "network, complaint",
    [
        (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), "BatchNorm1d.*LayerNorm"),
        (nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)), "Dropout.*smoothing="),
        (nn.Linear(5, 3), "rows of 4 numbers"),
        (nn.Linear(4, 2), r"each of 3 classes, but 256 rows gave \(256, 2\)"),
        (nn.Flatten(), "no parameters"),
    ],
)
def test_unfit_networks_are_refused(network: nn.Module, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        refuse_unfit(network, torch.ones(5, 4), 3)


def test_tiny_images_are_refused() -> None:
    with pytest.raises(ValueError, match="4 × 4 pixels at least, but 3 × 9 came"):
        make_cnn((1, 3, 9), 2)
