"""Graphs: a step of training, or of a chain, on a CUDA device as one recorded graph of kernels.

A step of a small population is some hundred tiny kernels, and launching them one by one takes ten times as long as running
them. Recorded once, they are launched as one. What is recorded must not wait for the device, and reads its inputs from the
same places every time.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

__all__ = ["Graphed", "Recorder"]

N_EAGER = 3  # calls before the recording: libraries set themselves up in the first ones


class Graphed:
    """A function of tensors that is run as it is a few times, then recorded, and replayed from then on.

    Arguments:
        function: Takes tensors, returns tensors; what it changes besides must always stand in the same place.
        generator: The source of randomness that it draws from.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], generator: torch.Generator | None) -> None:
        self.function, self.generator = function, generator
        self.n_calls = 0
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.n_calls += 1
        if self.n_calls <= N_EAGER:
            return self._run_aside(inputs)
        if self.graph is None:
            self._record(inputs)
        else:
            for place, tensor in zip(self.inputs, inputs, strict=True):
                place.copy_(tensor)
        assert self.graph is not None
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)

    def _run_aside(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Runs on a stream of its own: what is set up on the main one could not be recorded later."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            outputs = self.function(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        return outputs

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        self.graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            self.graph.register_generator_state(self.generator)
        with torch.cuda.graph(self.graph):
            self.outputs = self.function(*self.inputs)


class Recorder:
    """Creates a memory of recordings, one for each set of shapes: of a function that is made anew for every use, and always
    does the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Graphed] = {}

    def __call__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        inputs: tuple[Tensor, ...],
        generator: torch.Generator | None,
        name: Hashable = None,
    ) -> Graphed:
        """The recording for inputs of these shapes; functions that do not do the same need different names."""
        key = (name, *(tensor.shape for tensor in inputs))
        return self._known.setdefault(key, Graphed(function, generator))
