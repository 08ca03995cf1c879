"""Training of candidates: those that can be stacked as one population, in time that is shared out evenly."""

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fewpairs.data.folds import Folds
from fewpairs.plans.plan import Plan
from fewpairs.selection.candidates import Candidate, Trial
from fewpairs.selection.families.base import Family
from fewpairs.training.batches import Dealer, JointDealer
from fewpairs.training.clock import Clock
from fewpairs.training.learners import PopulationLearner, PopulationSettings, score_held_out
from fewpairs.training.loop import Budget, train
from fewpairs.training.populations import Population
from fewpairs.training.smoothing import AdversarialSmoothing, NoiseSmoothing, NoSmoothing, Smoothing

__all__ = ["Stage", "Trainer"]


@dataclass(frozen=True)
class Stage:
    """A part of a fit: how hard candidates are trained in it, and what the progress bar says.

    Attributes:
        title: What goes on.
        start, end: The part of the whole work that is done before and after it.
        seconds: What it may take; None is no bound.
        steps: The steps, as a part of those of the settings …
        rate: … and how long each of them is, likewise.
    """

    title: str
    start: float
    end: float
    seconds: float | None
    steps: float = 1.0
    rate: float = 1.0


@dataclass(kw_only=True)
class Trainer:
    """Trains candidates of one family.

    Attributes:
        family: What they are made of, what they learn from, and who has not seen what.
        settings: How they are trained.
        seed: Where the minibatches begin.
        generator: The source of randomness.
        clock: The time that is left.
        on_step: Called after each step with what goes on and the part of the work done so far.
        trial_part: The steps of a trial in full, as a part of those of the settings.
        final_part: The part of the time left that the final trials may take; what comes after them has the rest.
        adversarial_rows: The x's of a step at which the direction that changes p(y|x) most is looked for: most of its cost.
    """

    family: Family
    settings: PopulationSettings
    seed: int
    generator: torch.Generator
    clock: Clock
    on_step: Callable[[str, float], None]
    trial_part: float = 1.0
    final_part: float = 0.97
    adversarial_rows: int = 64

    def __post_init__(self) -> None:
        self.dealer = Dealer(
            self.family.samples,
            batch_size=self.settings.batch_size,
            pairs_batch_size=self.settings.pairs_batch_size,
            generator=torch.Generator(self.generator.device).manual_seed(self.seed),
        )

    def run(
        self,
        candidates: Sequence[Candidate],
        stage: Stage,
        *,
        folds: Folds | None = None,
        plans: Callable[[Candidate], list[Plan]] | None = None,
        dealer: JointDealer | None = None,
    ) -> list[Trial]:
        """Trains candidates.

        Arguments:
            candidates: Their settings.
            stage: How hard, and what to tell meanwhile.
            folds: Who must not see what; None is as the family's judge has it.
            plans: The members to begin with; None is new ones.
            dealer: Deals the minibatches; None is one for all.
        """
        folds = folds or self.family.judge.folds
        plans = plans or partial(self.family.members, n_folds=folds.n_folds)
        groups: dict[tuple[object, ...], list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(candidate.stackable, []).append(candidate)
        trials: list[Trial] = []
        begin, width = time.perf_counter(), (stage.end - stage.start) / len(candidates)
        for group in groups.values():
            seconds = None
            if stage.seconds is not None:
                left = max(stage.seconds - (time.perf_counter() - begin), 0.0)
                seconds = left * len(group) / (len(candidates) - len(trials))
            start = stage.start + width * len(trials)
            of_group = replace(stage, start=start, end=start + width * len(group), seconds=seconds)
            trials += self._train(group, of_group, folds, plans, dealer)
            if trials[-1].outcome.ended == "interrupted":
                break
        return trials

    def _train(
        self,
        group: Sequence[Candidate],
        stage: Stage,
        folds: Folds,
        plans: Callable[[Candidate], list[Plan]],
        dealer: JointDealer | None,
    ) -> list[Trial]:
        """Trains candidates as one population."""
        samples, judge, first = self.family.samples, self.family.judge, group[0]
        settings = replace(
            self.settings,
            max_steps=max(round(stage.steps * self.settings.max_steps), 1),
            learning_rate=stage.rate * self.settings.learning_rate,
            potential_learning_rate=stage.rate * self.settings.potential_learning_rate,
        )
        if dealer is None:  # candidates of one kind meet the same dice, whatever was tried before
            self.generator.manual_seed(zlib.crc32(repr((self.seed, first.stackable, stage.steps)).encode()))
            self.dealer.reshuffle_pairs(self.generator)
        population = Population([plan for candidate in group for plan in plans(candidate)]).to(samples.source.device)
        learner = PopulationLearner(
            population,
            folds,
            self.family.objective(first),
            settings=settings,
            smoothing=self._smoothing(group, folds.n_folds),
            dealer=dealer or self.dealer,
            traits=self._traits(group, folds.n_folds),
            generator=self.generator,
        )
        outcome = train(
            learner,
            partial(score_held_out, population, samples, folds),
            Budget(settings.max_steps, stage.seconds),
            weight=judge.weight,
            on_step=lambda done: self.on_step(stage.title, stage.start + (stage.end - stage.start) * done),
        )
        return [Trial(candidate, population, place, folds.n_folds, outcome) for place, candidate in enumerate(group)]

    def _each(self, group: Sequence[Candidate], n_folds: int, name: str) -> Tensor:
        values = [float(getattr(candidate, name)) for candidate in group for _ in range(n_folds)]
        source = self.family.samples.source
        return torch.tensor(values, dtype=source.dtype, device=source.device)

    def _traits(self, group: Sequence[Candidate], n_folds: int) -> dict[str, Tensor]:
        names = ("unpaired_weight", "emphasis") if group[0].objective == "marginal" else ("emphasis",)
        return {name: self._each(group, n_folds, name) for name in names}

    def _smoothing(self, group: Sequence[Candidate], n_folds: int) -> Smoothing:
        noise = self._each(group, n_folds, "smoothing")
        is_noisy = bool((noise > 0).any())
        if group[0].adversarial > 0:
            radius = self._each(group, n_folds, "adversarial")
            return AdversarialSmoothing(noise if is_noisy else 0.0, radius=radius, n_rows=self.adversarial_rows)
        return NoiseSmoothing(noise) if is_noisy else NoSmoothing()
