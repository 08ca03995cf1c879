"""`EnergyTranslator`: p(y|x) ∝ exp(−u(x, y)) with any networks as cost and potential, by the paper's algorithm (EBiEOT-NN).

Negatives come from Langevin dynamics, and there is no density but what can be estimated. For images, and to reproduce the paper;
a table is better served by a `CorrectedTranslator`. How it is learnt is in `energies.contrast`, how it draws in
`energies.chained`.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fewpairs.data import checks
from fewpairs.data.folds import hold_out
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.energies.chained import ChainedPlan
from fewpairs.energies.contrast import DRIFTING, Contrast
from fewpairs.energies.energy import Energy, MapCost, refuse_unfit_energy
from fewpairs.energies.normalisers import GRID, anneal, integrate
from fewpairs.energies.samplers import AdjustedLangevin, Langevin
from fewpairs.estimators.base import as_device, seeded
from fewpairs.estimators.networks import COMMON_FITTED, COMMON_RULES, NetworkTranslator
from fewpairs.estimators.novelty import Neighbourhood
from fewpairs.estimators.recipes import ENERGY_RECIPES
from fewpairs.estimators.rules import FLAG, NOTHING, Rule, above, at_least, instance_of, one_of
from fewpairs.estimators.settings import ChainSettings, NetworkTraining, Perceptrons
from fewpairs.training.clock import Clock
from fewpairs.training.loop import Budget, Outcome, train
from fewpairs.training.modes import usual_modes
from fewpairs.training.progress import progress_bar

__all__ = ["EnergyTranslator"]

SAMPLERS = {kind.__name__: kind for kind in (Langevin, AdjustedLangevin)}
LEAST_TO_TELL = 10  # held-out pairs, to say that training ran away
TOO_FAR = 2.0  # times the best held-out score: training has run away
N_LOOKS = 30


class EnergyTranslator(NetworkTranslator):
    """Learns p(y|x) as an energy of networks that are all there is: the paper's EBiEOT-NN, and translation of images.

    X and Y are tables, or images of shape (rows, channels, height, width), best in a range around zero.

    Arguments you may want:
        cost: c, a module that takes x and y to one number a row; None is a perceptron. `energies.MapCost` is one for images. Of a
            module of your own a copy is trained, from the weights that it has.
        potential: f, a module that takes y to one number a row; None is a perceptron.
        objective: "inverse_eot", the paper's loss; "transport", where the cost learns from pairs alone and the potential from
            source and target, bounded if the cost is; "supervised". "auto" is "transport" with a `MapCost`, whose least value is
            zero, and else "inverse_eot".
        time_budget: The seconds a fit may take. Held-out pairs are looked at less often or, if one look would take more than half
            of it, not at all.
        random_state: A number makes the fit repeatable on the same machine, unless time_budget ends it.
        verbose: Whether to show a progress bar when a fit takes longer than a moment on a terminal.

    Arguments of the energy:
        epsilon: ε, by which cost and potential are divided.
        confinement: The spread of a Gaussian around zero, in the units of training (standardised ones for tables), that p(y|x)
            has as a factor, so that it is a density whatever the networks are; None leaves that out.
        smoothing: The noise added to x in training, in the units of training.
        energy_penalty: The weight of the mean square of energies, which keeps them from running away.
        standardise: Whether x and y are brought to mean zero and variance one inside; "auto" does so for tables.

    Arguments you should not need:
        sampler: `samplers.Langevin` or `samplers.AdjustedLangevin` with settings; None is Langevin(). They see y in the units of
            training: a `clamp` is in standardised units for tables (zero is the mean of y, one its standard deviation), and
            in your own where nothing is standardised, as for images. Densities are then those within the range.
        chains: How chains begin and how long they are; see `ChainSettings`.
        device: "auto" takes a CUDA device if there is one, or name one.
        perceptrons: The networks where none are given; see `Perceptrons`.
        training: How they are trained; see `NetworkTraining`.

    Attributes:
        plan_: The energy that was learnt, in standardised units.
        history_: A list for each of "step", "seconds", "held_out" (energy score, lower is better; NaN if nothing judged),
            "surrogate", "energy_gap" (mean energy of negatives less that of data, over the last twenty steps), "acceptance",
            "step_size".
        box_: Two corners around all y's, half as wide again on each side, and around four times the confinement: where the
            integral of a density of one or two outputs begins; it is widened as far as it must be.
        buffer_age_: How many steps ago, at the end of training, the chains in the replay buffer were last run, on average: what
            was learnt since, they have not followed.
        step_size_: The step size with which chains begin to draw: that of the networks that were kept.
        n_steps_: The step whose networks were kept.
        ended_: "finished", "out of time", "interrupted" or "diverged": numbers that are not finite, a held-out score more than
            twice its best, or chains whose steps shrank to nothing.

    Example:
        >>> from fewpairs.datasets import TwoBranches
        >>> data = TwoBranches().draw(n_pairs=40, n_source=100, n_target=100, seed=0)
        >>> small = Perceptrons(cost_hidden=(8,), potential_hidden=(8,))
        >>> model = EnergyTranslator(perceptrons=small, training=NetworkTraining(max_steps=3), random_state=0)
        >>> model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired).sample(data.X, 2).shape
        (2, 40, 1)
    """

    fitted_names: ClassVar[tuple[str, ...]] = (*COMMON_FITTED, "box_", "buffer_age_", "step_size_")
    rules: ClassVar[dict[str, Rule]] = {
        **COMMON_RULES,
        "objective": one_of("auto", "supervised", "inverse_eot", "transport"),
        "confinement": above(0) | NOTHING,
        "energy_penalty": at_least(0),
        "standardise": FLAG | one_of("auto"),
        "sampler": instance_of(Langevin) | NOTHING,
        "chains": instance_of(ChainSettings),
    }
    box_: list[list[float]]
    buffer_age_: float
    step_size_: float

    def __init__(
        self,
        *,
        cost: nn.Module | None = None,
        potential: nn.Module | None = None,
        objective: Literal["auto", "supervised", "inverse_eot", "transport"] = "auto",
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = True,
        epsilon: float = 1.0,
        confinement: float | None = 2.0,
        smoothing: float = 0.0,
        energy_penalty: float = 0.03,
        standardise: bool | Literal["auto"] = "auto",
        sampler: Langevin | None = None,
        chains: ChainSettings = ChainSettings(),  # noqa: B008 (settings never change)
        device: str = "auto",
        perceptrons: Perceptrons = Perceptrons(),  # noqa: B008
        training: NetworkTraining = NetworkTraining(),  # noqa: B008
    ) -> None:
        self.cost = cost
        self.potential = potential
        self.objective = objective
        self.time_budget = time_budget
        self.random_state = random_state
        self.verbose = verbose
        self.epsilon = epsilon
        self.confinement = confinement
        self.smoothing = smoothing
        self.energy_penalty = energy_penalty
        self.standardise = standardise
        self.sampler = sampler
        self.chains = chains
        self.device = device
        self.perceptrons = perceptrons
        self.training = training

    @classmethod
    def from_recipe(cls, name: Literal["images", "paper", "authors"], **changes: Any) -> Self:
        """Settings for a purpose: "images", with a cost and a potential of yours; "paper" and "authors", to reproduce EBiEOT-NN
        on vectors as the paper's text says, and as its authors' code runs it.

        Arguments:
            name: Which of them.
            changes: Arguments that are to be otherwise, `training__max_steps` among them.
        """
        if name not in ENERGY_RECIPES:
            raise ValueError(f"There is no recipe {name!r}; the recipes are {sorted(ENERGY_RECIPES)}.")
        return cls(**ENERGY_RECIPES[name]).set_params(**changes)

    def _draw(self, x: Tensor, n_samples: int, seed: int) -> Tensor:
        plan, generator = self._chained(seed)
        return plan(x.to(generator.device), generator).sample((n_samples,))

    @usual_modes()
    def predict(self, X: Any) -> np.ndarray:
        """The conditional mean, over many draws: (rows, dim_y) or (rows,), or images."""
        x = self._standardised(X)
        plan, generator = self._chained(seed=0)
        mean = plan(x.to(generator.device), generator).mean
        return self._outputs(mean * self.y_scaler_.scale + self.y_scaler_.loc)

    @usual_modes()
    def energy(self, X: Any, y: Any) -> np.ndarray:
        """−log p(y|x) up to a number that depends on x alone, one a row."""
        x, y = self._both(X, y)
        rows = self._n_at_once()
        with torch.no_grad():
            parts = [self.plan_(*some).double() for some in zip(x.split(rows), y.split(rows), strict=True)]
        return torch.cat(parts).numpy()

    def summary(self) -> str:
        """What was learnt, from what, and how far to trust it, in a paragraph."""
        check_is_fitted(self, "plan_")
        known = {name: [value for value in values if math.isfinite(value)] for name, values in self.history_.items()}
        told = [f"{self._about_data()}, by {self.objective_} with Langevin chains."]
        if known.get("held_out"):
            told.append(f"Held-out energy score {min(known['held_out']):.3f} (in the units of training).")
        if known.get("energy_gap"):
            told.append(f"At the end energies of chains and data differed by {known['energy_gap'][-1]:+.2f}.")
        if known.get("acceptance") and isinstance(self.sampler, AdjustedLangevin):
            told.append(f"Chains accepted {known['acceptance'][-1]:.0%} of their moves.")
        if not math.isnan(self.buffer_age_):
            told.append(f"Chains in the replay buffer were {self.buffer_age_:.0f} steps old on average.")
        return " ".join([*told, f"Training {self.ended_}; the networks of step {self.n_steps_} were kept."])

    def _learn(self, rows: dict[str, Any], samples: Samples, clock: Clock) -> None:
        self.objective_ = self._find_objective()
        random, device = check_random_state(self.random_state), as_device(self.device)
        self.x_scaler_, self.y_scaler_ = self._scalers(samples)
        samples = samples.standardise(self.x_scaler_, self.y_scaler_).to(dtype=torch.float32, device=device)
        self.neighbourhood_ = Neighbourhood.learn(samples.source, np.random.RandomState(0))
        self.box_ = self._box(samples.target)
        self._warn_of_range(samples.target)
        with seeded(int(random.randint(2**31)), device), progress_bar(is_on=self.verbose) as show:
            energy = self._make_energy(None, confinement=self.confinement).to(device)
            refuse_unfit_energy(energy, samples.pairs_x[:2], samples.pairs_y[:2])
            learner = self._contrast(energy, *hold_out(samples, self.training.held_out, random))
            budget = Budget(
                self._n_steps(),
                clock.part(1.0),
                n_looks=N_LOOKS,
                looks_early=True,
                look_cost=learner.look_cost,
                too_far=TOO_FAR if len(learner.x_judge) >= LEAST_TO_TELL else math.inf,
            )
            outcome = train(learner, learner.judge, budget, on_step=lambda done: show("networks learn p(y|x)", done))
        outcome.refuse_if_nothing_was_learnt()
        self._keep(learner, outcome)

    def _box(self, target: Tensor) -> list[list[float]]:
        """Two corners, around all y's and, where there is one, most of the confinement."""
        low, high = target.amin(0), target.amax(0)
        low, high = 1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low
        if self.confinement is not None:
            low, high = low.clamp(max=-4 * self.confinement), high.clamp(min=4 * self.confinement)
        return [low.tolist(), high.tolist()]

    def _warn_of_range(self, target: Tensor) -> None:
        """A warning if chains cannot reach y's that are there."""
        if self.sampler is None or self.sampler.clamp is None:
            return
        low, high = self.sampler.clamp
        least, most, slack = float(target.min()), float(target.max()), 1e-5 * (high - low)  # float32 rounds
        if least < low - slack or most > high + slack:
            units = (
                "your own units"
                if float(self.y_scaler_.scale.min()) == float(self.y_scaler_.scale.max()) == 1
                else ("standardised units, in which zero is the mean of y and one its standard deviation")
            )
            checks.warn_user(
                f"The sampler's clamp keeps y between {low:g} and {high:g}, but y's of training lie between {least:.3g} and "
                f"{most:.3g}: those outside have no density, and no chain gets there. All this is in {units}. Widen the clamp, "
                "or bring y into its range."
            )

    def _find_objective(self) -> str:
        if self.objective == "transport" and self.cost is None:
            raise ValueError(
                'objective="transport" lowers the cost at the pairs and raises it nowhere: it needs a cost that is bounded '
                "below, such as energies.MapCost(network), and the default is not."
            )
        auto = "transport" if isinstance(self.cost, MapCost) else "inverse_eot"
        return auto if self.objective == "auto" else self.objective

    def _scalers(self, samples: Samples) -> tuple[Scaler, Scaler]:
        both = (
            (samples.source, samples.source_weight, self.x_shape_),
            (samples.target, samples.target_weight, self.y_shape_),
        )
        x_scaler, y_scaler = (
            Scaler.learn(rows, weight)
            if (len(shape) == 1 if self.standardise == "auto" else self.standardise)
            else Scaler.none(rows)
            for rows, weight, shape in both
        )
        return x_scaler, y_scaler

    def _contrast(self, energy: Energy, samples: Samples, x_judge: Tensor, y_judge: Tensor) -> Contrast:
        return Contrast(
            energy=energy,
            samples=samples,
            x_judge=x_judge,
            y_judge=y_judge,
            objective=self.objective_,
            sampler=self.sampler or Langevin(),
            sampling_steps=self.chains.sampling_steps,
            start_std=self.chains.start_std,
            replay=self.chains.replay,
            buffer_size=self.chains.buffer_size,
            smoothing=self.smoothing,
            energy_penalty=self.energy_penalty,
            batch_size=self.training.batch_size,
            adam=self._adam(),
        )

    def _keep(self, learner: Contrast, outcome: Outcome) -> None:
        """Puts what came out into the fitted attributes, and says what the user must know."""
        energy = learner.energy.eval().requires_grad_(False)
        self._keep_outcome(outcome)
        # The step size of the look whose networks were kept: later ones may have had another energy to cope with.
        sizes = self.history_.get("step_size", [])
        self.step_size_ = float(sizes[int(outcome.best[0])]) if sizes else math.nan
        if not self.step_size_ > 0:
            self.step_size_ = (self.sampler or Langevin()).step_size
        self.buffer_age_ = learner.buffer_age()
        energy.strength.fill_(
            1 / learner.sampler.temperature
        )  # draws are at the chains' temperature, and so are densities
        self.plan_ = energy.cpu()
        if outcome.ended != "diverged":
            self._warn_of_drift(self.history_.get("energy_gap", [0.0])[-1], learner.sampler.temperature)

    def _warn_of_drift(self, gap: float, temperature: float) -> None:
        """A warning if the energies of chains lie far from those of data, in the units of a hot chain's temperature. Those of
        cold ones are below the data's in such units whatever is learnt: they are asked in the energy's own."""
        if not abs(gap) > DRIFTING * max(temperature, 1.0):
            return
        means = (
            "chains do not reach where the data are: more n_steps of the sampler, an energy_penalty or spectral_norm help."
            if gap > 0
            else "the networks find other y's likelier than the data, which they do not know yet: more max_steps, a smaller "
            "learning_rate or an energy_penalty help."
        )
        checks.warn_user(
            f"Training drifts: the mean energy of chains is {abs(gap):.0f} {'above' if gap > 0 else 'below'} that of data, and "
            f"{means}",
            ConvergenceWarning,
        )

    def _estimator(self, n_draws: int, seed: int) -> tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], str]:
        generator, clamp = self._generator(seed), (self.sampler or Langevin()).clamp
        energy = copy.deepcopy(self.plan_).to(generator.device)

        def normalise(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            if self.n_outputs_ in GRID:
                box = torch.tensor(self.box_, dtype=x.dtype, device=x.device)
                log_z, error = integrate(energy, x, *box, clamp=clamp)
            else:
                options: dict[str, Any] = {"std": self.chains.start_std, "n_chains": n_draws, "generator": generator}
                log_z, error = anneal(energy, x, self.n_outputs_, **options, clamp=clamp)
            with torch.no_grad():
                log_prob = -energy(x, y) - log_z
            if clamp is not None:
                is_inside = ((y >= clamp[0]) & (y <= clamp[1])).all(1)
                log_prob, error = log_prob.where(is_inside, -math.inf), error.where(is_inside, 0.0)
            return log_prob, error

        return normalise, "quadrature" if self.n_outputs_ in GRID else "annealed importance sampling"

    def _chained(self, seed: int) -> tuple[ChainedPlan, torch.Generator]:
        """The energy and the chains that draw from it, and a source of randomness, on the device that it learnt on."""
        generator = self._generator(seed)
        sampler = replace(
            self.sampler or Langevin(),
            n_steps=self.chains.sampling_steps,
            step_size=self.step_size_,
            temperature=1.0,  # it is in the energy
        )
        energy = copy.deepcopy(self.plan_).to(generator.device)
        size: dict[str, Any] = {"dim_y": self.n_outputs_, "start_std": self.chains.start_std}
        return ChainedPlan(energy, sampler=sampler, n_at_once=self._n_at_once(), **size), generator

    def _standardised(self, X: Any) -> Tensor:
        return super()._standardised(X).float()

    def _plain_settings(self) -> dict[str, Any]:
        settings = super()._plain_settings()
        if self.sampler is not None:
            if type(self.sampler) not in SAMPLERS.values():
                raise ValueError(f"A model with a sampler of your own ({type(self.sampler).__name__}) cannot be saved.")
            settings["sampler"] = {"kind": type(self.sampler).__name__, **asdict(self.sampler)}
        return settings

    @classmethod
    def _read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        settings = super()._read_settings(settings)
        if settings["sampler"] is not None:
            sampler = dict(settings["sampler"])
            kind, clamp = sampler.pop("kind"), sampler.pop("clamp")
            settings["sampler"] = SAMPLERS[kind](**sampler, clamp=None if clamp is None else tuple(clamp))
        return settings

    def _config(self) -> None:
        return None

    def _empty_plan(self, config: None) -> Energy:
        return self._make_energy(None, confinement=self.confinement)
