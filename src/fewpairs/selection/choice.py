"""Choice: which settings suit the data, judged by held-out pairs, and what the winners are worth.

The search goes over short trials: first the shapes of a plan, then the rungs of each knob next to the best candidate so far,
then the combinations. The best of them are trained in full, and the final plan mixes their members with a linear plan and the
best model that ignores x, in the shares that explain the held-out pairs best, as far as these are evidence at all. Every pair
is scored by a member that has not seen it, so all comparisons are of the same pairs.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fewpairs.selection.makers import FLOORS, Candidate, Maker, Trial
from fewpairs.training.loop import JointDealer

__all__ = ["LEAST_STEPS", "MANY_PAIRS", "MOST_OUTPUTS_FULL", "RUNGS", "Choice", "choose", "choose_together", "resume"]

Wishes = dict[str, tuple[Any, ...]]

# The rungs of each knob that the search may stand on, from rough to smooth.
RUNGS: Wishes = {
    "hidden": ((64, 64), (16, 16), ()),
    "covariance": ("full", "diagonal"),
    "unpaired_weight": (0.3, 1.0, 3.0, 10.0),
    "smoothing": (0.0, 0.05, 0.1, 0.2, 0.4, 0.8),
    "adversarial": (0.0, 0.15, 0.3),
    "variance_floor": FLOORS,
    "emphasis": (0.0, 1.0),
}
SHAPES = ("hidden", "covariance")  # knobs that say what a plan looks like: tried first
MOST_OUTPUTS_FULL = 16  # full atoms hold the square of it each: beyond, "auto" keeps to diagonal ones
MANY_PAIRS = 1000  # from here on "auto" tries the widest network too: fewer pairs cannot fill it

PAIRS_TO_SEARCH = 75  # held-out pairs that a short trial is judged by: more folds than it takes are not trained
SEARCH_PART = 0.3  # the steps of a short trial, as a part of a full one …
SEARCH_HASTE = 1.5  # … and how much longer each of them is
IGNORE_X_PAIRS = 2.0  # the model that ignores x gets the share of this many pairs beforehand: it bounds every loss
LOG_ODDS = -2.0  # beforehand, of the search's winner against ignoring x: of dozens of candidates one is lucky
RESUMED = 0.3  # the step size of training that goes on, as a part of that from the start
LEAST_STEPS = 100  # a rival that ran out of time before has not been given a chance
LEAST_SHARE = 0.03  # a final trial with less than this is left out of the mixture


@dataclass
class Choice:
    """What was chosen, and what it is worth. Scores and gains are in nats per pair, in standardised units.

    Attributes:
        plan: The final plan.
        finals: The trials in it, and their shares; the linear plan and the model that ignores x have the rest.
        linear_share: The share of the linear plan.
        table: Every candidate that was tried, its score and the standard error.
        score, unpaired_gain, x_gain: Each with its standard error.
        ended: "finished", "out of time", "interrupted" or "diverged".
    """

    plan: Any
    finals: list[tuple[Trial, float]]
    linear_share: float
    table: list[tuple[Candidate, float, float]]
    score: tuple[float, float]
    unpaired_gain: tuple[float, float]
    x_gain: tuple[float, float]
    ended: str


def choose(maker: Maker, wishes: Wishes, objective: str) -> Choice:
    """Searches, trains the winners in full and mixes them.

    Arguments:
        maker: Data, folds and the way to train.
        wishes: For each knob the values to choose from; one value fixes it.
        objective: "marginal", "inverse_eot" or "supervised"; the best supervised candidates are searched for in any case.
    """
    kinds = [objective] if objective == "supervised" else [objective, "supervised"]
    budget, has_folds = maker.clock.budget, bool((maker.folds.pairs >= 0).any())
    n_rounds = 0 if not has_folds else 3 if budget is None or budget >= 40 else 1 if budget >= 12 else 0
    finals: list[Candidate] = []
    trials: list[Trial] = []
    is_interrupted = False
    for number, kind in enumerate(kinds):
        if kind == "supervised" and number > 0 and not has_folds:
            break  # nothing is held out: there is nothing to compare with
        search = _Search(maker, maker.limits(wishes, kind), kind, trials, n_rounds)
        is_interrupted = search.run(0.5 * number / len(kinds), 0.5 / len(kinds), 0.3 if number == 0 else 0.15)
        finals += search.winners(2)
        if is_interrupted:
            break
    if is_interrupted:
        done = [max(_of_kind(trials, kind), key=_mean_of(maker)) for kind in kinds if _of_kind(trials, kind)]
        maker.folds = maker.folds.first(done[0].n_folds)  # short trials may not have used all of them
        return _settle(maker, done, trials, kinds, "interrupted")
    full = maker.run(
        finals,
        part=maker.trial_part,
        seconds=maker.clock.part(maker.final_part),
        title="Learning p(y|x)",
        progress=(0.5, 0.5 + 0.5 * maker.final_part),
    )
    ended = next((trial.outcome.ended for trial in full if trial.outcome.ended != "finished"), "finished")
    return _settle(maker, full, trials, kinds, ended)


def choose_together(makers: Sequence[Maker], wishes: Wishes, objective: str) -> list[Choice]:
    """Trains the only candidate there is for several data sets at once, each with its own maker."""
    if any(len(values) > 1 for values in wishes.values()) or any((maker.folds.pairs >= 0).any() for maker in makers):
        raise ValueError("Fits can be made together if they leave nothing to choose: give every knob, and n_folds=1.")
    limits = makers[0].limits(wishes, objective)
    candidate = Candidate(objective, **{knob: values[0] for knob, values in limits.items()})
    members = iter([maker.members(candidate, 1) for maker in makers])
    trials = makers[0].run(
        [candidate] * len(makers),
        seconds=makers[0].clock.part(0.97),
        title="Learning p(y|x)",
        progress=(0.0, 1.0),
        plans=lambda _: next(members),
        dealer=JointDealer([maker.dealer for maker in makers]),
    )
    return [
        _settle(maker, [trial], [], [objective], trial.outcome.ended)
        for maker, trial in zip(makers, trials, strict=True)
    ]


def resume(maker: Maker, candidates: Sequence[Candidate], members: Sequence[list[Any]]) -> Choice:
    """Goes on with candidates that were chosen before, from the members they have; where they have none, from the start."""
    dtype, of_candidate = maker.samples.source.dtype, dict(zip(candidates, members, strict=True))

    def plans(candidate: Candidate) -> list[Any]:
        known = [copy.deepcopy(plan).to(dtype).requires_grad_() for plan in of_candidate[candidate]]
        return known or maker.members(candidate, maker.folds.n_folds)

    trials = maker.run(
        candidates,
        haste=RESUMED,
        seconds=maker.clock.part(0.97),
        title="Learning p(y|x)",
        progress=(0.0, 1.0),
        plans=plans,
    )
    ended = next((trial.outcome.ended for trial in trials if trial.outcome.ended != "finished"), "finished")
    return _settle(maker, trials, [], list(dict.fromkeys(candidate.objective for candidate in candidates)), ended)


class _Search:
    """Short trials of one objective: shapes first, then the rungs around the best, then their combinations."""

    def __init__(self, maker: Maker, wishes: Wishes, objective: str, trials: list[Trial], n_rounds: int) -> None:
        self.maker, self.wishes, self.objective, self.trials, self.n_rounds = maker, wishes, objective, trials, n_rounds
        self.n_folds = maker.folds.enough_for(PAIRS_TO_SEARCH)
        begin = maker.begin()
        self.begin = Candidate(objective, **{knob: self._nearest(knob, begin[knob]) for knob in wishes})

    def run(self, progress: float, progress_part: float, time_part: float) -> bool:
        """Runs all rounds. Says whether it was interrupted."""
        rounds = (self._shapes, self._neighbours, self._combinations)[: self.n_rounds]
        is_free = any(len(rungs) > 1 for rungs in self.wishes.values())
        for number, propose in enumerate(rounds if is_free else ()):
            tried = {trial.candidate for trial in self._mine()}
            fresh = [candidate for candidate in dict.fromkeys(propose()) if candidate not in tried]
            if not fresh:
                continue
            low = progress + progress_part * number / len(rounds)
            new = self.maker.run(
                fresh,
                part=SEARCH_PART * self.maker.trial_part,
                haste=SEARCH_HASTE,
                seconds=self.maker.clock.part(time_part / (len(rounds) - number)),
                title="Choosing settings",
                progress=(low, low + progress_part / len(rounds)),
                folds=self.maker.folds.first(self.n_folds),
            )
            self.trials += new
            if any(trial.outcome.ended == "interrupted" for trial in new):
                return True
        return False

    def winners(self, n_shapes: int) -> list[Candidate]:
        """The best candidate of each of the best shapes; next to the very best, smoother ones and its twin with another emphasis.

        Short trials flatter rough candidates: they have no time to overfit. And whether to lean on the few pairs that are
        relevant is hard to say beforehand: the final mixture may do both.
        """
        winners: list[Candidate] = []
        left = self._mine()
        while left and len(winners) < n_shapes:
            best = _best(left, self.maker)
            winners.append(best.candidate)
            left = [trial for trial in left if trial.candidate.shape[:3] != best.candidate.shape[:3]]
        if not winners:
            return [self.begin]
        smoother = [
            replace(winners[0], **{knob: rung})
            for knob in ("unpaired_weight", "smoothing")
            for rung in self._next_rungs(winners[0], knob)[-1:]
            if rung > getattr(winners[0], knob)
        ]
        emphasised = [
            replace(winners[0], emphasis=rung) for rung in self.wishes["emphasis"] if rung != winners[0].emphasis
        ]
        return [*winners, *smoother, *emphasised]

    def _mine(self) -> list[Trial]:
        return _of_kind(self.trials, self.objective)

    def _nearest(self, knob: str, value: Any) -> Any:
        rungs = self.wishes[knob]
        if value in rungs or knob in SHAPES:
            return value if value in rungs else rungs[-1]
        return min(rungs, key=lambda rung: abs(rung - value))

    def _shapes(self) -> Iterable[Candidate]:
        knobs = [knob for knob in SHAPES if knob in self.wishes]
        for values in product(*(self.wishes[knob] for knob in knobs)):
            begin = replace(self.begin, **dict(zip(knobs, values, strict=True)))
            yield begin
            yield from (replace(begin, unpaired_weight=rung) for rung in self._next_rungs(begin, "unpaired_weight")[:1])
            narrow = self.maker.narrow(begin)
            rungs = {knob: self._nearest(knob, getattr(narrow, knob)) for knob in self.maker.ladders}
            yield replace(begin, **rungs)

    def _next_rungs(self, best: Candidate, knob: str) -> list[Any]:
        rungs = self.wishes[knob]
        place = rungs.index(getattr(best, knob))
        return [rungs[near] for near in (place - 1, place + 1) if 0 <= near < len(rungs)]

    def _neighbours(self) -> Iterable[Candidate]:
        best = _best(self._mine(), self.maker).candidate
        for knob in self.maker.ladders:
            yield from (replace(best, **{knob: rung}) for rung in self._next_rungs(best, knob))

    def _combinations(self) -> Iterable[Candidate]:
        """Every knob moved to its best rung at once, another step beyond for each, the adversarial direction, and an emphasis
        on pairs that are more relevant than others."""
        mine = _best_shape(self._mine(), self.maker)
        best = _best(mine, self.maker).candidate
        together = best
        for knob in self.maker.ladders:
            others = [name for name in self.maker.ladders if name != knob]
            by_rung: dict[Any, list[float]] = {}
            for trial in mine:
                n_same = sum(getattr(trial.candidate, name) == getattr(best, name) for name in others)
                if n_same >= min(len(others), 1):
                    by_rung.setdefault(getattr(trial.candidate, knob), []).append(_mean_of(self.maker)(trial))
            together = replace(together, **{knob: max(by_rung, key=lambda rung: max(by_rung[rung]))})
        yield together
        for knob in self.maker.ladders:
            yield from (replace(together, **{knob: rung}) for rung in self._next_rungs(together, knob))
        if len(self.wishes["adversarial"]) > 1 and self.objective == "marginal":
            yield replace(together, adversarial=self.wishes["adversarial"][1])
        yield from (replace(together, emphasis=rung) for rung in self.wishes["emphasis"])


def _of_kind(trials: Sequence[Trial], objective: str) -> list[Trial]:
    return [trial for trial in trials if trial.candidate.objective == objective]


def _mean_of(maker: Maker) -> Callable[[Trial], float]:
    return lambda trial: maker.mean(trial.scores())[0]


def _best(trials: Sequence[Trial], maker: Maker) -> Trial:
    """The trial with the best mean score; of those tied with it, the smoothest."""
    top = max(trials, key=_mean_of(maker))
    tied = []
    for trial in trials:
        loss, error = maker.mean(top.scores() - trial.scores())
        if trial is top or loss < maker.tie * error:
            tied.append(trial)
    return min(tied, key=lambda trial: maker.plainness(trial.candidate))


def _best_shape(trials: Sequence[Trial], maker: Maker) -> list[Trial]:
    shape = _best(trials, maker).candidate.shape[:3]
    return [trial for trial in trials if trial.candidate.shape[:3] == shape]


def _settle(maker: Maker, finals: list[Trial], trials: list[Trial], kinds: Sequence[str], ended: str) -> Choice:
    """Mixes the final trials and the model that ignores x, and says what the mixture is worth."""
    is_held_out = maker.folds.pairs >= 0
    if not is_held_out.any():
        nothing = (math.nan, math.nan)
        members = [plan.double() for plan in finals[0].plans()]
        plan = maker.ensemble(members, torch.full((len(members),), 1 / len(members), dtype=torch.float64))
        return Choice(plan, [(finals[0], 1.0)], 0.0, [], nothing, nothing, nothing, ended)
    ignore_x, ignored = maker.ignore_x()
    # Without unpaired rows is μ = 0, a candidate like any other; next to the paper's loss it is a yardstick and no more.
    yardsticks = [trial for trial in finals if kinds[0] == "inverse_eot" and trial.candidate.objective == "supervised"]
    mixed = [trial for trial in finals if trial not in yardsticks]
    linear = maker.linear()
    linear_scores = [linear[1]] if linear else []
    kept = torch.stack([*(trial.scores() for trial in mixed), *linear_scores, ignored])

    def score(some: Sequence[Trial]) -> tuple[float, Tensor]:
        """How far to trust a mixture of these and the linear plan, and the score of each pair."""
        looks = [*(trial.looks() for trial in some), *(scores.unsqueeze(0) for scores in linear_scores)]
        return _doubt(_crossfit(looks, ignored, maker), ignored, maker)

    trust, ours = score(mixed)
    shares = _shares(kept[:, is_held_out], maker.weight[is_held_out], maker.uncovered)
    shares[:-1] *= trust
    shares[:-1][shares[:-1] < LEAST_SHARE] = 0.0
    shares[-1] = 1 - shares[:-1].sum()

    # What ignores x was not searched for, and is not flattered.
    too_good = (1 - float(shares[-1])) * _flattery(_of_kind(trials, kinds[0]), maker)
    tell = partial(maker.mean, to_tell=True)
    (of_ours, error), x_gain, unpaired_gain = tell(ours), tell(ours - ignored), (0.0, 0.0)
    if len(kinds) > 1:
        rivals = [trial for trial in _of_kind(finals, "supervised") if _is_trained(trial)]
        unpaired_gain = math.nan, math.nan
        if rivals:
            unpaired_gain = tell(ours - score(rivals)[1])

    members, weights, linear_share = [ignore_x], [float(shares[-1])], float(shares[len(mixed) : -1].sum())
    if linear and linear_share > 0:
        members += linear[0]
        weights += [linear_share / len(linear[0])] * len(linear[0])
    for trial, share in zip(mixed, shares[: len(mixed)].tolist(), strict=True):
        if share > 0:
            finished = maker.finish(trial) if ended != "interrupted" else trial
            ended = ended if finished.outcome.ended == "finished" else finished.outcome.ended
            members += [plan.double() for plan in finished.plans()]
            weights += [share / trial.n_folds] * trial.n_folds
    return Choice(
        plan=maker.ensemble(members, torch.tensor(weights, dtype=torch.float64)),
        finals=[*zip(mixed, shares[: len(mixed)].tolist(), strict=True), *((trial, 0.0) for trial in yardsticks)],
        linear_share=linear_share,
        table=[(trial.candidate, *maker.mean(trial.scores())) for trial in [*trials, *finals]],
        score=(of_ours - too_good, error),
        unpaired_gain=unpaired_gain,
        x_gain=(x_gain[0] - too_good, x_gain[1]),
        ended=ended,
    )


def _is_trained(trial: Trial) -> bool:
    """Whether it had time enough to be compared with."""
    return trial.outcome.ended != "out of time" or trial.outcome.steps[-1] >= LEAST_STEPS


def _shares(log_probs: Tensor, weight: Tensor, uncovered: float = 0.0) -> Tensor:
    """The shares of models whose mixture makes the pairs most likely, found by expectation maximisation.

    Arguments:
        log_probs: log p(y|x) of each model, (models, pairs); the last model ignores x.
        weight: Of the pairs.
        uncovered: The part of the population that the pairs say nothing about. There all models but the last are taken to be
            worth nothing: the mixture is then no worse than the last on average, as far as pairs can tell, whatever is there.
    """
    prior = torch.zeros(len(log_probs), dtype=torch.float64)
    prior[-1] = IGNORE_X_PAIRS + float(weight.sum()) * uncovered / max(1 - uncovered, 1e-6)
    shares = torch.full((len(log_probs),), 1 / len(log_probs), dtype=torch.float64)
    for _ in range(200):
        owed = (log_probs + shares.clamp(min=1e-300).log().unsqueeze(1)).softmax(0)
        shares = (owed * weight).sum(1) + prior
        shares = shares / shares.sum()
    return shares


def _crossfit(of_models: Sequence[Tensor], ignored: Tensor, maker: Maker) -> Tensor:
    """log p(y|x) of each held-out pair under the mixture, with steps and shares that the pair's own fold did not choose.

    Arguments:
        of_models: The looks of each model, (looks, P).
        ignored: The scores of the model that ignores x, (P,).
        maker: Folds and weights.
    """
    fold, outcome = maker.folds.pairs, torch.full_like(ignored, math.nan)
    for number in range(maker.folds.n_folds):
        here, others = fold == number, (fold >= 0) & (fold != number)
        chosen = [looks[_argmax(looks[:, others], maker.weight[others])] for looks in of_models]
        log_probs = torch.stack([*chosen, ignored]).nan_to_num(nan=-1e9)  # a look that diverged
        shares = _shares(log_probs[:, others], maker.weight[others], maker.uncovered)
        outcome[here] = torch.logsumexp(log_probs[:, here] + shares.clamp(min=1e-300).log().unsqueeze(1), 0)
    return outcome


def _doubt(scores: Tensor, ignored: Tensor, maker: Maker) -> tuple[float, Tensor]:
    """How far to trust a mixture against the model that ignores x, and its scores with that much doubt in them.

    The trust is how probable the held-out pairs make the mixture, with `LOG_ODDS` beforehand; that in a pair's score comes
    from the other folds. A handful of pairs leaves doubt, however lucky they were; more of them hardly any, either way.
    (By how much the search flattered its winner is known too badly to be held against it: from 16 pairs it cost 1.3 nats.)
    """
    fold, doubted = maker.folds.pairs, scores.clone()
    evidence = maker.weight * (scores - ignored)
    for number in range(maker.folds.n_folds):
        here, others = fold == number, (fold >= 0) & (fold != number)
        odds = LOG_ODDS + evidence[others].sum()
        doubted[here] = torch.logaddexp(scores[here] + logsigmoid(odds), ignored[here] + logsigmoid(-odds))
    return float((LOG_ODDS + evidence[fold >= 0].sum()).sigmoid()), doubted


def _flattery(trials: Sequence[Trial], maker: Maker) -> float:
    """By how much the search flattered its winner: its score, less that of the winners that the other folds would pick."""
    if len(trials) < 2:
        return 0.0
    table = torch.stack([trial.scores() for trial in trials])
    fold, is_held_out = maker.folds.pairs, ~torch.isnan(table).any(0)
    honest = torch.full_like(table[0], math.nan)
    for number in range(trials[0].n_folds):
        here, others = is_held_out & (fold == number), is_held_out & (fold != number)
        honest[here] = table[_argmax(table[:, others], maker.weight[others]), here]
    winner = table[_argmax(table[:, is_held_out], maker.weight[is_held_out])]
    return max(maker.mean(winner)[0] - maker.mean(honest)[0], 0.0)


def _argmax(scores: Tensor, weight: Tensor) -> int:
    """The row with the best weighted mean; rows with holes are never best."""
    return int((scores * weight).sum(1).nan_to_num(nan=-math.inf).argmax())
