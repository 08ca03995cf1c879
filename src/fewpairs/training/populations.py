"""Populations: many plans of one shape, trained at once.

Every parameter of a plan gains a leading axis of members, and `torch.vmap` runs a function of one plan on all of them. One
step of a small plan is bound by the calls around its arithmetic, not by the arithmetic: fifty plans at once cost far less
than fifty times one. Members stand candidate by candidate, and within a candidate fold by fold: member k = c · F + f.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fewpairs.plans.plan import Plan

__all__ = ["Population"]


class _Apply(nn.Module):
    """A module whose call is a function of the plan inside it: `functional_call` swaps parameters of modules alone."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def forward(self, function: Callable[..., Tensor], *arguments: Any, **keywords: Any) -> Tensor:
        return function(self.plan, *arguments, **keywords)


class Population:
    """Creates the population of plans that differ in the values of their tensors alone.

    Example:
        >>> from fewpairs.plans.costs import SlopeCost
        >>> from fewpairs.plans.mixture import MixturePlan
        >>> from fewpairs.plans.potentials import MixturePotential
        >>> def make():
        ...     return MixturePlan(SlopeCost(dim_x=2, dim_y=1, n_slopes=3), MixturePotential(dim_y=1, n_atoms=5))
        >>> population = Population([make(), make()])
        >>> population(lambda plan, x: plan.log_partition(x), torch.zeros(2, 4, 2)).shape
        torch.Size([2, 4])
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.parameters, self.buffers = stack_module_state(list(plans))
        self._size = len(plans)
        self._template = copy.deepcopy(plans[0])
        self._apply = _Apply(copy.deepcopy(plans[0]).to("meta"))

    def __len__(self) -> int:
        return self._size

    @property
    def kind(self) -> type[Plan]:
        """What all members are."""
        return type(self._template)

    def __call__(self, function: Callable[..., Tensor], *arguments: Any, **keywords: Any) -> Tensor:
        """function(plan, …) of every member; tensors among the arguments have a leading axis of members."""

        def one(state: dict[str, Tensor], arguments: Any, keywords: Any) -> Tensor:
            return functional_call(self._apply, state, (function, *arguments), keywords)

        state = {f"plan.{name}": tensor for name, tensor in (self.parameters | self.buffers).items()}
        if not self._is_faster_one_by_one():
            return vmap(one)(state, arguments, keywords)
        members = zip(*(_split(part, len(self)) for part in (state, arguments, keywords)), strict=True)
        return torch.stack([one(*member) for member in members])

    def _is_faster_one_by_one(self) -> bool:
        """Convolutions on a CPU: stacked, they become grouped ones, which take three times as long."""
        has_convolutions = any(isinstance(layer, nn.modules.conv._ConvNd) for layer in self._template.modules())
        return has_convolutions and not next(iter(self.parameters.values())).is_cuda

    def to(self, device: torch.device) -> Self:
        self.parameters = {
            name: tensor.detach().to(device).requires_grad_() for name, tensor in self.parameters.items()
        }
        self.buffers = {name: tensor.to(device) for name, tensor in self.buffers.items()}
        return self

    def plan(self, member: int) -> Plan:
        """One member, as a plan of its own."""
        plan = copy.deepcopy(self._template)
        plan.load_state_dict({name: tensor[member] for name, tensor in (self.parameters | self.buffers).items()})
        return plan

    def state(self) -> dict[str, Tensor]:
        """A copy of all parameters."""
        return {name: tensor.detach().clone() for name, tensor in self.parameters.items()}

    @torch.no_grad()
    def set_state(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.parameters.items():
            tensor.copy_(state[name])

    @torch.no_grad()
    def is_finite(self) -> Tensor:
        """For each member, whether all its parameters are finite numbers."""
        return torch.stack([torch.isfinite(tensor).flatten(1).all(1) for tensor in self.parameters.values()]).all(0)


def _split(stacked: Any, n: int) -> list[Any]:
    """What each of n members gets of tensors with a leading axis of members, in any nest of dictionaries and tuples."""
    if isinstance(stacked, dict):
        parts = {name: _split(part, n) for name, part in stacked.items()}
        return [{name: part[member] for name, part in parts.items()} for member in range(n)]
    if isinstance(stacked, tuple | list):
        return [tuple(parts) for parts in zip(*(_split(part, n) for part in stacked), strict=True)] or [()] * n
    return [_channels_last(part) if part.ndim == 4 else part for part in stacked.unbind(0)]


def _channels_last(weight: Tensor) -> Tensor:
    """The weight of a convolution with its channels side by side, which is what convolutions on a CPU are fastest with. A single
    channel lies so in any order, but what follows reads the order off the strides."""
    if weight.shape[1] == 1:
        return weight.squeeze(1).unsqueeze(-1).movedim(-1, 1)
    return weight.contiguous(memory_format=torch.channels_last)
