"""Ensembles know what they are made of: parts, each with a name, a share, and a member for every fold of the pairs.

A part is a candidate of the search, the linear plan, or the model that ignores x. Each of its members has not seen the pairs
of one fold; a part that no fold was kept from has one member. So `without(fold)` is an ensemble in which nobody knows the
pairs of that fold, and nobody counts places to find it.
"""

from collections.abc import Iterator, Sequence
from typing import Generic, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fewpairs.plans.conditionals import ConditionalEnsemble
from fewpairs.plans.mixture import MixturePlan
from fewpairs.plans.plan import Config, Plan

__all__ = ["IGNORES_X", "LINEAR", "Ensemble", "EnsemblePlan", "Part"]

Member = TypeVar("Member", bound=Plan)

IGNORES_X = "ignores x"
LINEAR = "linear"


class Part(nn.Module, Generic[Member]):
    """Creates one part of an ensemble.

    Arguments:
        name: What it is.
        members: A plan for each fold, which has not seen its pairs; or one for all.
    """

    def __init__(self, name: str, members: Sequence[Member]) -> None:
        super().__init__()
        self.name = name
        self.members = nn.ModuleList(members)

    def __iter__(self) -> Iterator[Member]:
        return iter(cast("Sequence[Member]", self.members))

    def __len__(self) -> int:
        return len(self.members)

    def without(self, fold: int) -> "Part[Member]":
        """The member alone that has not seen a fold."""
        return Part(self.name, [list(self)[fold if len(self) > 1 else 0]])


class Ensemble(nn.Module, Generic[Member]):
    """Abstract: several plans averaged, by parts.

    Arguments:
        parts: What it is made of.
        shares: The weight of each part, (parts,); they sum to one, and the members of a part share alike.
    """

    def __init__(self, parts: Sequence[Part[Member]], shares: Tensor) -> None:
        super().__init__()
        self._parts = nn.ModuleList(parts)
        self.shares: Tensor
        self.register_buffer("shares", shares)

    @property
    def parts(self) -> list[Part[Member]]:
        return list(cast("Sequence[Part[Member]]", self._parts))

    @property
    def members(self) -> list[Member]:
        """The plans of all parts, one after the other."""
        return [member for part in self.parts for member in part]

    @property
    def member_shares(self) -> Tensor:
        """The weight of each member, (members,)."""
        return torch.cat(
            [(share / len(part)).expand(len(part)) for share, part in zip(self.shares, self.parts, strict=True)]
        )

    def part(self, name: str) -> Part[Member] | None:
        """The part of this name; None if there is none."""
        return next((part for part in self.parts if part.name == name), None)

    def share(self, name: str) -> float:
        """The weight of the part of this name; zero if there is none."""
        return sum(float(share) for share, part in zip(self.shares, self.parts, strict=True) if part.name == name)

    def without(self, fold: int) -> Self:
        """The ensemble of those members that have not seen the pairs of a fold."""
        return type(self)([part.without(fold) for part in self.parts], self.shares)

    @property
    def config(self) -> list[Config]:
        """What it takes to make an ensemble with tensors of the same names and sizes."""
        return [{"name": part.name, "members": [member.config for member in part]} for part in self.parts]


class EnsemblePlan(Ensemble[MixturePlan]):
    """Creates the plan p(y|x) = Σ_k share_k p_k(y|x) of several mixture plans: a mixture of mixtures, still in closed form."""

    @classmethod
    def from_config(cls, config: Sequence[Config]) -> "EnsemblePlan":
        """An ensemble with random numbers, of the tensors that `config` tells of."""
        parts = [Part(part["name"], [MixturePlan.from_config(**one) for one in part["members"]]) for part in config]
        return cls(parts, torch.ones(len(parts)))

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x), one number a row."""
        return self.conditional(x).log_prob(y)

    def log_marginal(self, y: Tensor, source: Tensor, source_weight: Tensor | None = None) -> Tensor:
        """log p̂(y), where p̂ is the average of p(·|x) over the source, weighted if weights are given."""
        return self._average([member.log_marginal(y, source, source_weight) for member in self.members])

    def log_prob_between(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x) of every x with every y, (Q, R)."""
        return self._average([member.log_prob_between(x, y) for member in self.members])

    def conditional(self, x: Tensor, loc: Tensor | None = None, scale: Tensor | None = None) -> ConditionalEnsemble:
        """The distribution of `loc + scale · y` given x, for x of shape (rows, dim_x)."""
        return ConditionalEnsemble([member.conditional(x, loc, scale) for member in self.members], self.member_shares)

    def conditional_of_parts(self, x: Tensor) -> ConditionalEnsemble:
        """The same distribution as a mixture of its parts, whoever their members are: what each part thinks can be asked for."""
        of_parts = []
        for part in self.parts:
            even = torch.full((len(part),), 1 / len(part), dtype=self.shares.dtype, device=self.shares.device)
            members = [member.conditional(x) for member in part]
            of_parts.append(members[0] if len(members) == 1 else ConditionalEnsemble(members, even))
        return ConditionalEnsemble(of_parts, self.shares)

    def forward(self, x: Tensor) -> Distribution:
        return self.conditional(x)

    def sample(self, x: Tensor, n_samples: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """Draws y's of shape (n_samples, rows, dim_y)."""
        return self.conditional(x).sample((n_samples,), generator=generator)

    def _average(self, log_densities: Sequence[Tensor]) -> Tensor:
        return torch.logsumexp(torch.stack(list(log_densities), dim=-1) + self.member_shares.log(), dim=-1)
