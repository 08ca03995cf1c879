"""Saving: a fitted estimator as tensors and plain settings, and back. Bytes are the business of `files`."""

import os
from dataclasses import fields
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fewpairs.files import write_model
from fewpairs.plans import Ensemble

__all__ = ["Saved"]


class Saved:
    """Abstract: an estimator with `plan_`, an ensemble, that can be written to a file and read back by `models.load`."""

    plan_: Any
    fitted_names: ClassVar[tuple[str, ...]]  # fitted attributes that JSON can hold
    fitted_tensors: ClassVar[tuple[str, ...]] = ()
    fitted_parts: ClassVar[dict[str, Any]]  # fitted attributes that are dataclasses of tensors, and their classes

    def save(self, path: str | os.PathLike) -> None:
        """Writes the fitted model to a safetensors file; `fewpairs.load` reads it. The old file stays if anything fails."""
        check_is_fitted(self, "plan_")
        fitted = {name: getattr(self, name) for name in self.fitted_names}
        fitted |= {"members": [self._shape_of(plan) for plan in self.plan_.members], "feature_names_in_": None}
        if hasattr(self, "feature_names_in_"):
            fitted["feature_names_in_"] = list(self.feature_names_in_)
        tensors = {f"plan.{name}": tensor for name, tensor in self.plan_.state_dict().items()}
        tensors |= {name: getattr(self, name) for name in self.fitted_tensors}
        for name, kind in self.fitted_parts.items():
            tensors |= {f"{name}.{part.name}": getattr(getattr(self, name), part.name) for part in fields(kind)}
        kind = type(self).__name__
        write_model(path, tensors, {"estimator": kind, "settings": self._plain_settings(), "fitted": fitted})

    @classmethod
    def from_file(cls, tensors: dict[str, Tensor], settings: dict[str, Any], fitted: dict[str, Any]) -> Self:
        """The model that `save` took apart."""
        model = cls(**settings)
        feature_names, members = fitted.pop("feature_names_in_"), fitted.pop("members")
        if feature_names is not None:
            model.feature_names_in_ = np.array(feature_names, dtype=object)  # type: ignore[attr-defined]
        for candidate in (fitted["chosen_"], *fitted["finals_"], *fitted["candidates_"]):
            candidate["hidden"] = tuple(candidate["hidden"])  # JSON knows lists alone
        for name, value in fitted.items():
            setattr(model, name, value)
        for name in cls.fitted_tensors:
            setattr(model, name, tensors[name])
        for name, kind in cls.fitted_parts.items():
            setattr(model, name, kind(*(tensors[f"{name}.{part.name}"] for part in fields(kind))))
        model._restore()
        with torch.random.fork_rng(devices=[]):  # new networks draw their weights from torch's global generator
            plan = model._empty_plan(members)
        plan.load_state_dict({name[5:]: tensor for name, tensor in tensors.items() if name.startswith("plan.")})
        model.plan_ = plan.eval().requires_grad_(False)
        return model

    def _plain_settings(self) -> dict[str, Any]:
        settings = self.get_params()  # type: ignore[attr-defined]
        if not isinstance(settings["random_state"], Integral | None):
            settings["random_state"] = None  # a generator is no setting, and the fitted model does not need it
        return settings

    def _shape_of(self, plan: Any) -> Any:
        """What it takes to make a plan with tensors of the same names and sizes."""
        raise NotImplementedError

    def _empty_plan(self, shapes: list[Any]) -> Ensemble:
        """An ensemble of plans of these shapes, whose tensors are about to be read."""
        raise NotImplementedError

    def _restore(self) -> None:
        """Brings attributes back to what JSON made of them."""
