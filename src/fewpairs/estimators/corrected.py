"""`CorrectedTranslator`: networks correct a fitted mixture, p(y|x) ∝ b(y|x) exp(−u(x, y)) with a bounded u.

Draws stay exact, densities known up to a normaliser that is estimated, the objective bounded; and the correction has to earn its
place on held-out pairs. How it is learnt is in `energies.correction`, what is learnt in `energies.corrected`.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fewpairs.data.folds import row_keys
from fewpairs.data.samples import Samples
from fewpairs.energies.corrected import CorrectedPlan, n_opinions
from fewpairs.energies.correction import Correction
from fewpairs.energies.energy import Energy, refuse_unfit_energy
from fewpairs.estimators.base import N_TO_AVERAGE, as_device, seeded
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.estimators.networks import COMMON_FITTED, COMMON_RULES, MOST_ROWS, NetworkTranslator
from fewpairs.estimators.rules import Rule, above, at_least, instance_of, one_of, whole
from fewpairs.estimators.settings import NetworkTraining, Perceptrons
from fewpairs.training.clock import Clock
from fewpairs.training.loop import Budget, Outcome, train
from fewpairs.training.modes import usual_modes
from fewpairs.training.progress import progress_bar

__all__ = ["CorrectedTranslator"]

STRENGTHS = (0.25, 0.5, 0.75, 1.0)  # parts of a correction that held-out pairs may ask for
SHARE_OF_BASE = 0.6  # of a time budget
N_LOOKS = 30


class CorrectedTranslator(NetworkTranslator):
    """Learns p(y|x) by networks that correct a `MixtureTranslator`: for thousands of pairs.

    Arguments you may want:
        base: What is corrected: "mixture" is a `MixtureTranslator` with its default settings, or pass one with settings of your
            own (if it is fitted, it is taken as it is).
        cost: c, a module that takes x and y to one number a row; None is a perceptron, which hears as well what the base and its
            parts think of y. Of a module of your own a copy is trained, from the weights that it has.
        potential: f, a module that takes y to one number a row; None is a perceptron.
        objective: "marginal", the bounded objective, "supervised", or "auto": what the base has found better.
        time_budget: The seconds a fit may take, the base's included.
        random_state: A number makes the fit repeatable on the same machine, unless time_budget ends it.
        verbose: Whether to show a progress bar when a fit takes longer than a moment on a terminal.

    Arguments you should not need:
        epsilon: ε, by which cost and potential are divided.
        bound: u stays between −bound and bound, and so density and base differ by a factor of exp(2 bound) at the most.
        unpaired_weight: The weight of unpaired rows under "marginal".
        smoothing: The noise added in training to the x that networks see, in standard deviations; the base's own view of x stays
            sharp.
        n_draws: The draws of the base at each x of a step, for log Z(x).
        device: "auto" takes a CUDA device if there is one, or name one.
        perceptrons: The networks where none are given; see `Perceptrons`.
        training: How they are trained; see `NetworkTraining`.

    Attributes:
        plan_: The energy that was learnt, in standardised units.
        base_: The fitted base.
        correction_gain_, correction_gain_error_: What the correction brought to the log-likelihood of held-out pairs, in nats
            per pair. If that was not beyond two standard errors, or fewer than five pairs judged, `plan_` has the strength zero
            and the model is its base. It is measured on top of the base's members that have not seen those pairs, not of the
            whole base, and is the best of several looks and strengths: a little optimistic.
        history_: A list for each of "step", "seconds", "held_out" (minus the gain; NaN if nothing judged) and "loss".
        n_steps_: The step whose networks were kept.
        ended_: "finished", "out of time", "interrupted" or "diverged".

    Example:
        >>> from fewpairs.datasets import TwoBranches
        >>> from fewpairs.estimators.settings import Search, Training
        >>> data = TwoBranches().draw(n_pairs=40, n_source=100, n_target=100, seed=0)
        >>> base = MixtureTranslator(n_folds=2, search=Search(hidden=()), training=Training(max_steps=5))
        >>> training = NetworkTraining(max_steps=3)
        >>> model = CorrectedTranslator(base, training=training, random_state=0).fit(data.X, data.Y)
        >>> model.sample(data.X, 2).shape
        (2, 40, 1)
    """

    fitted_names: ClassVar[tuple[str, ...]] = (*COMMON_FITTED, "correction_gain_", "correction_gain_error_")
    rules: ClassVar[dict[str, Rule]] = {
        **COMMON_RULES,
        "base": one_of("mixture") | instance_of(MixtureTranslator),
        "objective": one_of("auto", "marginal", "supervised"),
        "bound": above(0),
        "unpaired_weight": at_least(0),
        "n_draws": whole(2),
    }
    base_: MixtureTranslator
    correction_gain_: float
    correction_gain_error_: float

    def __init__(
        self,
        base: MixtureTranslator | Literal["mixture"] = "mixture",
        *,
        cost: nn.Module | None = None,
        potential: nn.Module | None = None,
        objective: Literal["auto", "marginal", "supervised"] = "auto",
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = True,
        epsilon: float = 1.0,
        bound: float = 3.0,
        unpaired_weight: float = 1.0,
        smoothing: float = 0.1,
        n_draws: int = 32,
        device: str = "auto",
        perceptrons: Perceptrons = Perceptrons(),  # noqa: B008 (settings never change)
        training: NetworkTraining = NetworkTraining(),  # noqa: B008
    ) -> None:
        self.base = base
        self.cost = cost
        self.potential = potential
        self.objective = objective
        self.time_budget = time_budget
        self.random_state = random_state
        self.verbose = verbose
        self.epsilon = epsilon
        self.bound = bound
        self.unpaired_weight = unpaired_weight
        self.smoothing = smoothing
        self.n_draws = n_draws
        self.device = device
        self.perceptrons = perceptrons
        self.training = training

    def _draw(self, x: Tensor, n_samples: int, seed: int) -> Tensor:
        plan, generator = self._corrected(seed)
        parts = x.float().to(generator.device).split(max(MOST_ROWS // n_samples, 1))
        drawn = [plan(part, generator=generator).sample((n_samples,)).cpu() for part in parts]
        return torch.cat(drawn, dim=1).double()

    @usual_modes()
    def predict(self, X: Any) -> np.ndarray:
        """The conditional mean, over many draws: (rows, dim_y) or (rows,), or images."""
        check_is_fitted(self, "plan_")
        if float(self.plan_.strength) == 0:
            mean = torch.from_numpy(self.base_.predict(self._flat(X, "X", self.x_shape_)))
            return self._outputs(mean.reshape(-1, self.n_outputs_))
        x = self._standardised(X)
        plan, generator = self._corrected(seed=0)
        with torch.no_grad():
            parts = x.float().to(generator.device).split(MOST_ROWS // N_TO_AVERAGE)
            mean = torch.cat([plan(part, N_TO_AVERAGE, generator).mean.cpu().double() for part in parts])
        return self._outputs(mean * self.y_scaler_.scale + self.y_scaler_.loc)

    @usual_modes()
    def energy(self, X: Any, y: Any) -> np.ndarray:
        """−log p(y|x) up to a number that depends on x alone, one a row."""
        x, y = self._both(X, y)
        plan, rows, parts = self._corrected(seed=0)[0].cpu(), self._n_at_once(), []
        with torch.no_grad():
            for some_x, some_y in zip(x.split(rows), y.split(rows), strict=True):
                u = plan.energies(some_x.float(), some_y.float().unsqueeze(0))[0]
                parts.append((u - self.base_.plan_.log_prob(some_x, some_y)).double())
        return torch.cat(parts).numpy()

    def score_samples(self, X: Any, y: Any) -> np.ndarray:
        """log p(y|x), one number a row, in the user's units; see `estimate_log_likelihood` for how sure that is."""
        return self.estimate_log_likelihood(X, y).log_likelihood

    def summary(self) -> str:
        """What was learnt, from what, and how far to trust it, in a paragraph."""
        check_is_fitted(self, "plan_")
        strength = float(self.plan_.strength)
        end = f"Training {self.ended_}; the networks of step {self.n_steps_} were kept."
        gain = f"{self.correction_gain_:+.3f} ± {self.correction_gain_error_:.3f} nats per held-out pair"
        if math.isnan(self.correction_gain_):
            kept = "nothing of the networks is kept" if strength == 0 else "all of the networks is kept"
            brought = f"Too few pairs judged whether networks help: {kept}."
        elif strength == 0:
            brought = f"Networks brought {gain}: too little to be kept, and the model is its base."
        else:
            brought = f"Networks brought {gain} ({strength:.0%} of what they learnt is used). {end}"
        return f"{self._about_data()}. {brought} The base: {self.base_.summary()}"

    def _learn(self, rows: dict[str, Any], samples: Samples, clock: Clock) -> None:
        random, device = check_random_state(self.random_state), as_device(self.device)
        base = self._fit_base(rows, random)
        if (base.n_features_in_, base.n_outputs_) != (self.n_features_in_, self.n_outputs_):
            raise ValueError(
                f"The base was fitted to {base.n_features_in_} columns of X and {base.n_outputs_} of Y, but "
                f"{self.n_features_in_} and {self.n_outputs_} came. Fit one to such data, or hand in one that is not fitted."
            )
        found = "supervised" if base.chosen_["objective"] == "supervised" else "marginal"
        self.objective_ = found if self.objective == "auto" else self.objective
        self.x_scaler_, self.y_scaler_, self.neighbourhood_ = base.x_scaler_, base.y_scaler_, base.neighbourhood_
        keys = row_keys(samples)
        samples = samples.standardise(self.x_scaler_, self.y_scaler_).to(dtype=torch.float32, device=device)
        with seeded(int(random.randint(2**31)), device), progress_bar(is_on=self.verbose) as show:
            energy = self._make_energy(n_opinions(base.plan_), bound=self.bound).to(device)
            refuse_unfit_energy(energy, samples.pairs_x[:2], samples.pairs_y[:2])
            learner = self._correction(energy, samples, base, keys)
            budget = Budget(self._n_steps(), clock.part(1.0), n_looks=N_LOOKS, looks_early=True)
            outcome = Outcome(ended="interrupted")
            is_new = base is not self.base  # what interrupted one that was handed in is over
            if not (is_new and base.ended_ == "interrupted"):
                outcome = train(
                    learner, learner.judge, budget, on_step=lambda done: show("networks learn p(y|x)", done)
                )
            strength, self.correction_gain_, self.correction_gain_error_ = learner.weigh(STRENGTHS)
        energy.strength.fill_(strength)
        self.base_, self.plan_ = base, energy.cpu().eval().requires_grad_(False)
        self._keep_outcome(outcome)

    def _fit_base(self, rows: dict[str, Any], random: np.random.RandomState) -> MixtureTranslator:
        """The base, fitted unless it is already."""
        if isinstance(self.base, MixtureTranslator):
            if hasattr(self.base, "plan_"):
                return self.base
            base = clone(self.base)
        else:
            base = MixtureTranslator(device=self.device, verbose=self.verbose)
        if base.random_state is None:
            base.random_state = int(random.randint(2**31))
        if self.time_budget is not None:
            base.time_budget = min(SHARE_OF_BASE * self.time_budget, base.time_budget or math.inf)
        return base.fit(**rows)

    def _correction(self, energy: Energy, samples: Samples, base: MixtureTranslator, keys: list[int]) -> Correction:
        device, held_out = samples.source.device, self.training.held_out
        n_folds, known = base.n_folds_, dict(zip(base.fold_keys_.tolist(), base.folds_.tolist(), strict=True))
        if n_folds == 1:  # it has held nothing out: some of the pairs judge the correction all the same
            n_folds, known = max(round(1 / held_out), 2) if held_out else 2, {}
        # Pairs that the base has never met are as good as held out from it: they are dealt among the folds.
        first = 0 if held_out or base.n_folds_ > 1 else 1
        dealt = [known.get(key, max(number % n_folds, first)) for number, key in enumerate(keys)]
        # All members know the pairs that no fold holds out. There are such beyond some ten thousand pairs, which nobody knows by
        # heart: they teach too.
        dealt = [1 + number % (n_folds - 1) if fold < 0 else fold for number, fold in enumerate(dealt)]
        if not any(dealt):
            raise ValueError(
                f"All {len(dealt)} pairs are of the first fold of the base, which judges whether networks help and teaches "
                "nothing. Pass all the pairs that the base was fitted to, new ones, or a base that is not fitted."
            )
        bases = [copy.deepcopy(base.plan_.without(fold)).float().to(device) for fold in range(n_folds)]
        return Correction(
            energy=energy,
            samples=samples,
            folds=torch.tensor(dealt, device=device),
            bases=bases,
            objective=self.objective_,
            unpaired_weight=self.unpaired_weight,
            n_draws=self.n_draws,
            smoothing=self.smoothing,
            batch_size=self.training.batch_size,
            adam=self._adam(),
        )

    def _estimator(self, n_draws: int, seed: int) -> tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], str]:
        (corrected, generator), base = self._corrected(seed), self.base_.plan_

        @torch.no_grad()
        def weigh(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            log_ratio, error = corrected(x.float(), n_draws, generator).estimate_log_ratio(y.float())
            return base.log_prob(x.cpu(), y.cpu()).to(x.device) + log_ratio, error

        return weigh, "importance sampling"

    def _corrected(self, seed: int) -> tuple[CorrectedPlan, torch.Generator]:
        """The corrected base, in float32 as networks are learnt, and a source of randomness, on the device that it learnt on."""
        generator = self._generator(seed)
        plan = CorrectedPlan(self.base_.plan_, self.plan_)
        return copy.deepcopy(plan).float().to(generator.device), generator

    def take_apart(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, description = super().take_apart()
        of_base, description["fitted"]["base_"] = self.base_.take_apart()
        return tensors | {f"base.{name}": tensor for name, tensor in of_base.items()}, description

    @classmethod
    def from_file(
        cls, tensors: dict[str, Tensor], settings: dict[str, Any], fitted: dict[str, Any], **networks: nn.Module
    ) -> Self:
        of_base = fitted.pop("base_")
        parts = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("base.")}
        model = super().from_file(tensors, settings, fitted, **networks)
        model.base_ = MixtureTranslator.from_file(parts, of_base["settings"], of_base["fitted"])
        return model

    def _plain_settings(self) -> dict[str, Any]:
        return {**super()._plain_settings(), "base": "mixture"}  # the fitted one is saved beside it

    def _config(self) -> dict[str, int]:
        return {"n_opinions": n_opinions(self.base_.plan_)}

    def _empty_plan(self, config: dict[str, int]) -> Energy:
        return self._make_energy(config["n_opinions"], bound=self.bound)
