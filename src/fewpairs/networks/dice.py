"""Dice: torch's own generator, from which networks draw their first weights and torch's distributions their samples.

All threads of Python share it, and the user's own draws come from it. So one thread at a time has it, others wait, and it is put
back as it was.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["borrowed_dice"]

_LOCK = threading.RLock()


def _renew() -> None:
    """A process that was forked while another thread had the dice would wait for a thread that it does not have."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def borrowed_dice(device: torch.device | None = None) -> Iterator[None]:
    """Whatever is drawn inside from torch's own generator, and that of a CUDA device if one is given, leaves it as it was."""
    is_cuda = device is not None and device.type == "cuda"
    with _LOCK, torch.random.fork_rng(devices=[device] if is_cuda else []):
        yield
