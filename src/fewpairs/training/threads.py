"""Threads: what is made of small operations runs on one of them.

An operation of some microseconds gains nothing from a second thread, and waits for it: where another program has that core, a fit
takes ten times its seconds. So torch, BLAS and OpenMP have one thread each while small work is done, and then what they had. Who
has set a number of threads, in the environment or with `torch.set_num_threads`, keeps it.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["FEW_ROWS", "one_thread", "one_thread_if_brief"]

USERS_OWN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
BEGAN_WITH = torch.get_num_threads()  # what torch finds right for this machine
# Rows to ask about: a network of usual width answers in some 50 ms on one thread, and two would save a third of it.
FEW_ROWS = 10_000

_IS_WITHIN: ContextVar[bool] = ContextVar("whether this thread of Python has one thread already", default=False)


class _Shared:
    """What all threads of Python share: how many are within, and the pools of BLAS. The first that comes makes these one thread
    each, the last that goes puts them back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_within = self.n_without_blas = 0
        self.limits: Any = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self.lock:
            self.n_within += 1
        try:
            yield
        finally:
            with self.lock:
                self.n_within -= 1

    @contextmanager
    def without_blas(self, pools: ThreadpoolController) -> Iterator[None]:
        with self.lock:
            self.n_without_blas += 1
            if self.n_without_blas == 1:
                self.limits = pools.limit(limits=1, user_api="blas")
        try:
            yield
        finally:
            with self.lock:
                self.n_without_blas -= 1
                if self.n_without_blas == 0:
                    self.limits.restore_original_limits()


_SHARED = _Shared()


@contextmanager
def one_thread(*, of_torch_alone: bool = False) -> Iterator[None]:
    """One thread for whatever is done within, by this thread of Python.

    Arguments:
        of_torch_alone: Leaves the pools of others as they are: to look for them takes some milliseconds.
    """
    if _IS_WITHIN.get() or _is_the_users_own():
        yield
        return
    token = _IS_WITHIN.set(True)
    try:
        with _SHARED.counted():
            torch.set_num_threads(1)
            with nullcontext() if of_torch_alone else _one_in_each_pool():
                yield
    finally:
        torch.set_num_threads(BEGAN_WITH)
        _IS_WITHIN.reset(token)


def one_thread_if_brief(is_brief: bool) -> AbstractContextManager[None]:
    """One thread for what torch does in a moment; what takes longer keeps all."""
    return one_thread(of_torch_alone=True) if is_brief else nullcontext()


@contextmanager
def _one_in_each_pool() -> Iterator[None]:
    pools = ThreadpoolController()
    with _SHARED.without_blas(pools), pools.limit(limits=1, user_api="openmp"):  # OpenMP's are of each thread of Python
        yield


def _is_the_users_own() -> bool:
    """Whether somebody has set a number of threads. A thread of Python that began while another was within was handed that one's
    single thread by torch, and nobody has set it."""
    n_threads = torch.get_num_threads()
    is_handed_on = n_threads == 1 and _SHARED.n_within > 0
    return any(name in os.environ for name in USERS_OWN) or (n_threads != BEGAN_WITH and not is_handed_on)
