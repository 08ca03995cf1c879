"""`NeuralTranslator`: p(y|x) with any networks as cost and potential (EBiEOT-NN).

Recommended, and the default for vectors: the networks correct a fitted `MixtureTranslator`, p(y|x) ∝ b(y|x) exp(−u(x, y)).
Draws, densities and the bounded objective remain, and the correction has to earn its place on held-out pairs. Without a base it
is the paper's algorithm: negatives by Langevin dynamics, no density. How both are learnt is in `neural_training`, what is
learnt in `energies`, what a fitted model answers in `neural_answers`.
"""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from fewpairs.data import checks
from fewpairs.data.folds import hold_out, row_keys
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.energies.energy import (
    Energy,
    InformedCost,
    MapCost,
    NeuralCost,
    NeuralPotential,
    n_opinions,
    normalise_spectrally,
    refuse_unfit_energy,
)
from fewpairs.energies.learning import DRIFTING, Contrast, Correction, Optimizer
from fewpairs.energies.samplers import AdjustedLangevin, Langevin
from fewpairs.estimators.base import as_device, seeded
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.estimators.neural_answers import NeuralAnswers
from fewpairs.estimators.recipes import NEURAL_RECIPES
from fewpairs.estimators.saving import Saved
from fewpairs.networks.perceptrons import ACTIVATIONS
from fewpairs.selection.makers import Clock
from fewpairs.training.loops import Loop
from fewpairs.training.progress import progress_bar

__all__ = ["NeuralTranslator"]

SAMPLERS = {kind.__name__: kind for kind in (Langevin, AdjustedLangevin)}
STRENGTHS = (0.25, 0.5, 0.75, 1.0)  # parts of a correction that held-out pairs may ask for
SHARE_OF_BASE = 0.6  # of a time budget
LEAST_TO_TELL = 10  # held-out pairs, to say that training ran away


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralTranslator(Saved, NeuralAnswers):
    """Learns p(y|x) with free networks: as a correction of a `MixtureTranslator`, or alone, as the paper's EBiEOT-NN.

    X and Y are tables, or images of shape (rows, channels, height, width), best in a range around zero.

    Arguments you may want:
        base: What is corrected: "mixture" is a `MixtureTranslator` with its default settings, or pass one with settings of your
            own (if it is fitted, it is taken as it is). None learns the whole energy. "auto" is "mixture" for tables, None for
            images.
        cost: c, a module that takes x and y to one number a row; None is a perceptron, and that of a correction hears as well
            what the base and its parts think of y. `energies.MapCost` is one for images. Of a module of your own a copy is
            trained, from the weights that it has.
        potential: f, a module that takes y to one number a row; None is a perceptron.
        objective: With a base "marginal", the bounded objective, "supervised", or "auto": what the base has found better.
            Without one: "inverse_eot", the paper's loss; "transport", where the cost learns from pairs alone and the potential
            from source and target, bounded if the cost is; "supervised". "auto" is "transport" with a `MapCost`, whose least
            value is zero, and else "inverse_eot".
        time_budget: The seconds a fit may take, the base's included. Without a base, held-out pairs are looked at less often
            or, if one look would take more than half of it, not at all.
        random_state: A number makes the fit repeatable on the same machine, unless time_budget ends it.
        verbose: Whether to show a progress bar when a fit takes longer than a moment on a terminal.

    Arguments of the energy:
        epsilon: ε, by which cost and potential are divided.
        bound: Of a correction: u stays between −bound and bound, and so density and base differ by a factor of exp(2 bound) at
            the most.
        confinement: Without a base: the spread of a Gaussian around zero, in the units of training (standardised ones for
            tables), that p(y|x) has as a factor, so that it is a density whatever the networks are; None leaves that out.
        cost_hidden, potential_hidden, activation: The perceptrons.
        spectral_norm: Whether every layer's largest singular value is held at one.

    Arguments of training:
        max_steps: The steps at the most; "auto" is 1,000, and more for more than a thousand pairs.
        learning_rate, potential_learning_rate, betas, one_cycle, max_grad_norm: Adam's; None for the potential is as for the
            cost.
        batch_size: The rows of each kind in a step.
        held_out: The share of the pairs that judge and do not teach: the networks of the best look are kept. 0 keeps the last
            ones. With a base, its first fold judges instead (a base without folds has seen the pairs that judge).
        unpaired_weight: The weight of unpaired rows under "marginal".
        smoothing: The noise added in training to the x that networks see, in standard deviations; "auto" is 0.1 with a base,
            whose own view of x stays sharp, and none without.
        energy_penalty: Without a base: the weight of the mean square of energies, which keeps them from running away.
        n_draws: The draws of the base at each x of a step, for log Z(x).
        standardise: Without a base: whether x and y are brought to mean zero and variance one inside; "auto" does so for tables.
        device: "auto" takes a CUDA device if there is one, or name one.

    Arguments of the chains, where there is no base:
        sampler: `samplers.Langevin` or `samplers.AdjustedLangevin` with settings; None is Langevin(). They see y in the units of
            training: a `clamp` is in standardised units for tables (zero is the mean of y, one its standard deviation), and
            in your own where nothing is standardised, as for images. Densities are then those within the range.
        sampling_steps: The steps of a chain that draws a y for you.
        start_std: The spread of the places where chains begin.
        replay: The chance that a chain in training goes on from where that of its x was.
        buffer_size: The x's whose chains are remembered.

    Attributes:
        plan_: The energy that was learnt, in standardised units.
        base_: The fitted base, or None.
        correction_gain_, correction_gain_error_: What the correction brought to the log-likelihood of held-out pairs, in nats
            per pair. If that was not beyond two standard errors, or fewer than five pairs judged, `plan_` has the strength zero
            and the model is its base. It is measured on top of the base's members that have not seen those pairs, not of the
            whole base, and is the best of several looks and strengths: a little optimistic. NaN without a base.
        history_: A list for each of "step", "seconds", "held_out" (lower is better: energy score, or minus the gain of a
            correction; NaN if nothing judged), "loss", and, of chains, "energy_gap" (mean energy of negatives less that of
            data, over the last twenty steps), "acceptance", "step_size".
        box_: Two corners around all y's, half as wide again on each side, and around four times the confinement: where the
            integral of a density of one or two outputs begins; it is widened as far as it must be.
        buffer_age_: How many steps ago, at the end of training, the chains in the replay buffer were last run, on average: what
            was learnt since, they have not followed. NaN without them.
        step_size_: The step size with which chains begin to draw: that of the networks that were kept; NaN with a base.
        n_steps_: The step whose networks were kept.
        ended_: "finished", "out of time", "interrupted" or "diverged": numbers that are not finite, a held-out score more than
            twice its best, or chains whose steps shrank to nothing.

    Example:
        >>> from fewpairs.datasets.made import TwoBranches
        >>> data = TwoBranches().draw(n_pairs=40, n_source=100, n_target=100, seed=0)
        >>> model = NeuralTranslator(base=None, max_steps=3, cost_hidden=(8,), potential_hidden=(8,), random_state=0)
        >>> model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired).sample(data.X, 2).shape
        (2, 40, 1)
    """

    fitted_names: ClassVar[tuple[str, ...]] = (
        "box_",
        "buffer_age_",
        "correction_gain_",
        "correction_gain_error_",
        "ended_",
        "history_",
        "is_1d_",
        "n_features_in_",
        "n_outputs_",
        "n_pairs_",
        "n_steps_",
        "n_unpaired_",
        "objective_",
        "step_size_",
        "target_names_",
        "x_shape_",
        "y_shape_",
    )
    own_networks: ClassVar[tuple[str, ...]] = ("cost", "potential")
    fitted_parts: ClassVar[dict[str, Any]] = {"x_scaler_": Scaler, "y_scaler_": Scaler}

    base: Any = "auto"
    cost: nn.Module | None = None
    potential: nn.Module | None = None
    objective: Literal["auto", "marginal", "supervised", "inverse_eot", "transport"] = "auto"
    time_budget: float | None = None
    random_state: Any = None
    verbose: bool = True
    epsilon: float = 1.0
    bound: float = 3.0
    confinement: float | None = 2.0
    cost_hidden: Sequence[int] = (256, 256, 256)
    potential_hidden: Sequence[int] = (128, 128)
    activation: str = "leaky_relu"
    spectral_norm: bool = False
    max_steps: int | Literal["auto"] = "auto"
    learning_rate: float = 1e-3
    potential_learning_rate: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    one_cycle: bool = True
    max_grad_norm: float | None = 10.0
    batch_size: int = 128
    held_out: float = 0.2
    unpaired_weight: float = 1.0
    smoothing: float | Literal["auto"] = "auto"
    energy_penalty: float = 0.03
    n_draws: int = 32
    standardise: bool | Literal["auto"] = "auto"
    device: str = "auto"
    sampler: Langevin | None = None
    sampling_steps: int = 500
    start_std: float = 1.0
    replay: float = 0.95
    buffer_size: int = 10_000

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "base": [StrOptions({"auto", "mixture"}), MixtureTranslator, None],
        "cost": [nn.Module, None],
        "potential": [nn.Module, None],
        "objective": [StrOptions({"auto", "marginal", "supervised", "inverse_eot", "transport"})],
        "time_budget": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
        "verbose": ["boolean"],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "bound": [Interval(Real, 0, None, closed="neither")],
        "confinement": [Interval(Real, 0, None, closed="neither"), None],
        "cost_hidden": ["array-like"],
        "potential_hidden": ["array-like"],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "spectral_norm": ["boolean"],
        "max_steps": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "potential_learning_rate": [Interval(Real, 0, None, closed="neither"), None],
        "betas": ["array-like"],
        "one_cycle": ["boolean"],
        "max_grad_norm": [Interval(Real, 0, None, closed="neither"), None],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "held_out": [Interval(Real, 0, 0.5, closed="both")],
        "unpaired_weight": [Interval(Real, 0, None, closed="left")],
        "smoothing": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "energy_penalty": [Interval(Real, 0, None, closed="left")],
        "n_draws": [Interval(Integral, 2, None, closed="left")],
        "standardise": ["boolean", StrOptions({"auto"})],
        "device": [str],
        "sampler": [Langevin, None],
        "sampling_steps": [Interval(Integral, 1, None, closed="left")],
        "start_std": [Interval(Real, 0, None, closed="neither")],
        "replay": [Interval(Real, 0, 1, closed="both")],
        "buffer_size": [Interval(Integral, 1, None, closed="left")],
    }

    @property
    def uses(self) -> tuple[str, ...]:
        """What it learns from, of "pairs", "source" (all x's) and "target" (all y's)."""
        return ("pairs",) if self.objective == "supervised" else ("pairs", "source", "target")

    @classmethod
    def from_recipe(cls, name: Literal["images", "paper", "authors"], **changes: Any) -> Self:
        """Settings for a purpose: "images", with a cost and a potential of yours; "paper" and "authors", to reproduce EBiEOT-NN
        on vectors as the paper's text says, and as its authors' code runs it."""
        if name not in NEURAL_RECIPES:
            raise ValueError(f"There is no recipe {name!r}; the recipes are {sorted(NEURAL_RECIPES)}.")
        return cls(**{**NEURAL_RECIPES[name], **changes})

    def fit(self, X: Any, y: Any, *, X_unpaired: Any = None, Y_unpaired: Any = None) -> Self:
        """Learns from pairs and unpaired rows.

        Arguments:
            X: The x's of the pairs, (P, dim_x) or (P, channels, height, width).
            y: The y's of the pairs, likewise, or (P,).
            X_unpaired: More x's.
            Y_unpaired: More y's.
        """
        self._validate_params()
        if len(self.betas) != 2:
            raise ValueError(f"betas are the two of Adam, such as (0.9, 0.999), but {tuple(self.betas)} came.")
        before = dict(self.__dict__)
        try:
            self._learn(X, y, X_unpaired, Y_unpaired)
        except BaseException:  # whatever it was, half of a new model on top of an old one would be worse
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _learn(self, X: Any, y: Any, X_unpaired: Any, Y_unpaired: Any) -> None:
        clock = Clock(self.time_budget, time.perf_counter())
        self.x_shape_, self.y_shape_ = _shape_of(X), _shape_of(y)
        X, X_unpaired = self._flat(X, "X", self.x_shape_), self._flat(X_unpaired, "X_unpaired", self.x_shape_)
        y, Y_unpaired = self._flat(y, "Y", self.y_shape_), self._flat(Y_unpaired, "Y_unpaired", self.y_shape_)
        samples = self._gather(X, y, X_unpaired=X_unpaired, Y_unpaired=Y_unpaired)
        self.n_pairs_ = len(samples.pairs_x)
        self.n_unpaired_ = [len(samples.source) - self.n_pairs_, len(samples.target) - self.n_pairs_]
        random, device = check_random_state(self.random_state), as_device(self.device)
        base = self._fit_base(X, y, X_unpaired, Y_unpaired, random)
        if base and (base.n_features_in_, base.n_outputs_) != (self.n_features_in_, self.n_outputs_):
            raise ValueError(
                f"The base was fitted to {base.n_features_in_} columns of X and {base.n_outputs_} of Y, but "
                f"{self.n_features_in_} and {self.n_outputs_} came. Fit one to such data, or hand in one that is not fitted."
            )
        self.objective_ = self._objective(base)
        self.x_scaler_, self.y_scaler_ = (base.x_scaler_, base.y_scaler_) if base else self._scalers(samples)
        keys = row_keys(samples)
        samples = samples.standardise(self.x_scaler_, self.y_scaler_).to(dtype=torch.float32, device=device)
        self.box_ = self._box(samples.target)
        if base is None:
            self._warn_of_range(samples.target)
        with seeded(int(random.randint(2**31)), device), progress_bar(is_on=self.verbose) as show:
            energy = self._make_energy(None if base is None else n_opinions(base.plan_in_parts())).to(device)
            refuse_unfit_energy(energy, samples.pairs_x[:2], samples.pairs_y[:2])
            lesson: Correction | Contrast
            if base:
                lesson = self._correction(energy, samples, base, keys, clock)
            else:
                lesson = self._contrast(energy, *hold_out(samples, self.held_out, random), clock)
            is_judged = isinstance(lesson, Contrast) and len(lesson.x_judge) >= LEAST_TO_TELL
            loop = Loop(
                self._n_steps(),
                time_budget=clock.part(1.0),
                too_far=2.0 if is_judged else math.inf,
                on_step=lambda done: show("networks learn p(y|x)", done),
                look_cost=lesson.look_cost if isinstance(lesson, Contrast) else 0.0,
            )
            if base is None or base.ended_ != "interrupted":
                loop.run(energy, lesson.step, lesson.batches(), lesson.judge)
            else:
                loop.ended = "interrupted"
            self._keep(lesson, loop, base)

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

    def _fit_base(self, X: Any, y: Any, X_unpaired: Any, Y_unpaired: Any, random: Any) -> MixtureTranslator | None:
        """The base, fitted unless it is already; None where there is none."""
        is_auto = isinstance(self.base, str) and self.base == "auto"
        if self.base is None or (is_auto and not (self._is_table("X") and self._is_table("Y"))):
            return None
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
        return base.fit(X, y, X_unpaired=X_unpaired, Y_unpaired=Y_unpaired)

    def _objective(self, base: MixtureTranslator | None) -> str:
        if base is None:
            if self.objective == "marginal":
                raise ValueError(
                    'objective="marginal" needs the normaliser, which draws of a base give: leave base at "mixture", or use '
                    'objective="inverse_eot".'
                )
            if self.objective == "transport" and self.cost is None:
                raise ValueError(
                    'objective="transport" lowers the cost at the pairs and raises it nowhere: it needs a cost that is bounded '
                    "below, such as energies.MapCost(network), and the default is not."
                )
            auto = "transport" if isinstance(self.cost, MapCost) else "inverse_eot"
            return auto if self.objective == "auto" else self.objective
        if self.objective in ("inverse_eot", "transport"):
            raise ValueError(
                f'objective="{self.objective}" is for networks without a base: pass base=None, or use objective="marginal".'
            )
        found = str(base.chosen_["objective"])
        return ("supervised" if found == "supervised" else "marginal") if self.objective == "auto" else self.objective

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

    def _make_energy(self, n_opinions: int | None) -> Energy:
        """Networks to begin with: fresh perceptrons, or copies of the user's own. Those of a correction hear so many opinions of
        its base; None is no correction."""
        is_correction = n_opinions is not None
        dims = {"dim_x": self.n_features_in_, "dim_y": self.n_outputs_}
        options: dict[str, Any] = {"activation": self.activation, "last_std": 0.01 if is_correction else None}
        cost, potential = copy.deepcopy(self.cost), copy.deepcopy(self.potential)
        if cost is None and n_opinions:
            cost = InformedCost(**dims, n_opinions=n_opinions, hidden=self.cost_hidden, **options)
        elif cost is None:
            cost = NeuralCost(**dims, hidden=self.cost_hidden, **options)
        if potential is None:
            potential = NeuralPotential(dim_y=self.n_outputs_, hidden=self.potential_hidden, **options)
        if self.spectral_norm:
            cost, potential = normalise_spectrally(cost), normalise_spectrally(potential)
        limits: dict[str, Any] = {"bound": self.bound} if is_correction else {"confinement": self.confinement}
        limits |= {"x_shape": self.x_shape_, "y_shape": self.y_shape_}
        return Energy(cost, potential, epsilon=self.epsilon, **limits)

    def _optimizer(self, clock: Clock) -> Optimizer:
        return Optimizer(
            learning_rate=self.learning_rate,
            potential_learning_rate=self.potential_learning_rate or self.learning_rate,
            betas=(float(self.betas[0]), float(self.betas[1])),
            max_grad_norm=self.max_grad_norm,
            one_cycle=self._n_steps() if self.one_cycle else None,
            seconds=clock.part(1.0),
        )

    def _n_steps(self) -> int:
        return round(1000 * max(self.n_pairs_ / 1000, 1) ** 0.4) if self.max_steps == "auto" else self.max_steps

    def _correction(
        self, energy: Energy, samples: Samples, base: MixtureTranslator, keys: list[int], clock: Clock
    ) -> Correction:
        device = samples.source.device
        n_folds, known = base.n_folds_, dict(zip(base.fold_keys_.tolist(), base.folds_.tolist(), strict=True))
        if n_folds == 1:  # it has held nothing out: some of the pairs judge the correction all the same
            n_folds, known = max(round(1 / self.held_out), 2) if self.held_out else 2, {}
        # Pairs that the base has never met are as good as held out from it: they are dealt among the folds.
        first = 0 if self.held_out or base.n_folds_ > 1 else 1
        dealt = [known.get(key, max(number % n_folds, first)) for number, key in enumerate(keys)]
        # All members know the pairs that no fold holds out. There are such beyond some ten thousand pairs, which nobody knows by
        # heart: they teach too.
        dealt = [1 + number % (n_folds - 1) if fold < 0 else fold for number, fold in enumerate(dealt)]
        if not any(dealt):
            raise ValueError(
                f"All {len(dealt)} pairs are of the first fold of the base, which judges whether networks help and teaches "
                "nothing. Pass all the pairs that the base was fitted to, new ones, or a base that is not fitted."
            )
        folds = torch.tensor(dealt, device=device)
        bases = [copy.deepcopy(base.plan_in_parts(unseen=fold)).float().to(device) for fold in range(n_folds)]
        return Correction(
            energy=energy,
            samples=samples,
            folds=folds,
            bases=bases,
            objective=self.objective_,
            unpaired_weight=self.unpaired_weight,
            n_draws=self.n_draws,
            smoothing=0.1 if self.smoothing == "auto" else self.smoothing,
            batch_size=self.batch_size,
            optimizer=self._optimizer(clock),
        )

    def _contrast(self, energy: Energy, samples: Samples, x_judge: Tensor, y_judge: Tensor, clock: Clock) -> Contrast:
        return Contrast(
            energy=energy,
            samples=samples,
            x_judge=x_judge,
            y_judge=y_judge,
            objective=self.objective_,
            sampler=self.sampler or Langevin(),
            sampling_steps=self.sampling_steps,
            start_std=self.start_std,
            replay=self.replay,
            buffer_size=self.buffer_size,
            smoothing=0.0 if self.smoothing == "auto" else self.smoothing,
            energy_penalty=self.energy_penalty,
            batch_size=self.batch_size,
            optimizer=self._optimizer(clock),
        )

    def _keep(self, lesson: Correction | Contrast, loop: Loop, base: MixtureTranslator | None) -> None:
        """Puts what came out into the fitted attributes, and says what the user must know."""
        energy = lesson.energy.eval().requires_grad_(False)
        self.correction_gain_, self.correction_gain_error_ = math.nan, math.nan
        self.step_size_, self.buffer_age_ = math.nan, math.nan
        if isinstance(lesson, Correction):
            strength, self.correction_gain_, self.correction_gain_error_ = lesson.weigh(STRENGTHS)
            energy.strength.fill_(strength)
        else:
            # The step size of the look whose networks were kept: later ones may have had another energy to cope with.
            self.step_size_ = float(loop.history.get("step_size", [math.nan])[loop.best])
            if not self.step_size_ > 0:
                self.step_size_ = (self.sampler or Langevin()).step_size
            self.buffer_age_ = lesson.buffer_age()
            # Draws are at the temperature of the chains, and so are densities.
            energy.strength.fill_(1 / lesson.sampler.temperature)
        self.base_, self.plan_ = base, energy.cpu()
        self.history_, self.ended_ = loop.history, loop.ended
        self.n_steps_ = int(loop.history["step"][loop.best]) if loop.history else 0
        if loop.ended == "diverged":
            checks.warn_user(
                f"Training ran away; the networks of step {self.n_steps_} are kept, and history_ tells how it went. A smaller "
                "learning_rate, an energy_penalty, smoothing or spectral_norm help; a base helps most.",
                ConvergenceWarning,
            )
        elif isinstance(lesson, Contrast):
            self._warn_of_drift(loop.history.get("energy_gap", [0.0])[-1], lesson.sampler.temperature)
        if loop.ended == "interrupted":
            checks.warn_user("Interrupted: the best networks so far are kept.")

    def _warn_of_drift(self, gap: float, temperature: float) -> None:
        """A warning if the energies of chains lie far from those of data, in the units of a hot chain's temperature. Those of
        cold ones are below the data's in such units whatever is learnt: they are asked in the energy's own."""
        if abs(gap) <= DRIFTING * max(temperature, 1.0):
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

    def take_apart(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, description = super().take_apart()
        if self.base_ is not None:
            of_base, description["fitted"]["base_"] = self.base_.take_apart()
            tensors |= {f"base.{name}": tensor for name, tensor in of_base.items()}
        return tensors, description

    @classmethod
    def from_file(
        cls,
        tensors: dict[str, Tensor],
        settings: dict[str, Any],
        fitted: dict[str, Any],
        *,
        cost: nn.Module | None = None,
        potential: nn.Module | None = None,
    ) -> Self:
        """The model that `save` took apart; networks of the user's own are handed in again."""
        of_base = fitted.pop("base_", None)
        for name, module in (("cost", cost), ("potential", potential)):
            if settings[name] is not None and module is None:
                raise ValueError(
                    f"This model was fitted with a {name} of your own ({settings[name]}): load(path, {name}=…) needs a module "
                    "like it."
                )
            if module is not None and settings[name] != type(module).__name__:
                had = f"a {settings[name]}" if settings[name] else "none of your own: leave it out"
                raise ValueError(f"{name} is a {type(module).__name__}, but this model was fitted with {had}.")
            settings[name] = module
        if settings["sampler"] is not None:
            kind, clamp = settings["sampler"].pop("kind"), settings["sampler"].pop("clamp")
            settings["sampler"] = SAMPLERS[kind](**settings["sampler"], clamp=None if clamp is None else tuple(clamp))
        try:
            model = super().from_file(tensors, settings, fitted)
        except RuntimeError as error:
            raise ValueError(f"cost or potential are not like those this model was fitted with: {error}") from error
        model.base_ = None
        if of_base is not None:
            parts = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("base.")}
            model.base_ = MixtureTranslator.from_file(parts, of_base["settings"], of_base["fitted"])
        return model

    def _plain_settings(self) -> dict[str, Any]:
        settings = super()._plain_settings()
        if self.sampler is not None:
            if type(self.sampler) not in SAMPLERS.values():
                raise ValueError(f"A model with a sampler of your own ({type(self.sampler).__name__}) cannot be saved.")
            settings["sampler"] = {"kind": type(self.sampler).__name__, **asdict(self.sampler)}
        for name in ("cost", "potential"):
            settings[name] = None if settings[name] is None else type(settings[name]).__name__
        if isinstance(self.base, MixtureTranslator):
            settings = {name: value for name, value in settings.items() if not name.startswith("base__")}
            settings["base"] = "mixture"  # the fitted one is saved beside it
        return settings

    def _shape(self) -> dict[str, int | None]:
        return {"n_opinions": None if self.base_ is None else n_opinions(self.base_.plan_in_parts())}

    def _empty_plan(self, shape: dict[str, int | None]) -> Energy:
        return self._make_energy(shape["n_opinions"])

    def _restore(self) -> None:
        self.x_shape_, self.y_shape_ = tuple(self.x_shape_), tuple(self.y_shape_)


def _shape_of(rows: Any) -> tuple[int, ...]:
    """The shape of a row: of an image its channels, height and width; of a row of a table (−1,), whatever its length."""
    inner = checks.unwrap(rows)
    inner = np.asarray(inner[0])[None] if isinstance(inner, list | tuple) and len(inner) else inner  # a list of images
    shape = getattr(inner, "shape", ())
    return tuple(shape[1:]) if len(shape) > 2 else (-1,)
