"""What the "auto" of a classifier stands for, by its network and how many rows have labels and how many have none."""

from dataclasses import dataclass, replace

import torch

from fewpairs.estimators.settings import ClassifierSearch
from fewpairs.selection.candidates import Options

__all__ = [
    "LEAST_TO_CHOOSE",
    "LEAST_TO_HOLD_OUT",
    "Pace",
    "find_options",
    "is_fast_in_bfloat16",
    "usual_decisiveness",
    "usual_pace",
    "usual_radii",
]

LEAST_TO_HOLD_OUT = 100  # labelled rows: fewer would not judge much …
LEAST_TO_CHOOSE = 500  # … and fewer than these are few: they would choose a radius by chance
# Of the adversarial direction, to choose from; the middle is where the choice begins, and ends where labels are few.
RADII, CNN_RADII = (0.1, 0.2, 0.3), (0.2, 0.3, 0.4)
DECISIVENESS = (0.1, 0.3)  # the weight of the entropy, from none to very many unlabelled rows …
HALFWAY = 10_000  # … and how many of them have the middle of it
SOON_KNOWN = 1000  # unlabelled rows that a perceptron's usual steps are enough for …
MOST_KNOWN = 16_000  # … and how many make steps the most there are


@dataclass(frozen=True)
class Pace:
    """How long networks learn, how fast, how many of them, and from how many rows in a step.

    Attributes:
        judged_steps: The most that networks need to be judged by; those that are kept may learn for longer.
        adversarial_rows: At how many of a batch a direction is looked for.

    The rest are arguments of `SemiSupervisedClassifier`.
    """

    max_steps: int
    learning_rate: float
    batch_size: int
    labelled_batch_size: int
    n_members: int
    judged_steps: int
    adversarial_rows: int


# A class is one number of a few, so directions are cheap: 64 rows were worse, 256 no better.
USUAL = Pace(
    max_steps=1000,
    learning_rate=1e-3,
    batch_size=256,
    labelled_batch_size=256,
    n_members=5,
    judged_steps=1000,
    adversarial_rows=128,
)
# No worse for the "cnn" than the usual pace, but for half a point with very many unlabelled rows, and in a tenth of the time …
CNN = Pace(
    max_steps=400,
    learning_rate=3e-3,
    batch_size=128,
    labelled_batch_size=128,
    n_members=3,
    judged_steps=200,
    adversarial_rows=64,
)
SHORT_STEPS = 1e-3  # … but where few labels are all there is, such long steps end in confidence alone


def usual_pace(objective: str, n_labelled: int, n_unlabelled: int, *, is_cnn: bool) -> Pace:
    """The pace that suits the network and the rows."""
    pace = CNN if is_cnn else USUAL
    if objective == "supervised" and n_labelled < LEAST_TO_CHOOSE:
        pace = replace(pace, learning_rate=SHORT_STEPS)
    if objective == "marginal" and not is_cnn:
        longer = (min(max(n_unlabelled, SOON_KNOWN), MOST_KNOWN) / SOON_KNOWN) ** 0.5
        pace = replace(pace, max_steps=round(longer * pace.max_steps))
    return pace


def usual_radii(n_labelled: int, *, is_cnn: bool) -> tuple[float, ...]:
    """The lengths of the adversarial direction to choose from."""
    radii = CNN_RADII if is_cnn else RADII
    return radii if n_labelled >= LEAST_TO_CHOOSE else radii[1:2]


def usual_decisiveness(n_unlabelled: int) -> float:
    """The weight of the entropy: more where rows are so many that a network does not know them by heart."""
    least, most = DECISIVENESS
    return least + (most - least) * n_unlabelled / (n_unlabelled + HALFWAY)


def find_options(
    search: ClassifierSearch, objective: str, hidden: tuple[int, ...], radii: tuple[float, ...]
) -> Options:
    """For each setting the values to choose from; radii are the usual ones."""
    if objective != "marginal":
        radii = (0.0,)
    if not isinstance(search.adversarial, str):
        radii = (float(search.adversarial),)
    return {
        "hidden": (hidden,),
        "smoothing": (search.smoothing,),
        "emphasis": (0.0,),
        "adversarial": radii,
        "unpaired_weight": (search.unpaired_weight,),
    }


def is_fast_in_bfloat16(device: torch.device) -> bool:
    """Whether this is a CPU with instructions for it; others imitate them, and are slow."""
    if device.type != "cpu":
        return False
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))
