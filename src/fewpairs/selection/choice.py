"""The choice: which settings suit the data, judged by held-out pairs, and what the winners are worth.

`choose` searches by short trials, trains the best candidates in full, and mixes their members with a linear plan and the best
model that ignores x, in the shares that explain the held-out pairs best, as far as these are evidence at all. Every pair is
scored by a member that has not seen it, so all comparisons are of the same pairs.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fewpairs.data.folds import Folds
from fewpairs.plans.ensemble import IGNORES_X, LINEAR, Ensemble, Part
from fewpairs.plans.plan import Plan
from fewpairs.selection import stacking
from fewpairs.selection.candidates import Candidate, Options, Trial
from fewpairs.selection.families.base import Family
from fewpairs.selection.judges import Judge
from fewpairs.selection.search import SettingsSearch, score_of
from fewpairs.selection.trials import Stage, Trainer
from fewpairs.training.batches import JointDealer

__all__ = ["LEAST_STEPS", "Choice", "Final", "choose", "choose_together", "resume"]

RESUMED = 0.3  # the step size of training that goes on, as a part of that from the start
LEAST_STEPS = 100  # a rival that was cut short before has not been given a chance
LEAST_SHARE = 0.03  # a final trial with less than this is left out of the mixture
LITTLE = 0.2  # of the score: where no early stop cost less, learning from all pairs was still the better
# Seconds of a budget that all rounds of the search fit into, and one of them.
ENOUGH_FOR_ALL_ROUNDS, ENOUGH_FOR_ONE_ROUND = 40, 12


@dataclass(frozen=True)
class Final:
    """A trial that was trained in full.

    Attributes:
        name: The name of its part of the ensemble, if it has a share in it.
        trial: Settings, members, scores.
        share: Its share.
    """

    name: str
    trial: Trial
    share: float


@dataclass(frozen=True)
class Choice:
    """What was chosen, and what it is worth. Scores and gains are in nats per pair, in standardised units.

    Attributes:
        plan: The final plan, an ensemble of parts.
        folds: Whose pairs its members have not seen.
        finals: The trials it was mixed from; the linear plan and the model that ignores x have the rest.
        table: Every candidate that was tried, its score and the standard error.
        score, unpaired_gain, x_gain: Each with its standard error.
        ended: "finished", "out of time", "interrupted" or "diverged".
    """

    plan: Ensemble
    folds: Folds
    finals: list[Final]
    table: list[tuple[Candidate, float, float]]
    score: tuple[float, float]
    unpaired_gain: tuple[float, float]
    x_gain: tuple[float, float]
    ended: str

    @property
    def winner(self) -> Final:
        """The trial with the largest share."""
        return max(self.finals, key=lambda final: final.share)


def choose(trainer: Trainer, options: Options, objective: str) -> Choice:
    """Searches, trains the winners in full and mixes them.

    Arguments:
        trainer: Data, folds and the way to train.
        options: For each setting the values to choose from; one value fixes it.
        objective: "marginal", "inverse_eot" or "supervised"; the best supervised candidates are searched for in any case.
    """
    family, clock = trainer.family, trainer.clock
    # Without folds nothing is held out: there is nothing to choose by, and nothing to compare with.
    kinds = list(dict.fromkeys([objective, "supervised"] if family.judge.has_pairs else [objective]))
    n_rounds = _n_rounds(trainer)
    finals: list[Candidate] = []
    searches: list[SettingsSearch] = []
    is_interrupted = False
    for number, kind in enumerate(kinds):
        searches.append(SettingsSearch(trainer, family.limit(options, kind), kind, n_rounds))
        start, end = 0.5 * number / len(kinds), 0.5 * (number + 1) / len(kinds)
        is_interrupted = searches[-1].run(start, end, time_part=0.3 if number == 0 else 0.15)
        finals += searches[-1].winners(2)
        if is_interrupted:
            break
    short = [trial for search in searches for trial in search.trials]
    if not is_interrupted:
        stage = Stage(
            "Learning p(y|x)",
            start=0.5,
            end=0.5 + 0.5 * trainer.final_part,
            seconds=clock.part(trainer.final_part),
            steps=trainer.trial_part,
        )
        full = trainer.run(finals, stage)
        ended = _how_it_ended(full)
        if ended != "interrupted" or not short or any(trial.has_begun for trial in full):
            return _settle(trainer, full, objective, ended, short)
    # Short trials may not have used all folds: whoever asks later who has seen what is told of those they did use.
    best = [max(search.trials, key=score_of(family)) for search in searches if search.trials]
    return _settle(trainer, best, objective, "interrupted", short, family.judge.first(best[0].n_folds))


def choose_together(trainers: Sequence[Trainer], options: Options, objective: str) -> list[Choice]:
    """Trains the only candidate there is for several data sets at once, each with its own trainer."""
    if any(len(values) > 1 for values in options.values()) or any(one.family.judge.has_pairs for one in trainers):
        raise ValueError(
            "Fits can be made together if they leave nothing to choose: give every setting, and n_folds=1."
        )
    only = {name: values[0] for name, values in trainers[0].family.limit(options, objective).items()}
    candidate = Candidate.of(objective, only)
    members = iter([trainer.family.members(candidate, 1) for trainer in trainers])
    trials = trainers[0].run(
        [candidate] * len(trainers),
        Stage("Learning p(y|x)", start=0.0, end=1.0, seconds=trainers[0].clock.part(0.97)),
        plans=lambda _: next(members),
        dealer=JointDealer([trainer.dealer for trainer in trainers]),
    )
    return [
        _settle(trainer, [trial], objective, trial.outcome.ended)
        for trainer, trial in zip(trainers, trials, strict=True)
    ]


def resume(trainer: Trainer, known: dict[Candidate, list[Plan]]) -> Choice:
    """Goes on with candidates that were chosen before, from the members they have; where they have none, from the start.

    Arguments:
        trainer: Data, folds and the way to train.
        known: For each candidate its members, one a fold, or none; the first has the objective that was asked for.
    """
    dtype, n_folds = trainer.family.samples.source.dtype, trainer.family.judge.folds.n_folds

    def plans(candidate: Candidate) -> list[Plan]:
        # In training mode like new ones: a population is of one mind.
        members = [copy.deepcopy(plan).to(dtype).train().requires_grad_() for plan in known[candidate]]
        return members or trainer.family.members(candidate, n_folds)

    stage = Stage("Learning p(y|x)", start=0.0, end=1.0, seconds=trainer.clock.part(0.97), rate=RESUMED)
    trials = trainer.run(list(known), stage, plans=plans)
    return _settle(trainer, trials, next(iter(known)).objective, _how_it_ended(trials))


def _n_rounds(trainer: Trainer) -> int:
    """How many rounds of the search there is time for."""
    budget = trainer.clock.budget
    if not trainer.family.judge.has_pairs:
        return 0
    if budget is None or budget >= ENOUGH_FOR_ALL_ROUNDS:
        return 3
    return 1 if budget >= ENOUGH_FOR_ONE_ROUND else 0


def _how_it_ended(trials: Sequence[Trial]) -> str:
    return next((trial.outcome.ended for trial in trials if trial.outcome.ended != "finished"), "finished")


def _settle(
    trainer: Trainer,
    finals: Sequence[Trial],
    objective: str,
    ended: str,
    short: Sequence[Trial] = (),
    judge: Judge | None = None,
) -> Choice:
    """Mixes the final trials, the linear plan and the model that ignores x, and says what the mixture is worth.

    Arguments:
        trainer: What trained them.
        finals: The trials to mix.
        objective: The objective of the fit.
        ended: How training ended.
        short: What the search has tried before.
        judge: The judge of the trials; None is the family's own.
    """
    family, judge = trainer.family, judge or trainer.family.judge
    if ended == "interrupted" and not any(trial.has_begun for trial in [*short, *finals]):
        raise KeyboardInterrupt  # nothing has been learnt that could be kept
    trials = {f"candidate {number}": trial for number, trial in enumerate(finals)}
    if not judge.has_pairs:
        return _keep_unjudged(family, trials, ended)
    # Without unpaired rows is μ = 0, a candidate like any other; next to the paper's loss it is a yardstick and no more.
    mixed = {name: one for name, one in trials.items() if objective in ("marginal", one.candidate.objective)}
    rivals = [trial for trial in finals if trial.candidate.objective == "supervised" and _is_trained(trial)]

    known = _Known(family, judge)
    (trust, ours), tell = known.mix(list(mixed.values())), partial(judge.mean, to_tell=True)
    shares = known.shares(mixed, trust)
    (of_ours, error), (of_x, error_of_x) = tell(ours), tell(ours - known.ignored)
    unpaired_gain = (0.0, 0.0) if objective == "supervised" else (math.nan, math.nan)
    if objective != "supervised" and rivals:
        unpaired_gain = tell(ours - known.mix(rivals).scores)
    # What ignores x was not searched for, and is not flattered.
    searched = [trial.scores() for trial in short if trial.candidate.objective == objective]
    too_good = (1 - shares[IGNORES_X]) * _optimism(searched, judge)
    plan, ended = _assemble(trainer, known, mixed, shares, ended)
    return Choice(
        plan=plan,
        folds=judge.folds,
        finals=[Final(name, trial, shares.get(name, 0.0)) for name, trial in trials.items()],
        table=[(trial.candidate, *judge.mean(trial.scores())) for trial in [*short, *finals]],
        score=(of_ours - too_good, error),
        unpaired_gain=unpaired_gain,
        x_gain=(of_x - too_good, error_of_x),
        ended=ended,
    )


def _keep_unjudged(family: Family, trials: dict[str, Trial], ended: str) -> Choice:
    """The choice where nothing is held out: the only candidate, of which nobody knows how good it is."""
    (name, trial), nothing = next(iter(trials.items())), (math.nan, math.nan)
    parts = [Part(name, [plan.double() for plan in trial.plans()])]
    plan = family.ensemble(parts, torch.ones(1, dtype=torch.float64))
    return Choice(plan, family.judge.folds, [Final(name, trial, 1.0)], [], nothing, nothing, nothing, ended)


class _Known:
    """What is known without training: the model that ignores x and the linear plan, with their scores."""

    def __init__(self, family: Family, judge: Judge) -> None:
        self.judge, folds = judge, judge.folds
        self.ignores_x, ignored = family.ignoring_x()
        self.ignored = torch.where(judge.is_held_out, ignored, math.nan)
        self.linear, self.of_linear = list[Plan](), list[Tensor]()
        if found := family.linear():
            self.linear, self.of_linear = (
                found[0][: folds.n_folds],
                [torch.where(judge.is_held_out, found[1], math.nan)],
            )

    def mix(self, trials: Sequence[Trial]) -> stacking.Trusted:
        """How far to trust a mixture of some trials and the linear plan, and the score of each pair."""
        looks = [*(trial.looks() for trial in trials), *(scores.unsqueeze(0) for scores in self.of_linear)]
        fold, weight = self.judge.folds.pairs, self.judge.weight
        scores = stacking.cross_fit(looks, self.ignored, fold, weight, self.judge.uncovered)
        return stacking.trust(scores, self.ignored, fold, weight)

    def shares(self, trials: dict[str, Trial], trust: float) -> dict[str, float]:
        """The shares of a mixture that is trusted so far, by the names of its parts."""
        kept = torch.stack([*(trial.scores() for trial in trials.values()), *self.of_linear, self.ignored])
        here = self.judge.is_held_out
        shares = stacking.find_shares(kept[:, here], self.judge.weight[here], self.judge.uncovered)
        shares[:-1] *= trust
        shares[:-1][shares[:-1] < LEAST_SHARE] = 0.0
        shares[-1] = 1 - shares[:-1].sum()
        names = [*trials, *([LINEAR] if self.linear else []), IGNORES_X]
        return dict(zip(names, shares.tolist(), strict=True))


def _assemble(
    trainer: Trainer, known: _Known, trials: dict[str, Trial], shares: dict[str, float], ended: str
) -> tuple[Ensemble, str]:
    """The ensemble of what has a share, and how training ended."""
    members: dict[str, Sequence[Plan]] = {IGNORES_X: [known.ignores_x], LINEAR: known.linear}
    for name, trial in trials.items():
        if shares[name] > 0:
            kept = trial
            if trainer.family.learns_anew and ended != "interrupted":
                kept = _learn_anew(trainer, trial)
                ended = ended if kept.outcome.ended == "finished" else kept.outcome.ended
            members[name] = [plan.double() for plan in kept.plans()]
    names = [name for name in members if name == IGNORES_X or shares.get(name, 0.0) > 0]
    weights = torch.tensor([shares[name] for name in names], dtype=torch.float64)
    return trainer.family.ensemble([Part(name, members[name]) for name in names], weights), ended


def _learn_anew(trainer: Trainer, trial: Trial) -> Trial:
    """The same candidate, learnt anew from all pairs: where they are few, each member would miss those that judged it.

    What was clearly and much better when it was stopped early stays as it is, since nobody would be left to say when to
    stop; and so does a trial that was cut short, or that leaves no time to do better.
    """
    judge, looks = trainer.family.judge, trial.looks()
    (score, _), (loss, error) = judge.mean(trial.scores()), judge.mean(trial.scores() - looks[-1])
    if trial.outcome.ended in ("interrupted", "diverged") or not loss <= max(error, -LITTLE * score):
        return trial
    nobody = (torch.full_like(rows, -1) for rows in (judge.folds.pairs, judge.folds.source, judge.folds.target))
    stage = Stage(
        "Learning from all labels",
        start=0.5 + 0.5 * trainer.final_part,
        end=1.0,
        seconds=trainer.clock.part(0.8),
    )
    (anew,) = trainer.run([trial.candidate], stage, folds=Folds(trial.n_folds, *nobody))
    is_worse = anew.outcome.ended == "diverged" or anew.outcome.steps[-1] < trial.best_step
    return replace(trial, outcome=replace(trial.outcome, ended=anew.outcome.ended)) if is_worse else anew


def _optimism(scores: Sequence[Tensor], judge: Judge) -> float:
    return stacking.optimism(torch.stack(list(scores)), judge.folds.pairs, judge.weight) if scores else 0.0


def _is_trained(trial: Trial) -> bool:
    """Whether it had time enough to be compared with."""
    return trial.outcome.ended not in ("out of time", "interrupted") or trial.outcome.steps[-1] >= LEAST_STEPS
