"""Learning: what every fit does around its work."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from fewpairs.data.checks import warn_user
from fewpairs.estimators.base import as_device
from fewpairs.training.interrupts import deferred_interrupts
from fewpairs.training.modes import usual_modes
from fewpairs.training.threads import one_thread

__all__ = ["learning"]


@contextmanager
def learning(*models: Any) -> Iterator[None]:
    """Holds the work of a fit, from its first line to its last.

    Ctrl-C waits for the end of a step; before the first one has been taken, loops raise KeyboardInterrupt. One that comes after
    the last loop loses nothing: the fit ends as it would have, and a warning tells that it was heard.

    What the user has switched on around it, such as `no_grad` or autocast, makes no difference.

    On a CPU one thread does it: steps are made of small operations. (What a CUDA device waits for keeps all.)

    Arguments:
        models: Those that are fitted. If anything fails they are as they were before: half of a new model on top of an old one
            would be worse.
    """
    is_on_cpu = all(as_device(model.device).type == "cpu" for model in models)
    threads = one_thread() if is_on_cpu else nullcontext()
    with deferred_interrupts() as interrupts, threads, usual_modes(with_gradients=True):
        before = [dict(vars(model)) for model in models]
        try:
            yield
        except BaseException:
            for model, attributes in zip(models, before, strict=True):
                vars(model).clear()
                vars(model).update(attributes)
            raise
    if interrupts.came_late():
        warn_user("Interrupted when all was learnt: the model is complete. A loop around this fit goes on.")
