"""Modes: what the user has switched on around a call of ours, and must not change what comes out.

Gradients, inference mode and autocast belong to a thread; the default precision belongs to all of them.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["usual_modes"]


class _Precision:
    """The default precision: the first thread that comes sets it to float32, the last that goes puts it back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_within = 0
        self.before = torch.float32

    @contextmanager
    def single(self) -> Iterator[None]:
        with self.lock:
            self.n_within += 1
            if self.n_within == 1:
                self.before = torch.get_default_dtype()
                torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            with self.lock:
                self.n_within -= 1
                if self.n_within == 0:
                    torch.set_default_dtype(self.before)


_PRECISION = _Precision()


@contextmanager
def usual_modes(*, with_gradients: bool = False) -> Iterator[None]:
    """Within it torch is as it is when a program begins: float32 by default, no autocast, tensors that may be learnt.

    Gradients are left as they are, unless they are asked for.
    """
    with ExitStack() as modes:
        modes.enter_context(_PRECISION.single())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        if with_gradients:
            modes.enter_context(torch.enable_grad())
        yield
