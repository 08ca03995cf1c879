"""Saving: a fitted estimator as tensors and plain settings, and back. Bytes are the business of `files`."""

import os
from abc import abstractmethod
from dataclasses import asdict, fields
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from fewpairs.data.checks import warn_user
from fewpairs.data.files import write_model
from fewpairs.estimators.schema import check_fitted, check_made, check_numbers, check_settings, check_sizes
from fewpairs.estimators.settings import Settings
from fewpairs.networks.dice import borrowed_dice
from fewpairs.selection.choice import Choice

__all__ = ["FINDINGS", "OF_TRAINING", "Saved", "SavedEnsemble"]

# What is known of any network's training, in the fitted attributes …
OF_TRAINING = (
    "ended_",
    "history_",
    "is_1d_",
    "n_features_in_",
    "n_outputs_",
    "n_pairs_",
    "n_steps_",
    "n_unpaired_",
    "target_names_",
)
# … and what a choice finds.
FINDINGS = (
    "candidates_",
    "chosen_",
    "ended_",
    "finals_",
    "n_features_in_",
    "unpaired_gain_",
    "unpaired_gain_error_",
    "validation_score_",
    "validation_score_error_",
    "x_gain_",
    "x_gain_error_",
)


class Saved:
    """Abstract: an estimator that can be written to a file and read back by `load`."""

    learnt_name: ClassVar[str] = "plan_"  # the fitted attribute that is a module: what was learnt
    plan_: Any
    fitted_names: ClassVar[tuple[str, ...]]  # fitted attributes that JSON can hold
    fitted_tensors: ClassVar[tuple[str, ...]] = ()
    own_networks: ClassVar[tuple[str, ...]] = ()  # settings that may be modules of the user's, to be handed in again
    fitted_parts: ClassVar[dict[str, Any]]  # fitted attributes that are dataclasses of tensors, and their classes

    def save(self, path: str | os.PathLike) -> None:
        """Writes the fitted model to a safetensors file; `fewpairs.load` reads it. The old file stays if anything fails."""
        pieces = self.take_apart()
        self._check_arguments()  # type: ignore[attr-defined]  # settings may have changed since, and `load` refuses what `fit` does
        write_model(path, *pieces)

    def take_apart(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a fitted model is made of: its tensors, and what JSON can hold."""
        check_is_fitted(self, self.learnt_name)
        fitted = {name: getattr(self, name) for name in self.fitted_names}
        fitted |= {"config": self._config(), "feature_names_in_": None}
        if hasattr(self, "feature_names_in_"):
            fitted["feature_names_in_"] = list(self.feature_names_in_)
        tensors = {f"plan.{name}": tensor for name, tensor in getattr(self, self.learnt_name).state_dict().items()}
        tensors |= {name: getattr(self, name) for name in self.fitted_tensors}
        for name, kind in self.fitted_parts.items():
            tensors |= {f"{name}.{part.name}": getattr(getattr(self, name), part.name) for part in fields(kind)}
        return tensors, {"estimator": type(self).__name__, "settings": self._plain_settings(), "fitted": fitted}

    @classmethod
    def from_file(cls, tensors: dict[str, Tensor], settings: dict[str, Any], fitted: dict[str, Any]) -> Self:
        """The model that `save` took apart, or what is wrong with its pieces: nothing is made before that is known."""
        check_settings(cls().get_params(deep=False), settings)  # type: ignore[attr-defined]
        check_fitted((*cls.fitted_names, "config", "feature_names_in_"), fitted)
        model: Any = cls(**cls._read_settings(settings))
        model._check_arguments()
        feature_names, config = fitted.pop("feature_names_in_"), fitted.pop("config")
        if feature_names is not None:
            model.feature_names_in_ = np.array(feature_names, dtype=object)
        for name, value in fitted.items():
            setattr(model, name, value)
        for name in cls.fitted_tensors:
            setattr(model, name, tensors[name])
        for name, kind in cls.fitted_parts.items():
            setattr(model, name, kind(*(tensors[f"{name}.{part.name}"] for part in fields(kind))))
        model._restore()
        check_made(model)
        learnt = model._read_plan(
            config, {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("plan.")}
        )
        setattr(model, cls.learnt_name, learnt.eval().requires_grad_(False))
        return model

    def _read_plan(self, config: Any, state: dict[str, Tensor]) -> nn.Module:
        """The module with these tensors."""
        with borrowed_dice():  # new networks draw their weights from torch's global generator
            self._check_sizes(config, state)
            learnt = self._empty_plan(config)
        if not any(isinstance(getattr(self, name), nn.Module) for name in self.own_networks):
            check_numbers(state)
        learnt.load_state_dict(state)
        return learnt

    def _check_sizes(self, config: Any, state: dict[str, Tensor]) -> None:
        """An error if settings tell of other sizes than tensors have: of more, maybe, than there is room for."""
        with torch.device("meta"):  # sizes alone, no numbers
            check_sizes(self._empty_plan(config).state_dict(), state)

    def _plain_settings(self) -> dict[str, Any]:
        """The arguments as JSON can hold them; settings objects as dictionaries."""
        settings = self.get_params(deep=False)  # type: ignore[attr-defined]
        if not isinstance(settings["random_state"], Integral | None):
            settings["random_state"] = None  # a generator is no setting, and the fitted model does not need it
        return {name: one.get_params() if isinstance(one, Settings) else one for name, one in settings.items()}

    @classmethod
    def _read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The arguments as they were before `_plain_settings`."""
        usual = cls().get_params(deep=False)  # type: ignore[attr-defined]
        kinds = {name: type(one) for name, one in usual.items() if isinstance(one, Settings)}
        return {name: kinds[name](**value) if name in kinds else value for name, value in settings.items()}

    @abstractmethod
    def _config(self) -> Any:
        """What it takes to make a module with tensors of the same names and sizes."""

    @abstractmethod
    def _empty_plan(self, config: Any) -> nn.Module:
        """A module of this kind, whose tensors are about to be read."""

    def _restore(self) -> None:
        """Makes of attributes what they were before JSON."""


class SavedEnsemble(Saved):
    """Abstract: one whose plan is an ensemble that a choice found."""

    candidates_: list[dict[str, Any]]

    def _config(self) -> list[dict[str, Any]]:
        return self.plan_.config

    def _restore(self) -> None:
        for candidate in (self.chosen_, *self.finals_, *self.candidates_):
            candidate["hidden"] = tuple(candidate["hidden"])  # JSON knows lists alone

    def _keep_findings(self, choice: Choice, log_scale: float = 0.0) -> None:
        """What a choice found, in the fitted attributes, and a warning if it was interrupted. Scores are brought to the user's
        units, in which y is larger by a factor whose logarithm is given."""
        self.validation_score_, self.validation_score_error_ = choice.score[0] - log_scale, choice.score[1]
        self.candidates_ = [
            {**asdict(candidate), "score": score - log_scale, "error": error}
            for candidate, score, error in choice.table
        ]
        self.unpaired_gain_, self.unpaired_gain_error_ = choice.unpaired_gain
        self.x_gain_, self.x_gain_error_ = choice.x_gain
        self.finals_ = [
            {**asdict(final.trial.candidate), "share": final.share, "part": final.name} for final in choice.finals
        ]
        self.chosen_ = max(self.finals_, key=lambda final: final["share"])
        self.ended_ = choice.ended
        if choice.ended == "interrupted":
            warn_user(
                "Interrupted: the best model so far is kept. A loop around this fit goes on; interrupt again to stop that."
            )
