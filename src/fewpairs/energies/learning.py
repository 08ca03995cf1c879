"""How energies are learnt: two *lessons*, each with minibatches, a step, and a judgement of held-out pairs for `loops.Loop`.

`Contrast` is the paper's algorithm (EBiEOT-NN). The gradient of log Z(x) is that of −u at y's drawn from the plan, the
*negatives*; Langevin chains draw them. The value of its loss means nothing; only its gradient does. The paper's loss lowers the
cost at few pairs and raises it at many negatives, and has no lower bound. "transport" keeps negatives from the cost: it becomes
what fits the pairs best under a flat potential (a map by least squares), and the potential solves entropic transport under it,
which is convex in f.

`Correction` improves a base whose density is known. Draws of the base give log Z(x), so that the likelihood of pairs and the
bounded, marginal one of unpaired rows can be had. A pair meets a base that has not seen it: else there would be nothing to
correct.
"""

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fewpairs.data.samples import Samples
from fewpairs.energies.energy import CorrectedPlan, Energy, at_rest
from fewpairs.energies.samplers import LEAST_STEP_SIZE, Chains, Langevin, ReplayBuffer
from fewpairs.plans.mixture import EnsemblePlan
from fewpairs.training.cuda_graphs import Recorder
from fewpairs.training.loops import Hand, deal, energy_scores

__all__ = ["Contrast", "Correction", "Optimizer", "draw_afresh", "draw_negatives"]

MOST_TO_JUDGE = 128  # held-out pairs that are looked at with chains
CHAINS_TO_JUDGE = 8  # at each of them
N_AVERAGED = 20  # steps: one minibatch says little about the gap between data and negatives
MOST_TO_CORRECT = 2000  # and with draws of a base
ROWS_TO_JUDGE = 250  # of them at once: their draws fill no cache
LEAST_TO_JUDGE = 5  # held-out pairs, for a correction to be kept
DRAWS_OF_BASE_TO_JUDGE = 128
ANCHOR = 0.1  # of log² Z(x): u has a free number for each x, and would else wander off to where its bound flattens it
LOOK_AHEAD = 16  # steps for which a base draws at once
DRIFTING = 20.0  # nats: a gap this wide between data and negatives is no longer about the data


@dataclass(kw_only=True)
class Optimizer:
    """Adam for cost and potential, each with a step size of its own.

    Attributes:
        learning_rate: That of the cost.
        potential_learning_rate: That of the potential.
        betas: Adam's.
        max_grad_norm: Longer gradients are shortened to it; None leaves them.
        one_cycle: The steps over which the step size rises and falls once; None keeps it.
        seconds: The time in which it does so, if that ends before the steps do; None is no bound.
    """

    learning_rate: float
    potential_learning_rate: float
    betas: tuple[float, float]
    max_grad_norm: float | None
    one_cycle: int | None = None
    seconds: float | None = None

    def start(self, energy: Energy) -> Callable[[Tensor], None]:
        """A function that takes one step down the gradient of a loss."""
        groups = [
            {"params": list(energy.cost.parameters()), "lr": self.learning_rate},
            {"params": list(energy.potential.parameters()), "lr": self.potential_learning_rate},
        ]
        optimizer = torch.optim.Adam([group for group in groups if group["params"]], betas=self.betas)
        schedule, began = None, time.perf_counter()
        if self.one_cycle is not None:
            peaks = [group["lr"] for group in optimizer.param_groups]
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, peaks, total_steps=self.one_cycle, cycle_momentum=False
            )

        def descend(loss: Tensor) -> None:
            optimizer.zero_grad()
            loss.backward()
            if self.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(energy.parameters(), self.max_grad_norm)
            optimizer.step()
            if schedule is not None:
                if self.seconds is not None and self.one_cycle is not None:
                    reached = self.one_cycle * (time.perf_counter() - began) / max(self.seconds, 1e-9)
                    schedule.last_epoch = int(min(max(schedule.last_epoch, reached), self.one_cycle - 1))
                schedule.step()

        return descend


def draw_negatives(
    energy: Energy,
    x: Tensor,
    sampler: Langevin,
    start: Tensor,
    generator: torch.Generator | None = None,
    recorder: Recorder | None = None,
) -> Chains:
    """Runs a chain for each x, or as many for each as there are times its rows in `start`, one x after the other every time;
    torch's own generator draws if none is given."""
    with at_rest(energy):
        with torch.no_grad():
            known = energy.prepare(x)
        if len(start) > len(x):
            known = known.repeat(len(start) // len(x), *[1] * (known.ndim - 1))
        return sampler.run(energy.prepared, start, generator, given=(known,), recorder=recorder)


def draw_afresh(
    energy: Energy,
    x: Tensor,
    n_draws: int,
    dim_y: int,
    sampler: Langevin,
    start_std: float,
    generator: torch.Generator | None = None,
    recorder: Recorder | None = None,
) -> Tensor:
    """y's for each x, (n_draws, rows, dim_y), by chains that begin at random places."""
    start = start_std * torch.randn(n_draws * len(x), dim_y, generator=generator, dtype=x.dtype, device=x.device)
    return draw_negatives(energy, x, sampler, start, generator, recorder).y.unflatten(0, (n_draws, len(x)))


@dataclass(kw_only=True)
class Contrast:
    """The paper's algorithm: the energy of data goes down, that of the plan's own draws goes up.

    Attributes:
        energy: What is learnt.
        samples: What it is learnt from, held-out pairs excluded.
        x_judge, y_judge: The held-out pairs.
        objective: "inverse_eot", the paper's; "supervised" knows pairs alone; under "transport" pairs teach the cost, and source
            and target the potential.
        sampler: The dynamics of the chains.
        sampling_steps: The steps of a chain that judges: it begins afresh, while those that teach go on.
        start_std: The spread of the y's at which chains begin.
        replay: The chance that a chain goes on from where it was.
        buffer_size: The x's whose chains are remembered.
        smoothing: The noise added to x in training.
        energy_penalty: The weight of the mean square of all energies.
    """

    energy: Energy
    samples: Samples
    x_judge: Tensor
    y_judge: Tensor
    objective: str
    sampler: Langevin
    sampling_steps: int
    start_std: float
    replay: float
    buffer_size: int
    smoothing: float
    energy_penalty: float
    batch_size: int
    optimizer: Optimizer

    def __post_init__(self) -> None:
        self._descend = self.optimizer.start(self.energy)
        self._recorder = Recorder()
        self._buffer = ReplayBuffer(self.buffer_size, self.samples.target[0])
        self._gaps: deque[Tensor] = deque(maxlen=N_AVERAGED)
        self.x_judge, self.y_judge = self.x_judge[:MOST_TO_JUDGE], self.y_judge[:MOST_TO_JUDGE]

    @property
    def look_cost(self) -> float:
        """What a look at the held-out pairs costs, in steps of training: both are moves of chains, and little else."""
        in_a_step = min(self.batch_size, len(self._source())) * self.sampler.n_steps
        return len(self.x_judge) * CHAINS_TO_JUDGE * self.sampling_steps / in_a_step

    def batches(self) -> Iterator[Hand]:
        return deal(replace(self.samples, source=self._source(), source_weight=None), self.batch_size)  # type: ignore[arg-type]

    def _source(self) -> Tensor:
        """The x's at which chains run."""
        return self.samples.pairs_x if self.objective == "supervised" else self.samples.source

    def step(self, hand: Hand) -> Mapping[str, Tensor]:
        x_pairs, x = (rows + self.smoothing * torch.randn_like(rows) for rows in (hand.pairs_x, hand.source))
        fresh = self.start_std * torch.randn(len(x), hand.target.shape[1], dtype=x.dtype, device=x.device)
        start = self._buffer.start(hand.numbers, fresh, share=self.replay)
        chains = draw_negatives(self.energy, x, self.sampler, start, recorder=self._recorder)
        self.sampler = self.sampler.after(chains)
        self._buffer.keep(hand.numbers, chains.y)
        of_data, of_negatives = self.energy(x_pairs, hand.pairs_y), self.energy(x, chains.y)
        kept_small = [of_data, of_negatives]
        if self.objective == "supervised":
            surrogate = of_data.mean() - of_negatives.mean()
        else:
            costs, potentials = self.energy.costs(x_pairs, hand.pairs_y), self.energy.potentials(hand.target)
            surrogate = costs.mean() - potentials.mean()
            if self.objective == "transport":  # no negative teaches the cost
                of_chains = self.energy.potentials(chains.y)
                surrogate, kept_small = surrogate + of_chains.mean(), [potentials, of_chains]
            else:
                surrogate = surrogate - of_negatives.mean()
        penalty = sum(energies.square().mean() for energies in kept_small)
        self._descend(surrogate + self.energy_penalty * penalty)
        self._gaps.append((of_negatives.mean() - of_data.mean()).detach())
        return {
            "surrogate": surrogate.detach(),
            "energy_gap": torch.stack(list(self._gaps)).mean(),
            "acceptance": torch.tensor(chains.acceptance),
            "step_size": torch.tensor(chains.step_size),
        }

    def judge(self) -> float:
        """The mean energy score E|Y − y| − ½ E|Y − Y′| of held-out pairs, which needs no Z; NaN without any. Infinite once the
        chains' steps have shrunk to nothing: the energy is then so steep that nothing moves."""
        if self.sampler.target is not None and self.sampler.step_size < 2 * LEAST_STEP_SIZE:
            return math.inf
        if len(self.x_judge) == 0:
            return math.nan
        score = float(energy_scores(self.draw(self.x_judge, CHAINS_TO_JUDGE), self.y_judge).mean())
        return score if math.isfinite(score) else math.inf

    def draw(self, x: Tensor, n_draws: int) -> Tensor:
        """y's for each x, (n_draws, rows, dim_y), from the start."""
        sampler, dim_y = replace(self.sampler, n_steps=self.sampling_steps), self.samples.target.shape[1]
        return draw_afresh(self.energy, x, n_draws, dim_y, sampler, self.start_std, recorder=self._recorder)

    def buffer_age(self) -> float:
        """The steps since the chain of an x in the buffer was last run, on average."""
        return self._buffer.age()


class Task(NamedTuple):
    """What a step of a correction needs: a minibatch with pairs of one fold, and draws of the fold's base.

    Attributes:
        draws_of_pairs: At the pairs' x's, (n, pairs, dim_y).
        draws: At the source's, (n, rows, dim_y); none if nobody asks.
    """

    fold: int
    hand: Hand
    x_pairs: Tensor
    x: Tensor
    draws_of_pairs: Tensor
    draws: Tensor


@dataclass(kw_only=True)
class Correction:
    """Improves a base: by the likelihood of pairs, and by the bounded one of unpaired rows.

    Attributes:
        energy: What is learnt.
        samples: Pairs with the folds they are in below; source and target.
        folds: The fold of each pair, (P,). The pairs of fold 0 judge and do not teach.
        bases: For each fold a base that has not seen its pairs.
        objective: "marginal" or "supervised".
        unpaired_weight: The weight of the unpaired rows under "marginal".
        n_draws: The draws of the base at each x of a step.
        smoothing: The noise added to the x that networks see in training.
    """

    energy: Energy
    samples: Samples
    folds: Tensor
    bases: Sequence[EnsemblePlan]
    objective: str
    unpaired_weight: float
    n_draws: int
    smoothing: float
    batch_size: int
    optimizer: Optimizer

    def __post_init__(self) -> None:
        self._descend = self.optimizer.start(self.energy)
        here = self.folds == 0
        self._x, self._y = (rows[here][:MOST_TO_CORRECT] for rows in (self.samples.pairs_x, self.samples.pairs_y))
        if len(self._x):
            with torch.no_grad():
                draws = self.bases[0].conditional(self._x).sample((DRAWS_OF_BASE_TO_JUDGE,))
            size = ROWS_TO_JUDGE
            self._judges = self._x.split(size), self._y.split(size), draws.split(size, dim=1)

    def batches(self) -> Iterator["Task"]:
        """Minibatches, each with pairs of one fold and draws of its base."""
        parts: dict[int, Iterator[Hand]] = {}
        source, target = (self._without_judges(rows) for rows in (self.samples.source, self.samples.target))
        for fold in range(1, len(self.bases)):
            here = self.folds == fold
            if bool(here.any()):
                pairs = Samples(self.samples.pairs_x[here], self.samples.pairs_y[here], source, target)
                parts[fold] = deal(pairs, self.batch_size)
        ahead: dict[int, list[Task]] = {fold: [] for fold in parts}
        for fold in itertools.cycle(parts):
            if not ahead[fold]:
                ahead[fold] = self._prepare(fold, [next(parts[fold]) for _ in range(LOOK_AHEAD)])
            yield ahead[fold].pop()

    def _prepare(self, fold: int, hands: list[Hand]) -> list["Task"]:
        """What some steps need; their bases draw for all of them at once, which takes as long as for one."""
        each = [len(hand.pairs_x) for hand in hands], [len(hand.source) for hand in hands]
        x_pairs, x = (torch.cat([getattr(hand, name) for hand in hands]) for name in ("pairs_x", "source"))
        with torch.no_grad():
            draws = self.bases[fold].conditional(x_pairs).sample((self.n_draws,))
            more = draws[:, :0]
            if self.objective == "marginal":
                more = self.bases[fold].conditional(x).sample((self.n_draws,))
        parts = x_pairs.split(each[0]), x.split(each[1]), draws.split(each[0], dim=1)
        others = more.split(each[1], dim=1) if self.objective == "marginal" else [more] * len(hands)
        return [Task(fold, *task) for task in zip(hands, *parts, others, strict=True)]

    def _without_judges(self, rows: Tensor) -> Tensor:
        """Source or target without the points of the pairs that judge; the pairs' own points lie in front of the others."""
        stays = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        stays[: len(self.folds)] = self.folds != 0
        return rows[stays]

    def step(self, task: "Task") -> Mapping[str, Tensor]:
        plan = CorrectedPlan(self.bases[task.fold], self.energy)
        of_pairs, of_source = (self.smoothing * torch.randn_like(rows) for rows in (task.x_pairs, task.x))
        energy, log_partition = plan.weigh(task.x_pairs, task.hand.pairs_y, task.draws_of_pairs, of_pairs)
        # The base's own density of the pairs is left out: no step changes it.
        loss = (energy + log_partition + ANCHOR * log_partition.square()).mean()
        if self.objective == "marginal":
            loss = (
                loss - self.unpaired_weight * plan.log_marginal(task.hand.target, task.x, task.draws, of_source).mean()
            )
        self._descend(loss)
        return {"loss": loss.detach()}

    def gains(self) -> Tensor:
        """What the correction brings to the log-likelihood of each held-out pair."""
        plan = CorrectedPlan(self.bases[0], self.energy)
        with torch.no_grad():
            found = [plan.weigh(*some) for some in zip(*self._judges, strict=True)]
        return -torch.cat([energy + log_partition for energy, log_partition in found])

    def judge(self) -> float:
        """Minus the mean gain; NaN without held-out pairs."""
        if len(self._x) == 0:
            return math.nan
        score = -float(self.gains().mean())
        return score if math.isfinite(score) else math.inf

    def weigh(self, strengths: Sequence[float]) -> tuple[float, float, float]:
        """How much of the correction to keep, and what that brings to held-out pairs, with a standard error.

        All of it if nothing is held out; none of it if too few pairs judge, or if the best part does not bring two standard
        errors: a choice among looks and parts finds more than one by chance.
        """
        if len(self._x) < LEAST_TO_JUDGE:
            return (0.0 if len(self._x) else 1.0), math.nan, math.nan
        found = []
        for strength in strengths:
            self.energy.strength.fill_(strength)
            gains = self.gains().double()
            found.append((float(gains.mean()), float(gains.std()) / math.sqrt(len(gains)), strength))
        self.energy.strength.fill_(1.0)
        gain, error, strength = max(found)
        return (strength if gain > 2 * error else 0.0), gain, error
