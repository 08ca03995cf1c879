"""What a fitted `NeuralTranslator` answers: draws, means, energies, estimates of densities, and a summary.

With a base it asks the `CorrectedPlan`; without one, chains draw, and normalisers come from `likelihoods`.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fewpairs.data import checks
from fewpairs.data.scaling import Scaler
from fewpairs.energies.energy import CorrectedPlan, Energy
from fewpairs.energies.learning import draw_afresh
from fewpairs.energies.normalisers import GRID, LikelihoodEstimate, anneal, integrate
from fewpairs.energies.samplers import AdjustedLangevin, Langevin
from fewpairs.estimators.base import Translator, as_device
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.training.cuda_graphs import Recorder

__all__ = ["NeuralAnswers"]

N_TO_AVERAGE = 256  # draws for a mean
MOST_ROWS = 2**16  # rows of a network at once
MOST_NUMBERS = 2**20  # numbers in them: rows of images are long


def _has_base(model: Any) -> bool:
    return getattr(model, "base_", model.base) is not None


class NeuralAnswers(Translator):
    """Abstract: answers from what `NeuralTranslator` has learnt; see there for what its attributes mean."""

    base: Any
    sampler: Langevin | None
    sampling_steps: int
    start_std: float
    device: str
    base_: MixtureTranslator | None
    plan_: Energy
    x_scaler_: Scaler
    y_scaler_: Scaler
    x_shape_: tuple[int, ...]
    y_shape_: tuple[int, ...]
    n_unpaired_: list[int]
    n_pairs_: int
    n_steps_: int
    step_size_: float
    buffer_age_: float
    correction_gain_: float
    correction_gain_error_: float
    history_: dict[str, list[float]]
    box_: list[list[float]]
    objective_: str
    ended_: str

    def sample(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> np.ndarray:
        """Draws y's given x's: (n_samples, rows, dim_y), without the last axis if Y was one-dimensional; images in their own
        shape.

        Without a `random_state` of its own every call draws afresh, whatever the model's.
        """
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        x = self._standardised(X)
        seed = int(check_random_state(random_state).randint(2**31))
        if self.base_ is not None:
            plan, generator = self._corrected(seed)
            with torch.no_grad():
                parts = x.float().to(generator.device).split(max(MOST_ROWS // n_samples, 1))
                drawn = torch.cat([plan.sample(part, n_samples, generator) for part in parts], dim=1).cpu().double()
        else:
            drawn = torch.cat(list(self._run_chains(x, n_samples, seed)), dim=1)
        return self._outputs(drawn * self.y_scaler_.scale + self.y_scaler_.loc)

    def predict(self, X: Any) -> np.ndarray:
        """The conditional mean, over many draws: (rows, dim_y) or (rows,), or images."""
        check_is_fitted(self, "plan_")
        if self.base_ is not None and float(self.plan_.strength) == 0:
            return self.base_.predict(X)
        x = self._standardised(X)
        if self.base_ is None:
            mean = torch.cat([drawn.mean(0) for drawn in self._run_chains(x, N_TO_AVERAGE, seed=0)])
        else:
            plan, generator = self._corrected(seed=0)
            with torch.no_grad():
                parts = x.float().to(generator.device).split(MOST_ROWS // N_TO_AVERAGE)
                mean = torch.cat([plan.mean(part, N_TO_AVERAGE, generator) for part in parts]).cpu().double()
        return self._outputs(mean * self.y_scaler_.scale + self.y_scaler_.loc)

    def energy(self, X: Any, y: Any) -> np.ndarray:
        """−log p(y|x) up to a number that depends on x alone, one a row."""
        x, y = self._both(X, y)
        corrected = None if self.base_ is None else self._corrected(seed=0)[0].cpu()
        rows, parts = self._n_at_once(), []
        with torch.no_grad():
            for some_x, some_y in zip(x.split(rows), y.split(rows), strict=True):
                if self.base_ is None or corrected is None:
                    energy = self.plan_(some_x, some_y)
                else:
                    u = corrected.energies(some_x.float(), some_y.float().unsqueeze(0))[0]
                    energy = u - self.base_.plan_.log_prob(some_x, some_y)
                parts.append(energy.double())
        return torch.cat(parts).numpy()

    def estimate_log_likelihood(
        self, X: Any, y: Any, *, n_draws: int = 1000, random_state: Any = 0
    ) -> LikelihoodEstimate:
        """log p(y|x) with the normaliser as well as it can be had: by draws of the base; without one by quadrature for one or two
        outputs, and by annealed importance sampling for more.

        A y outside the range that the sampler's `clamp` sets has no density: minus infinity, without an error.

        Arguments:
            X: The x's.
            y: A y for each of them.
            n_draws: The draws, or the annealed chains, for each x.
            random_state: Where draws come from.
        """
        check_scalar(n_draws, "n_draws", Integral, min_val=2)
        x, y = self._both(X, y)
        estimate, method, device = self._estimator(n_draws, int(check_random_state(random_state).randint(2**31)))
        rows = max(self._n_at_once() // n_draws, 1)
        parts = [estimate(*some) for some in zip(x.to(device).split(rows), y.to(device).split(rows), strict=True)]
        log_prob, error = (torch.cat(one).double().cpu() for one in zip(*parts, strict=True))
        return LikelihoodEstimate((log_prob - self.y_scaler_.scale.log().sum()).numpy(), error.numpy(), method)

    def _estimator(
        self, n_draws: int, seed: int
    ) -> tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], str, torch.device]:
        """What estimates log p(y|x) and its error in standardised units, by which method, and on which device."""
        if self.base_ is not None:
            (corrected, generator), base = self._corrected(seed), self.base_.plan_

            @torch.no_grad()
            def weigh(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
                log_ratio, error = corrected.log_ratio(x.float(), y.float(), n_draws, generator)
                return base.log_prob(x.cpu(), y.cpu()).to(x.device) + log_ratio, error

            return weigh, "importance sampling", generator.device
        generator = self._generator(seed)
        energy, clamp = copy.deepcopy(self.plan_).to(generator.device), (self.sampler or Langevin()).clamp

        def normalise(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            if self.n_outputs_ in GRID:
                box = torch.tensor(self.box_, dtype=x.dtype, device=x.device)
                log_z, error = integrate(energy, x, *box, clamp=clamp)
            else:
                options: dict[str, Any] = {"std": self.start_std, "n_chains": n_draws, "generator": generator}
                log_z, error = anneal(energy, x, self.n_outputs_, **options, clamp=clamp)
            with torch.no_grad():
                log_prob = -energy(x, y) - log_z
            if clamp is not None:
                is_inside = ((y >= clamp[0]) & (y <= clamp[1])).all(1)
                log_prob, error = log_prob.where(is_inside, -math.inf), error.where(is_inside, 0.0)
            return log_prob, error

        method = "quadrature" if self.n_outputs_ in GRID else "annealed importance sampling"
        return normalise, method, generator.device

    @available_if(_has_base)
    def score_samples(self, X: Any, y: Any) -> np.ndarray:
        """log p(y|x), one number a row, in the user's units; see `estimate_log_likelihood` for how sure that is."""
        return self.estimate_log_likelihood(X, y).log_likelihood

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The mean of `estimate_log_likelihood`: higher is better. (Not R²: this model predicts a distribution.)"""
        scores = self.estimate_log_likelihood(X, y).log_likelihood
        return float(np.average(scores, weights=checks.as_weight(sample_weight, scores[:, None], "sample_weight")))

    def summary(self) -> str:
        """What was learnt, from what, and how far to trust it, in a paragraph."""
        check_is_fitted(self, "plan_")
        data = f"Learnt from {self.n_pairs_} pairs, {self.n_unpaired_[0]} unpaired x's and {self.n_unpaired_[1]} unpaired y's"
        end = f"Training {self.ended_}; the networks of step {self.n_steps_} were kept."
        if self.base_ is None:
            return " ".join([f"{data}, by {self.objective_} with Langevin chains.", *self._about_chains(), end])
        gain = f"{self.correction_gain_:+.3f} ± {self.correction_gain_error_:.3f} nats per held-out pair"
        if math.isnan(self.correction_gain_):
            kept = (
                "nothing of the networks is kept" if float(self.plan_.strength) == 0 else "all of the networks is kept"
            )
            brought = f"Too few pairs judged whether networks help: {kept}."
        elif float(self.plan_.strength) == 0:
            brought = f"Networks brought {gain}: too little to be kept, and the model is its base."
        else:
            brought = f"Networks brought {gain} ({float(self.plan_.strength):.0%} of what they learnt is used). {end}"
        return f"{data}. {brought} The base: {self.base_.summary()}"

    def _about_chains(self) -> list[str]:
        """What is known of how training with chains went, in sentences."""
        known = {name: [value for value in values if math.isfinite(value)] for name, values in self.history_.items()}
        told = []
        if known.get("held_out"):
            told.append(f"Held-out energy score {min(known['held_out']):.3f} (in the units of training).")
        if known.get("energy_gap"):
            told.append(f"At the end energies of chains and data differed by {known['energy_gap'][-1]:+.2f}.")
        if known.get("acceptance") and isinstance(self.sampler, AdjustedLangevin):
            told.append(f"Chains accepted {known['acceptance'][-1]:.0%} of their moves.")
        if not math.isnan(self.buffer_age_):
            told.append(f"Chains in the replay buffer were {self.buffer_age_:.0f} steps old on average.")
        return told

    def _run_chains(self, x: Tensor, n_samples: int, seed: int) -> Iterator[Tensor]:
        """y's for some x's after the others, (n_samples, rows, dim_y) in float64, by chains on the device that the model learnt
        on."""
        generator = self._generator(seed)
        device = generator.device
        sampler = replace(self.sampler or Langevin(), n_steps=self.sampling_steps, step_size=self.step_size_)
        sampler = replace(sampler, temperature=1.0)  # it is in the energy
        plan, recorder = copy.deepcopy(self.plan_).to(device), Recorder()
        n_chains = self._n_at_once()
        n_draws = min(n_samples, n_chains)
        for part in x.split(n_chains // n_draws):
            drawn = []
            for done in range(0, n_samples, n_draws):
                size = self.n_outputs_, sampler, self.start_std
                n_now = min(n_draws, n_samples - done)
                drawn.append(draw_afresh(plan, part.to(device), n_now, *size, generator, recorder).cpu().double())
            yield torch.cat(drawn)

    def _n_at_once(self) -> int:
        """The rows that networks are asked about at once."""
        return max(min(MOST_ROWS, MOST_NUMBERS // max(self.n_features_in_, self.n_outputs_)), 1)

    def _corrected(self, seed: int) -> tuple[CorrectedPlan, torch.Generator]:
        """The corrected base, in float32 as networks are learnt, and a source of randomness, on the device that it learnt on."""
        assert self.base_ is not None
        generator = self._generator(seed)
        plan = CorrectedPlan(self.base_.plan_in_parts(), self.plan_)
        return copy.deepcopy(plan).float().to(generator.device), generator

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(as_device(self.device)).manual_seed(seed)

    def _both(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        x = self._standardised(X)
        rows = self._check_y(self._flat(y, "Y", self.y_shape_))
        checks.refuse_unequal(len(x), len(rows))
        return x, self.y_scaler_(torch.tensor(rows)).to(x.dtype)

    def _standardised(self, X: Any) -> Tensor:
        check_is_fitted(self, "plan_")
        x = self.x_scaler_(torch.tensor(self._check_x(self._flat(X, "X", self.x_shape_))))
        return x if self.base_ is not None else x.float()

    def _is_table(self, name: str) -> bool:
        return len(self.x_shape_ if name == "X" else self.y_shape_) == 1

    def _flat(self, rows: Any, name: str, shape: Sequence[int]) -> Any:
        """Images as rows of numbers; tables as they are."""
        if len(shape) == 1 or rows is None:
            return rows
        inner = checks.unwrap(rows)
        came = np.shape(inner)[1:]
        if came != tuple(shape):
            raise ValueError(f"{name} must hold images of shape {tuple(shape)}, but {came} came.")
        return np.asarray(inner, dtype=np.float64).reshape(len(inner), -1)

    def _outputs(self, y: Tensor) -> np.ndarray:
        return super()._outputs(y) if len(self.y_shape_) == 1 else y.unflatten(-1, tuple(self.y_shape_)).numpy()
