"""Interrupts: while a fit runs, Ctrl-C waits for the end of the step.

Python raises KeyboardInterrupt between any two of its instructions. One that comes where torch leaves `no_grad` keeps gradients
off for the rest of the process, and one within `vmap` leaves torch's own stack of transforms behind. So the first Ctrl-C is
written down, and loops ask between their steps whether one has come. The second does not wait: it is for whoever will not.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import FrameType
from typing import Protocol

import torch

__all__ = ["Interrupts", "deferred_interrupts", "ends_early", "stop_if_asked"]


class Ends(Protocol):
    """What says how it ended."""

    ended: str


class Interrupts:
    """How many have come, and whether a loop has ended for it."""

    def __init__(self) -> None:
        self.n_came = 0
        self.is_heard = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signal."""
        self.n_came += 1
        if self.n_came > 1:
            raise KeyboardInterrupt

    def came_late(self) -> bool:
        """Whether one came that no loop was left to hear."""
        return self.n_came > 0 and not self.is_heard


# Those of the fit under way. A thread begins without: Ctrl-C is for the main one, and stops nobody else's loop.
_UNDER_WAY: ContextVar[Interrupts | None] = ContextVar("interrupts of the fit under way", default=None)


@contextmanager
def deferred_interrupts() -> Iterator[Interrupts]:
    """Within it the first Ctrl-C is written down, and the second raises KeyboardInterrupt at once.

    Nothing is changed within another one, nor in another thread than the main one, which may have no say in signals. And only
    Python's own handler is replaced. Who ignores the signal wants no stop, and who has put up a handler wants to be called when
    the signal comes, and not some steps later; if that raises KeyboardInterrupt within a loop, the loop takes it for Ctrl-C.
    """
    interrupts, is_grad_on = Interrupts(), torch.is_grad_enabled()
    is_main = threading.current_thread() is threading.main_thread()
    is_ours = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        with _written_down_by(interrupts) if is_ours else nullcontext():
            yield interrupts
    finally:
        torch.set_grad_enabled(is_grad_on)  # the second Ctrl-C, or a handler of the user's, may have raised anywhere


@contextmanager
def _written_down_by(interrupts: Interrupts) -> Iterator[None]:
    token = _UNDER_WAY.set(interrupts)
    try:
        signal.signal(signal.SIGINT, interrupts.note)
        yield
    finally:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        finally:
            _UNDER_WAY.reset(token)


def stop_if_asked() -> None:
    """Raises KeyboardInterrupt if Ctrl-C has come. To be called between steps, where nothing is half done."""
    interrupts = _UNDER_WAY.get()
    if interrupts is not None and interrupts.n_came:
        interrupts.is_heard = True
        raise KeyboardInterrupt


@contextmanager
def ends_early(loop: Ends) -> Iterator[None]:
    """Ends a loop on KeyboardInterrupt, and has its `ended` say so. The second Ctrl-C ends more than the loop."""
    try:
        yield
    except KeyboardInterrupt:
        interrupts = _UNDER_WAY.get()
        if interrupts is not None and interrupts.n_came > 1:
            raise
        loop.ended = "interrupted"
