"""Potentials f(y): where the y's are, whatever x is.

The mixture potential is f(y) = log Σ_n w_n N(y | b_n, B_n). Its N Gaussians are the *atoms*. An atom meets a vector u
only through linear and quadratic terms of u, so with features φ(u) = [quadratic(u), u, 1] both

    log w_n + ½ aᵀB_n a + b_nᵀa   (an atom tilted by a slope a)      and      log w_n N(y | b_n, B_n)

are inner products of φ with one column per atom. Diagonal and full covariances differ in `quadratic` alone.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fewpairs.plans.plan import Potential
from fewpairs.plans.products import logsumexp_product, logsumexp_quadratic, with_one

__all__ = ["ATOMS", "DiagonalAtoms", "FullAtoms", "MixturePotential", "log_mixture"]


class DiagonalAtoms(NamedTuple):
    """N Gaussians with diagonal covariances: weights (N,), means (N, D) and variances (N, D)."""

    log_w: Tensor
    b: Tensor
    B: Tensor

    @staticmethod
    def sklearn_name() -> str:
        """What GaussianMixture calls this kind."""
        return "diag"

    @staticmethod
    def n_raw(dim_y: int) -> tuple[int, ...]:
        return (dim_y,)

    @staticmethod
    def from_variances(variances: Tensor) -> Tensor:
        """Covariances of this kind that have these variances and no correlations."""
        return variances

    @staticmethod
    def covariance(raw: Tensor, floor: Tensor) -> Tensor:
        """Free parameters → variances that never fall below the floor."""
        return raw.exp() + floor

    @staticmethod
    def raw(B: Tensor, floor: float) -> Tensor:
        """Variances → free parameters; a variance below the floor ends up just above it."""
        return (B - floor).clamp(min=max(1e-3 * floor, torch.finfo(B.dtype).tiny)).log()

    @staticmethod
    def features(u: Tensor) -> Tensor:
        return with_one(torch.cat([u * u, u], dim=-1))

    def tilt_columns(self) -> Tensor:
        return torch.cat([self.B / 2, self.b, self.log_w.unsqueeze(-1)], dim=-1)

    def log_tilts(self, rows: Tensor) -> Tensor:
        """log Σ_n w_n exp(½ aᵀB_n a + b_nᵀa) for every row a."""
        return logsumexp_product(rows, self.tilt_columns(), self.features)

    def log_density(self, rows: Tensor) -> Tensor:
        """log Σ_n w_n N(y | b_n, B_n) for every row y."""
        return logsumexp_product(rows, self.density_columns(), self.features)

    def density_columns(self) -> Tensor:
        constant = self.log_w - ((self.b**2 / self.B) + self.B.log() + math.log(2 * math.pi)).sum(-1) / 2
        return torch.cat([-0.5 / self.B, self.b / self.B, constant.unsqueeze(-1)], dim=-1)

    def variances(self) -> Tensor:
        """The variance of each output, (N, D)."""
        return self.B

    def tilted_means(self, a: Tensor, output: int) -> Tensor:
        """One output of b_n + B_n a_m for all slopes and atoms: (..., M, D) → (..., M, N)."""
        return self.b[:, output] + a[..., output, None] * self.B[:, output]

    def tilted_mean(self, a: Tensor, atom: Tensor) -> Tensor:
        """b_n + B_n a for one chosen atom each: (..., D), (...) → (..., D)."""
        return self.b[atom] + self.B[atom] * a

    def moved(self, a: Tensor) -> Tensor:
        """b_n + B_n a_n, every atom with a slope of its own: (..., N, D) → (..., N, D)."""
        return self.b + self.B * a

    def pooled_shift(self, pooled: Tensor) -> Tensor:
        """Σ_n B_n s_n, where s_n is the weighted sum of slopes at atom n: (..., N, D) → (..., D)."""
        return (pooled * self.B).sum(dim=-2)

    def scale_noise(self, noise: Tensor, atom: Tensor) -> Tensor:
        """B_n^½ times standard noise: (..., D), (...) → (..., D)."""
        return noise * self.B.sqrt()[atom]


class FullAtoms(NamedTuple):
    """N Gaussians with full covariances: weights (N,), means (N, D) and covariances (N, D, D)."""

    log_w: Tensor
    b: Tensor
    B: Tensor

    @staticmethod
    def sklearn_name() -> str:
        return "full"

    @staticmethod
    def n_raw(dim_y: int) -> tuple[int, ...]:
        return (dim_y, dim_y)

    @staticmethod
    def from_variances(variances: Tensor) -> Tensor:
        return torch.diag_embed(variances)

    @staticmethod
    def covariance(raw: Tensor, floor: Tensor) -> Tensor:
        """Free parameters → L Lᵀ + floor · I, where L has the exponentials of raw's diagonal on its own."""
        L = raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())
        return L @ L.mT + floor * torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)

    @staticmethod
    def raw(B: Tensor, floor: float) -> Tensor:
        """Covariances → free parameters; directions below the floor end up just above it."""
        values, vectors = torch.linalg.eigh(B)
        least = max(1e-3 * floor, 1e2 * torch.finfo(B.dtype).eps * float(values.max()))
        L = torch.linalg.cholesky((vectors * (values - floor).clamp(min=least).unsqueeze(-2)) @ vectors.mT)
        return L.tril(-1) + torch.diag_embed(L.diagonal(dim1=-2, dim2=-1).log())

    @staticmethod
    def features(u: Tensor) -> Tensor:
        # All products, each u_i u_j twice: picking the upper triangle would halve them, but its gradient is a scatter.
        products = (u.unsqueeze(-1) * u.unsqueeze(-2)).flatten(-2)
        return with_one(torch.cat([products, u], dim=-1))

    def tilt_columns(self) -> Tensor:
        return torch.cat([self.B.flatten(-2) / 2, self.b, self.log_w.unsqueeze(-1)], dim=-1)

    def log_tilts(self, rows: Tensor) -> Tensor:
        if self._are_few():
            return logsumexp_quadratic(rows, self.B, self.b, self.log_w)
        return logsumexp_product(rows, self.tilt_columns(), self.features)

    def log_density(self, rows: Tensor) -> Tensor:
        precision, natural_mean, constant = self._natural()
        if self._are_few():
            return logsumexp_quadratic(rows, -precision, natural_mean, constant)
        columns = torch.cat([-precision.flatten(-2) / 2, natural_mean, constant.unsqueeze(-1)], dim=-1)
        return logsumexp_product(rows, columns, self.features)

    def _are_few(self) -> bool:
        """Whether N vectors of D numbers for each row are less than the D² features of it."""
        return len(self.b) < self.b.shape[-1]

    def _natural(self) -> tuple[Tensor, Tensor, Tensor]:
        """B⁻¹, B⁻¹b and the constant of each log density."""
        cholesky = _cholesky(self.B)
        eye = torch.eye(self.B.shape[-1], dtype=self.B.dtype, device=self.B.device)
        inverse = torch.linalg.solve_triangular(cholesky, eye, upper=False)
        precision = inverse.mT @ inverse
        natural_mean = (precision @ self.b.unsqueeze(-1)).squeeze(-1)
        log_det = 2 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        dim_y = self.b.shape[-1]
        constant = self.log_w - ((self.b * natural_mean).sum(-1) + log_det + dim_y * math.log(2 * math.pi)) / 2
        return precision, natural_mean, constant

    def variances(self) -> Tensor:
        return self.B.diagonal(dim1=-2, dim2=-1)

    def tilted_means(self, a: Tensor, output: int) -> Tensor:
        return self.b[:, output] + a @ self.B[:, output, :].mT

    def tilted_mean(self, a: Tensor, atom: Tensor) -> Tensor:
        return self.b[atom] + _times_chosen(self.B, a, atom)

    def moved(self, a: Tensor) -> Tensor:
        return self.b + torch.einsum("nde,...ne->...nd", self.B, a)

    def pooled_shift(self, pooled: Tensor) -> Tensor:
        return pooled.flatten(-2) @ self.B.mT.flatten(0, 1)

    def scale_noise(self, noise: Tensor, atom: Tensor) -> Tensor:
        return _times_chosen(_cholesky(self.B), noise, atom)


Atoms = DiagonalAtoms | FullAtoms
ATOMS: dict[str, type[DiagonalAtoms] | type[FullAtoms]] = {"diagonal": DiagonalAtoms, "full": FullAtoms}


def _cholesky(matrices: Tensor) -> Tensor:
    """Lower factors; NaN where there is none. Not `torch.linalg.cholesky`: it waits for the device to tell of failures."""
    factor, failure = torch.linalg.cholesky_ex(matrices)
    return torch.where((failure > 0).unsqueeze(-1).unsqueeze(-1), math.nan, factor)


def _times_chosen(matrices: Tensor, vectors: Tensor, atom: Tensor) -> Tensor:
    """matrices[atom] @ vectors, one atom at a time: gathering a D×D matrix per row would be the largest array here."""
    outcome = torch.empty_like(vectors)
    for n in range(len(matrices)):
        chosen = atom == n
        outcome[chosen] = vectors[chosen] @ matrices[n].mT
    return outcome


def log_mixture(atoms: Atoms, y: Tensor) -> Tensor:
    """log Σ_n w_n N(y | b_n, B_n): (..., D) → (...)."""
    return atoms.log_density(y.reshape(-1, y.shape[-1])).reshape(y.shape[:-1])


class MixturePotential(Potential):
    r"""Creates the potential f(y) = log Σ_n w_n N(y | b_n, B_n).

    Arguments:
        dim_y: The number of columns of y.
        n_atoms: The number N of atoms.
        covariance: The kind of atoms, a key of `ATOMS`.
        variance_floor: No variance in any direction falls below it; zero leaves them free.

    Example:
        >>> potential = MixturePotential(dim_y=1, n_atoms=1)
        >>> log_w, b, B = potential.atoms()
        >>> torch.allclose(potential(b), -0.5 * torch.log(2 * torch.pi * B).squeeze())
        True
    """

    def __init__(self, *, dim_y: int, n_atoms: int, covariance: str = "diagonal", variance_floor: float = 0.0) -> None:
        super().__init__()
        self.kind = ATOMS[covariance]
        self.variance_floor: Tensor
        self.register_buffer("variance_floor", torch.tensor(float(variance_floor)))
        self.raw_w = nn.Parameter(torch.zeros(n_atoms))
        self.b = nn.Parameter(torch.zeros(n_atoms, dim_y))
        self.raw_B = nn.Parameter(torch.zeros(n_atoms, *self.kind.n_raw(dim_y)))

    def atoms(self) -> Atoms:
        """The normalised log weights (N,), means (N, D) and covariances (N, D) or (N, D, D)."""
        B = self.kind.covariance(self.raw_B, self.variance_floor)
        return self.kind(self.raw_w.log_softmax(dim=-1), self.b, B)

    @torch.no_grad()
    def set_atoms(self, log_w: Tensor, b: Tensor, B: Tensor) -> None:
        """Puts given atoms in; covariances below the floor are raised to it."""
        self.raw_w.copy_(log_w)
        self.b.copy_(b)
        self.raw_B.copy_(self.kind.raw(B, float(self.variance_floor)))

    def forward(self, y: Tensor) -> Tensor:
        return log_mixture(self.atoms(), y)
