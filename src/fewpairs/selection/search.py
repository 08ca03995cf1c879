"""The search: short trials of one objective. Architectures first, then the values next to the best, then their combinations."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import cast

from fewpairs.selection.candidates import Candidate, Options, Trial, Value
from fewpairs.selection.families.base import Family
from fewpairs.selection.trials import Stage, Trainer

__all__ = ["SettingsSearch", "best_of"]

ARCHITECTURE = ("hidden", "covariance")  # settings that say what a plan is made of: tried first
PAIRS_TO_SEARCH = 75  # held-out pairs that a short trial is judged by: more folds than it takes are not trained
SHORT = 0.3  # the steps of a short trial, as a part of a full one …
QUICK = 1.5  # … and how much longer each of them is


class SettingsSearch:
    """Creates a search for the settings that suit the data under one objective.

    Arguments:
        trainer: Trains candidates.
        options: For each setting the values to choose from.
        objective: The objective of all candidates.
        n_rounds: Of the three rounds, how many there is time for.
    """

    def __init__(self, trainer: Trainer, options: Options, objective: str, n_rounds: int) -> None:
        self.trainer, self.options, self.objective, self.n_rounds = trainer, options, objective, n_rounds
        self.family: Family = trainer.family
        self.n_folds = self.family.judge.folds.enough_for(PAIRS_TO_SEARCH)
        self.trials: list[Trial] = []
        begin = self.family.begin()
        self.begin = Candidate.of(objective, {name: self._nearest(name, begin[name]) for name in options})

    def run(self, start: float, end: float, time_part: float) -> bool:
        """Runs all rounds. Says whether it was interrupted.

        Arguments:
            start, end: The part of the whole fit that is done before and after.
            time_part: The part of the time left that it may take.
        """
        rounds = (self._architectures, self._neighbours, self._combinations)[: self.n_rounds]
        is_free = any(len(values) > 1 for values in self.options.values())
        for number, propose in enumerate(rounds if is_free else ()):
            tried = {trial.candidate for trial in self.trials}
            fresh = [candidate for candidate in dict.fromkeys(propose()) if candidate not in tried]
            if not fresh:
                continue
            here = start + (end - start) * number / len(rounds)
            stage = Stage(
                "Choosing settings",
                start=here,
                end=here + (end - start) / len(rounds),
                seconds=self.trainer.clock.part(time_part / (len(rounds) - number)),
                steps=SHORT * self.trainer.trial_part,
                rate=QUICK,
            )
            new = self.trainer.run(fresh, stage, folds=self.family.judge.folds.first(self.n_folds))
            self.trials += new
            if any(trial.outcome.ended == "interrupted" for trial in new):
                return True
        return False

    def winners(self, n_architectures: int) -> list[Candidate]:
        """The best candidate of each of the best architectures; next to the very best, smoother ones and its twin with another
        emphasis.

        Short trials flatter rough candidates: they have no time to overfit. And whether to lean on the few pairs that are
        relevant is hard to say beforehand: the final mixture may do both.
        """
        winners: list[Candidate] = []
        left = self.trials
        while left and len(winners) < n_architectures:
            best = best_of(left, self.family).candidate
            winners.append(best)
            left = [trial for trial in left if trial.candidate.architecture != best.architecture]
        if not winners:
            return [self.begin]
        smoother = [
            winners[0].moved({name: value})
            for name in ("unpaired_weight", "smoothing")
            for value in self._next_to(winners[0], name)[-1:]
            if value > getattr(winners[0], name)
        ]
        emphasised = [
            winners[0].moved({"emphasis": value}) for value in self.options["emphasis"] if value != winners[0].emphasis
        ]
        return [*winners, *smoother, *emphasised]

    def _nearest(self, name: str, value: Value) -> Value:
        values = self.options[name]
        if value in values or name in ARCHITECTURE:
            return value if value in values else values[-1]
        return min(values, key=lambda other: abs(cast(float, other) - cast(float, value)))

    def _next_to(self, candidate: Candidate, name: str) -> list[Value]:
        values = self.options[name]
        place = values.index(getattr(candidate, name))
        return [values[near] for near in (place - 1, place + 1) if 0 <= near < len(values)]

    def _steps_from(self, candidate: Candidate) -> Iterable[Candidate]:
        """The candidates one step away on the grid."""
        for name in self.family.grid:
            yield from (candidate.moved({name: value}) for value in self._next_to(candidate, name))

    def _architectures(self) -> Iterable[Candidate]:
        names = [name for name in ARCHITECTURE if name in self.options]
        for values in product(*(self.options[name] for name in names)):
            begin = self.begin.moved(dict(zip(names, values, strict=True)))
            yield begin
            yield from (begin.moved({"unpaired_weight": less}) for less in self._next_to(begin, "unpaired_weight")[:1])
            narrow = self.family.narrow(begin)
            yield begin.moved({name: self._nearest(name, getattr(narrow, name)) for name in self.family.grid})

    def _neighbours(self) -> Iterable[Candidate]:
        return self._steps_from(best_of(self.trials, self.family).candidate)

    def _combinations(self) -> Iterable[Candidate]:
        """Every setting moved to its best value at once, another step beyond for each, the adversarial direction, and an emphasis
        on pairs that are more relevant than others."""
        best = best_of(self.trials, self.family).candidate
        together = best
        for name in self.family.grid:
            together = together.moved({name: self._best_value(name, best)})
        yield together
        yield from self._steps_from(together)
        if len(self.options["adversarial"]) > 1 and self.objective == "marginal":
            yield together.moved({"adversarial": self.options["adversarial"][1]})
        yield from (together.moved({"emphasis": value}) for value in self.options["emphasis"])

    def _best_value(self, name: str, best: Candidate) -> Value:
        """The value that did best in any candidate that is like the best one in at least one other setting of the grid."""
        others = [other for other in self.family.grid if other != name]
        by_value: dict[Value, list[float]] = {}
        for trial in self.trials:
            n_same = sum(getattr(trial.candidate, other) == getattr(best, other) for other in others)
            if trial.candidate.architecture == best.architecture and n_same >= min(len(others), 1):
                by_value.setdefault(getattr(trial.candidate, name), []).append(score_of(self.family)(trial))
        return max(by_value, key=lambda value: max(by_value[value]))


def score_of(family: Family) -> Callable[[Trial], float]:
    """What a trial scores, by the family's judge."""
    return lambda trial: family.judge.mean(trial.scores())[0]


def best_of(trials: Sequence[Trial], family: Family) -> Trial:
    """The trial with the best mean score; of those tied with it, the smoothest."""
    top = max(trials, key=score_of(family))
    tied = []
    for trial in trials:
        loss, error = family.judge.mean(top.scores() - trial.scores())
        if trial is top or loss < family.tie * error:
            tied.append(trial)
    return min(tied, key=lambda trial: family.roughness(trial.candidate))
