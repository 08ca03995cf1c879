"""What a classifier takes in: rows of which some have a label, checked and gathered as samples.

Labelled rows are pairs, all rows are the source, and the target are the classes, each weighted by its prior.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

from fewpairs.data import checks
from fewpairs.data.images import Shape, flatten_images, refuse_other_images, shape_to_keep
from fewpairs.data.labels import read_prior, split_labels
from fewpairs.data.samples import Samples
from fewpairs.data.scaling import Scaler
from fewpairs.estimators.settings import Configured

__all__ = ["LABELLED", "LabelledRows"]

LABELLED = (
    "X and its labels",
    "A row without a label has −1, None or NaN in y; rows that y knows nothing of go into X_unpaired.",
)
FARTHEST = 1e4  # scaled x's beyond it are taken as lying there: float32 ends somewhere


class LabelledRows(Configured):
    """Abstract: an estimator that takes tables or images, some rows of which have a label."""

    class_prior: str | Sequence[float] | Mapping[Any, float]
    unlabelled: Any
    scale: str
    image_shape: Sequence[int] | None

    n_features_in_: int
    classes_: np.ndarray
    class_prior_: np.ndarray
    x_scaler_: Scaler
    image_shape_: Shape | None
    n_labelled_: int
    n_unlabelled_: int

    def _gather(self, X: Any, y: Any, sample_weight: Any, X_unpaired: Any) -> Samples:
        """Checks everything that comes in; labelled rows are pairs, all rows are the source, and the target are the classes."""
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None: it holds labels and gaps.")
        x = self._check_x(X, is_new=True)
        labels, is_labelled = split_labels(y, self.unlabelled)
        checks.refuse_unequal(len(x), len(is_labelled), LABELLED)
        weight = checks.as_weight(sample_weight, x, "sample_weight")
        weight = weight / weight.max()  # only ratios matter, and squares of some scales are no numbers any more
        labels = labels[weight[is_labelled] > 0]
        # A row of weight zero is no row.
        x, is_labelled, weight = (rows[weight > 0] for rows in (x, is_labelled, weight))
        if not is_labelled.any():
            raise ValueError(
                f"All {len(x)} rows are unlabelled ({self.unlabelled!r}, None or NaN stands for no label): at least one row of "
                "each class needs one. To find groups without any labels, cluster."
            )
        self.classes_, number = np.unique(labels, return_inverse=True)
        self.label_type_ = self.classes_.dtype.str
        if len(self.classes_) < 2:
            raise ValueError(
                f"All labelled rows are of one class, {self.classes_.tolist()[0]!r}: label at least one row of each class. "
                f"({(~is_labelled).sum()} rows have none: {self.unlabelled!r}, None or NaN says so; unlabelled= sets another.)"
            )
        own = weight[is_labelled]
        # As many rows of weight one would leave as much to chance (Kish).
        counts = np.bincount(number, weights=own) * (own.sum() / (own**2).sum())
        self.class_prior_ = read_prior(self.class_prior, self.classes_, counts)
        rows, rows_weight = [x[is_labelled], x[~is_labelled]], [weight[is_labelled], weight[~is_labelled]]
        if X_unpaired is not None:
            rows.append(self._check_x(X_unpaired, "X_unpaired"))
            rows_weight.append(np.ones(len(rows[-1])))
        self.n_labelled_, self.n_unlabelled_ = int(is_labelled.sum()), sum(len(part) for part in rows[1:])
        source, source_weight = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(rows_weight))
        self.x_scaler_ = self._scaler(source, source_weight)
        source = self._scaled(source)
        return Samples(
            source[: self.n_labelled_],
            torch.from_numpy(number).to(source).unsqueeze(1),
            source,
            torch.arange(len(self.classes_)).to(source).unsqueeze(1),
            torch.from_numpy(weight[is_labelled]).to(source),
            source_weight.to(source),
            torch.from_numpy(self.class_prior_).to(source),
        )

    def _check_x(self, X: Any, name: str = "X", is_new: bool = False) -> np.ndarray:
        """A table in float64, images flattened; what comes later must look like what came to `fit`."""
        table, came = flatten_images(X, name)
        if not is_new:
            refuse_other_images(came, self.image_shape_, name)
        if name != "X":
            names = getattr(self, "feature_names_in_", None)
            names = None if names is None else list(names)
            return checks.as_rows(table, name, n_columns=self.n_features_in_, names=names)
        rows = checks.as_rows(table, name)
        validate_data(self, table, reset=is_new, skip_check_array=True)  # scikit-learn's check of columns and names
        if is_new:
            self.image_shape_ = shape_to_keep(came, self.image_shape, rows.shape[1])
        return rows

    def _scaler(self, source: Tensor, weight: Tensor) -> Scaler:
        scale = ("columns" if self.image_shape_ is None else "together") if self.scale == "auto" else self.scale
        if scale == "none":
            return Scaler.none(source)
        if scale == "columns":
            return Scaler.learn(source, weight)
        one = Scaler.learn(source.reshape(-1, 1), weight.repeat_interleave(source.shape[1]))
        return Scaler(one.loc.expand(source.shape[1]).clone(), one.scale.expand(source.shape[1]).clone())

    def _scaled(self, rows: Tensor) -> Tensor:
        return self.x_scaler_(rows).clamp(-FARTHEST, FARTHEST).float()
