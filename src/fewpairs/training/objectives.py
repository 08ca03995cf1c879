"""Objectives: what a plan is asked to minimise. Pure functions of (plan, samples) to a scalar.

    supervised    −mean_pairs log p(y|x)                                  pairs alone; the yardstick
    inverse_eot   mean_pairs c − mean_target f + mean_source log Z        the paper's empirical loss, as written
    marginal      supervised − μ · mean_target log p̂(y)                   bounded; p̂ is the average of p(·|x) over the source

On finite samples `inverse_eot` has no lower bound: adding any h(y) to cost and potential leaves the plan alone and moves
the loss by mean_pairs h − mean_target h. `marginal` asks for the same (explain the pairs, have the right marginal of y)
but depends on the plan alone. At μ = 1 it is the loss the paper calls CGMM (SS), with all cross terms formed.

Where pairs are a biased part of the population, `emphasis` is the power of a pair's relevance (`Samples.relevance`) with which
it counts. The likelihood of the pairs is right without; the paper's loss holds their cost against the population, and needs it.
"""

from torch import Tensor

from fewpairs.data.samples import Samples
from fewpairs.plans.classes import ClassPlan, log_average
from fewpairs.plans.plan import Plan

__all__ = ["OBJECTIVES", "decisive_marginal", "inverse_eot", "marginal", "supervised"]


def supervised(plan: Plan, samples: Samples, emphasis: float | Tensor = 0.0) -> Tensor:
    """The negative log-likelihood of the pairs."""
    weight = samples.pairs_weight * samples.relevance**emphasis
    return _mean(-plan.log_prob(samples.pairs_x, samples.pairs_y), weight)


def inverse_eot(plan: Plan, samples: Samples, emphasis: float | Tensor = 1.0) -> Tensor:
    """The paper's empirical loss, in units of ε."""
    return (
        _mean(plan.cost(samples.pairs_x, samples.pairs_y), samples.pairs_weight * samples.relevance**emphasis)
        - _mean(plan.potential(samples.target), samples.target_weight)
        + _mean(plan.log_partition(samples.source), samples.source_weight)
    )


def marginal(
    plan: Plan, samples: Samples, unpaired_weight: float | Tensor = 3.0, emphasis: float | Tensor = 0.0
) -> Tensor:
    """The negative log-likelihood of the pairs, and μ times that of the target under the plan's own marginal."""
    log_marginal = plan.log_marginal(samples.target, samples.source, samples.source_weight)
    return supervised(plan, samples, emphasis) - unpaired_weight * _mean(log_marginal, samples.target_weight)


def decisive_marginal(
    plan: ClassPlan, samples: Samples, *, unpaired_weight: Tensor, emphasis: Tensor, decisiveness: float
) -> Tensor:
    """`marginal`, and the mean entropy of p(·|x) over the source, times `decisiveness`.

    A plan that calls every x a toss-up meets the prior and is perfectly smooth: without the entropy, a smooth network drifts
    there from few labels. Both terms are bounded.
    """
    log_probs = plan.log_probs(samples.source)
    log_marginal = log_average(log_probs, samples.source_weight)[samples.target.long().squeeze(-1)]
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return (
        supervised(plan, samples, emphasis)
        - unpaired_weight * _mean(log_marginal, samples.target_weight)
        + decisiveness * _mean(entropy, samples.source_weight)
    )


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean; a minibatch brings weights whose mean is no longer one."""
    return (values * weight).sum() / weight.sum()


# What an estimator may be asked for.
OBJECTIVES = {objective.__name__: objective for objective in (marginal, inverse_eot, supervised)}
