"""Conditional mixtures: p(y|x) of a mixture plan at given x's, as a torch distribution in the units of the user.

It is a mixture of M·N Gaussians, N atoms tilted by M slopes. It is kept as these factors, never as M·N means: everything
below costs rows × M × N numbers at most, and those only a block of rows at a time. A `ConditionalEnsemble` is a mixture of
such mixtures, and just as closed.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fewpairs.plans.costs import slope_cost
from fewpairs.plans.potentials import Atoms, log_mixture

__all__ = ["ConditionalEnsemble", "ConditionalMixture", "log_partition"]

BLOCK = 2**22  # entries of a (rows × M × N) array held at once: 32 MB in float64

# Halvings of the bracket of a quantile: 2^-45 of a bracket some tens of standard deviations wide is below 1e-11 of one.
N_HALVINGS = 45


def log_partition(log_v: Tensor, a: Tensor, atoms: Atoms) -> Tensor:
    """log Z = log Σ_mn v_m w_n exp(½ a_mᵀB_n a_m + b_nᵀa_m)."""
    log_tilts = atoms.log_tilts(a.reshape(-1, a.shape[-1])).reshape(log_v.shape)
    return torch.logsumexp(log_v + log_tilts, dim=-1)


class ConditionalMixture(Distribution):
    """Creates the mixture Σ_mn z_mn/Z N(b_n + B_n a_m, B_n), one for each row of slopes.

    Arguments:
        log_v: The log weights of the slopes, of shape (rows, M).
        a: The slopes, of shape (rows, M, D).
        atoms: The atoms of the potential.
        loc: The user's y is `loc + scale · y`, where y is what slopes and atoms speak of.
        scale: See `loc`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real_vector

    def __init__(self, log_v: Tensor, a: Tensor, atoms: Atoms, loc: Tensor, scale: Tensor) -> None:
        self.log_v, self.a, self.atoms, self.loc, self.scale = log_v, a, atoms, loc, scale
        super().__init__(batch_shape=log_v.shape[:1], event_shape=a.shape[-1:], validate_args=False)

    def log_weights(self) -> Tensor:
        """The normalised log weights log z_mn/Z of all rows at once, of shape (rows, M, N)."""
        log_z = self.log_v.unsqueeze(-1) + self.atoms.features(self.a) @ self.atoms.tilt_columns().mT
        return log_z - torch.logsumexp(log_z, dim=(-2, -1), keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(y|x) of y's of shape (..., rows, D)."""
        y = (value - self.loc) / self.scale
        log_z = log_partition(self.log_v, self.a, self.atoms)
        return log_mixture(self.atoms, y) - slope_cost(self.log_v, self.a, y) - log_z - self.scale.log().sum()

    def log_nearness(self, value: Tensor, distance: float) -> Tensor:
        """log of the mass near y's of shape (..., rows, D): each atom counts by exp(−r² / 2), r being the root mean square over
        all outputs of y less the atom's centre, in units of `distance`. It says where mass lies, and nothing of its shape."""
        y = ((value - self.loc) / self.scale).reshape(-1, *self.batch_shape, *self.event_shape)
        n_rows = self._rows_per_block(len(y))
        parts = zip(self._row_blocks(len(y)), y.split(n_rows, dim=1), strict=True)
        return torch.cat([part._log_nearness(some, distance) for part, some in parts], dim=1).reshape(value.shape[:-1])

    @torch.no_grad()
    def sample(
        self, sample_shape: torch.Size | list[int] | tuple[int, ...] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws y's of shape (*sample_shape, rows, D)."""
        shape = torch.Size(sample_shape)
        draws = [part._draw(shape.numel(), generator) for part in self._row_blocks(shape.numel())]
        y = torch.cat(draws, dim=1) * self.scale + self.loc
        return y.reshape(*shape, *self.batch_shape, *self.event_shape)

    @property
    def mean(self) -> Tensor:
        return torch.cat([part._mean() for part in self._row_blocks()]) * self.scale + self.loc

    @property
    def variance(self) -> Tensor:
        """The variance of each output, of shape (rows, D)."""
        return torch.cat([part._variance() for part in self._row_blocks()]) * self.scale**2

    def cdf(self, value: Tensor) -> Tensor:
        """P(output ≤ value) of each output on its own: y's of shape (..., rows, D) to probabilities of that shape."""
        y = (value - self.loc) / self.scale
        n_rows = self._rows_per_block()
        parts = zip(self._row_blocks(), y.split(n_rows, dim=-2), strict=True)
        return torch.cat([part._cdf(some) for part, some in parts], dim=-2)

    def icdf(self, value: Tensor) -> Tensor:
        """The quantiles of each output on its own: L levels to values of shape (L, rows, D)."""
        levels = value.reshape(-1).to(self.a)
        quantiles = torch.cat([part._icdf(levels) for part in self._row_blocks(len(levels))], dim=1)
        return quantiles * self.scale + self.loc

    def _at(self, rows: Tensor) -> "ConditionalMixture":
        """The same for some of the rows."""
        return ConditionalMixture(self.log_v[rows], self.a[rows], self.atoms, self.loc, self.scale)

    def _rows_per_block(self, n_draws: int = 1) -> int:
        n_atoms = len(self.atoms.b)
        return max(BLOCK // max(self.log_v.shape[-1] * n_atoms, n_draws * max(self.a.shape[-1], n_atoms)), 1)

    def _row_blocks(self, n_draws: int = 1) -> Iterator["ConditionalMixture"]:
        n_rows = self._rows_per_block(n_draws)
        for log_v, a in zip(self.log_v.split(n_rows), self.a.split(n_rows), strict=True):
            yield ConditionalMixture(log_v, a, self.atoms, self.loc, self.scale)

    def _draw(self, n_samples: int, generator: torch.Generator | None) -> Tensor:
        n_rows, n_atoms = len(self.log_v), len(self.atoms.b)
        shares = self.log_weights().flatten(1).exp().cumsum(-1)
        uniform = torch.rand((n_rows, n_samples), dtype=shares.dtype, device=shares.device, generator=generator)
        chosen = torch.searchsorted(shares, uniform * shares[:, -1:]).mT  # (n_samples, rows)
        slope, atom = chosen // n_atoms, chosen % n_atoms
        a = self.a[torch.arange(n_rows, device=self.a.device), slope]
        noise = torch.randn(a.shape, dtype=a.dtype, device=a.device, generator=generator)
        return self.atoms.tilted_mean(a, atom) + self.atoms.scale_noise(noise, atom)

    def _log_nearness(self, y: Tensor, distance: float) -> Tensor:
        weights = self.log_weights().exp()
        of_atom = weights.sum(1).clamp(min=torch.finfo(weights.dtype).tiny)  # (rows, N)
        centres = self.atoms.moved((weights.mT @ self.a) / of_atom.unsqueeze(-1))  # slopes of an atom: at their mean
        squares = torch.cdist(y.transpose(0, 1), centres).square() / (y.shape[-1] * distance**2)
        return (of_atom.log().unsqueeze(1) - squares / 2).logsumexp(-1).mT

    def _mean(self) -> Tensor:
        weights = self.log_weights().exp()
        return weights.sum(1) @ self.atoms.b + self.atoms.pooled_shift(weights.mT @ self.a)

    def _variance(self) -> Tensor:
        weights, mean = self.log_weights().exp(), self._mean()
        spread = [
            (weights * (self.atoms.tilted_means(self.a, output) - mean[:, output, None, None]) ** 2).sum((1, 2))
            for output in range(mean.shape[-1])
        ]
        return weights.sum(1) @ self.atoms.variances() + torch.stack(spread, dim=-1)

    def _cdf(self, y: Tensor) -> Tensor:
        marginals = self._marginal_cdfs()
        return torch.stack([cdf(y[..., output]) for output, (cdf, _, _) in enumerate(marginals)], dim=-1)

    def _icdf(self, levels: Tensor) -> Tensor:
        return torch.stack([_bisect(*marginal, levels) for marginal in self._marginal_cdfs()], dim=-1)

    def _marginal_cdfs(self) -> Iterator[tuple[Callable[[Tensor], Tensor], Tensor, Tensor]]:
        """For each output: its distribution function, and a bracket outside which it is 0 or 1 to 1e-15."""
        weights = self.log_weights().exp().flatten(1)
        for output in range(self.a.shape[-1]):
            means = self.atoms.tilted_means(self.a, output).flatten(1)
            stds = self.atoms.variances()[:, output].sqrt().repeat(self.a.shape[1])

            def cdf(y: Tensor, means: Tensor = means, stds: Tensor = stds) -> Tensor:
                return (weights * torch.special.ndtr((y.unsqueeze(-1) - means) / stds)).sum(-1)

            yield cdf, (means - 8 * stds).amin(-1), (means + 8 * stds).amax(-1)


class ConditionalEnsemble(Distribution):
    """Creates the mixture Σ_k share_k p_k(y|x) of conditional mixtures at the same rows.

    Arguments:
        members: The mixtures, in the same units, or ensembles of such.
        shares: Their weights, (members,); they sum to one.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real_vector

    def __init__(self, members: Sequence["ConditionalMixture | ConditionalEnsemble"], shares: Tensor) -> None:
        self.members, self.shares = list(members), shares
        super().__init__(members[0].batch_shape, members[0].event_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(y|x) of y's of shape (..., rows, D)."""
        return torch.logsumexp(self.log_probs(value) + self.shares.log(), dim=-1)

    def log_probs(self, value: Tensor) -> Tensor:
        """log p_k(y|x) of each member, (..., rows, members)."""
        return torch.stack([member.log_prob(value) for member in self.members], dim=-1)

    def log_nearness(self, value: Tensor, distance: float) -> Tensor:
        """See `ConditionalMixture.log_nearness`."""
        each = torch.stack([member.log_nearness(value, distance) for member in self.members], dim=-1)
        return torch.logsumexp(each + self.shares.log(), dim=-1)

    @torch.no_grad()
    def sample(
        self, sample_shape: torch.Size | list[int] | tuple[int, ...] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws y's of shape (*sample_shape, rows, D): every draw picks a member of its own."""
        shape = torch.Size(sample_shape)
        n_rows, device = self.batch_shape[0], self.shares.device
        uniform = torch.rand((shape.numel(), n_rows), dtype=self.shares.dtype, device=device, generator=generator)
        picked = torch.searchsorted(self.shares.cumsum(0), uniform).clamp(max=len(self.members) - 1)
        y = self.shares.new_empty((shape.numel(), n_rows, *self.event_shape))
        for number, member in enumerate(self.members):
            is_mine = picked == number
            rows = is_mine.any(0).nonzero().squeeze(1)
            if len(rows) == 0:
                continue
            order = is_mine[:, rows].cumsum(0) - 1  # the how-manieth draw of this member at its row
            draws = member._at(rows).sample((int(order.max()) + 1,), generator=generator)
            draw, column = is_mine[:, rows].nonzero(as_tuple=True)
            y[draw, rows[column]] = draws[order[draw, column], column]
        return y.reshape(*shape, n_rows, *self.event_shape)

    @property
    def mean(self) -> Tensor:
        return self._average([member.mean for member in self.members])

    @property
    def variance(self) -> Tensor:
        """The variance of each output, of shape (rows, D)."""
        mean = self.mean
        return self._average([member.variance + (member.mean - mean) ** 2 for member in self.members])

    def cdf(self, value: Tensor) -> Tensor:
        """P(output ≤ value) of each output on its own: y's of shape (..., rows, D) to probabilities of that shape."""
        return self._average([member.cdf(value) for member in self.members])

    def icdf(self, value: Tensor) -> Tensor:
        """The quantiles of each output on its own: L levels to values of shape (L, rows, D)."""
        levels = value.reshape(-1).to(self.shares)
        each = torch.stack([member.icdf(levels) for member in self.members])  # the answer lies between the members' own
        return _halve(lambda y: self.cdf(y) < levels.reshape(-1, 1, 1), each.amin(0), each.amax(0))

    def _at(self, rows: Tensor) -> "ConditionalEnsemble":
        """The same for some of the rows."""
        return ConditionalEnsemble([member._at(rows) for member in self.members], self.shares)

    def _average(self, values: Sequence[Tensor]) -> Tensor:
        return sum(
            (share * value for share, value in zip(self.shares, values, strict=True)), torch.zeros_like(values[0])
        )


def _bisect(cdf: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, levels: Tensor) -> Tensor:
    """Where cdf reaches each level: brackets of shape (rows,) to values of shape (levels, rows)."""
    return torch.stack([_halve(lambda y, level=level: cdf(y) < level, lower, upper) for level in levels])  # type: ignore[misc]


def _halve(is_below: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where `is_below` turns from true to false, between two ends."""
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        below = is_below(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
