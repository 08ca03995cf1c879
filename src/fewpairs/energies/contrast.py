"""Contrast: the paper's algorithm (EBiEOT-NN). The energy of data goes down, that of the plan's own draws goes up.

The gradient of log Z(x) is that of −u at y's drawn from the plan, the *negatives*; Langevin chains draw them. The value of the
loss means nothing; only its gradient does. The paper's loss lowers the cost at few pairs and raises it at many negatives, and has
no lower bound. "transport" keeps negatives from the cost: it becomes what fits the pairs best under a flat potential (a map by
least squares), and the potential solves entropic transport under it, which is convex in f.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewpairs.data.samples import Samples
from fewpairs.energies.descent import Adam, Descent, EnergyLearner
from fewpairs.energies.energy import Energy, at_rest
from fewpairs.energies.samplers import LEAST_STEP_SIZE, Chains, Langevin, ReplayBuffer
from fewpairs.training.batches import Hand, minibatches
from fewpairs.training.cuda_graphs import Recorder
from fewpairs.training.learners import energy_scores

__all__ = ["DRIFTING", "Contrast", "draw_afresh", "draw_negatives"]

MOST_TO_JUDGE = 128  # held-out pairs that are looked at with chains
CHAINS_TO_JUDGE = 8  # at each of them
N_AVERAGED = 20  # steps: one minibatch says little about the gap between data and negatives
DRIFTING = 20.0  # nats: a gap this wide between data and negatives is no longer about the data


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
class Contrast(EnergyLearner[Hand]):
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
    adam: Adam

    def __post_init__(self) -> None:
        super().__init__(self.energy, self._batches())
        self.descent = Descent(self.energy, self.adam)
        self._recorder = Recorder()
        self._buffer = ReplayBuffer(self.buffer_size, self.samples.target[0])
        self._gaps: deque[Tensor] = deque(maxlen=N_AVERAGED)
        self.x_judge, self.y_judge = self.x_judge[:MOST_TO_JUDGE], self.y_judge[:MOST_TO_JUDGE]

    @property
    def look_cost(self) -> float:
        """What a look at the held-out pairs costs, in steps of training: both are moves of chains, and little else."""
        in_a_step = min(self.batch_size, len(self._source())) * self.sampler.n_steps
        return len(self.x_judge) * CHAINS_TO_JUDGE * self.sampling_steps / in_a_step

    def _batches(self) -> Iterator[Hand]:
        return minibatches(replace(self.samples, source=self._source(), source_weight=None), self.batch_size)  # type: ignore[arg-type]

    def _source(self) -> Tensor:
        """The x's at which chains run."""
        return self.samples.pairs_x if self.objective == "supervised" else self.samples.source

    def _learn(self, hand: Hand) -> Mapping[str, Tensor]:
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
        self.descent.step(surrogate + self.energy_penalty * penalty)
        self._gaps.append((of_negatives.mean() - of_data.mean()).detach())
        return {
            "surrogate": surrogate.detach(),
            "energy_gap": torch.stack(list(self._gaps)).mean(),
            "acceptance": torch.tensor(chains.acceptance),
            "step_size": torch.tensor(chains.step_size),
        }

    def is_lost(self) -> bool:
        """Also once the chains' steps have shrunk to nothing: the energy is then so steep that nothing moves."""
        has_stopped = self.sampler.target is not None and self.sampler.step_size < 2 * LEAST_STEP_SIZE
        return has_stopped or super().is_lost()

    def judge(self) -> Tensor:
        """Minus the energy score E|Y − y| − ½ E|Y − Y′| of each held-out pair, which needs no Z, (1, pairs)."""
        if len(self.x_judge) == 0:
            return torch.zeros(1, 0)
        scores = energy_scores(self.draw(self.x_judge, CHAINS_TO_JUDGE), self.y_judge)
        return -scores.nan_to_num(nan=math.inf, posinf=math.inf).unsqueeze(0)

    def draw(self, x: Tensor, n_draws: int) -> Tensor:
        """y's for each x, (n_draws, rows, dim_y), from the start."""
        sampler, dim_y = replace(self.sampler, n_steps=self.sampling_steps), self.samples.target.shape[1]
        return draw_afresh(self.energy, x, n_draws, dim_y, sampler, self.start_std, recorder=self._recorder)

    def buffer_age(self) -> float:
        """The steps since the chain of an x in the buffer was last run, on average."""
        return self._buffer.age()
