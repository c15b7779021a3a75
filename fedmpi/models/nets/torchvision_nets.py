"""Nets that nobody prepared for federated learning: torchvision's, by name."""

import difflib
from pathlib import Path

import torch
import torchvision
from pydantic import field_validator
from torch import nn

from fedmpi.errors import ConfigError
from fedmpi.models.nets.attention import open_attention
from fedmpi.models.nets.shared import Normalized
from fedmpi.models.options import Inputs, Model
from fedmpi.models.width import Width

PREFIX = "torchvision:"
WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")
# `init_weights` is their default, said aloud because leaving it out warns.
ONE_OUTPUT = {"aux_logits": False, "init_weights": True}


class Torchvision(Normalized, Model):
    """Any classification net of torchvision, initialised as torchvision does, BatchNorm with batch statistics."""

    name: str = "torchvision:resnet50"
    """Any classification net of torchvision by its name, as torchvision:resnet50."""

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        known = torchvision.models.list_models(module=torchvision.models)
        wanted = name.removeprefix(PREFIX)
        if wanted in known:
            return name
        close = [*difflib.get_close_matches(wanted, known, 1), "resnet50"]
        raise ValueError(f"expected a classification net of torchvision, as '{PREFIX}{close[0]}'")

    def fetched_weights(self) -> Path:
        """Returns torchvision's own file in its folder of what was fetched. Raises `ConfigError` if it is not there."""
        known = torchvision.models.get_model_weights(self.name.removeprefix(PREFIX))
        if self.weights not in known.__members__:
            allowed = f"allowed: a file, a run, or torchvision's {', '.join(known.__members__)}"
            raise ConfigError("model.weights", f"{self.weights}: no such file or run; {allowed}")
        url = known[self.weights].url
        path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
        if not path.is_file():
            raise ConfigError("model.weights", f"{self.weights} is not on this machine: fetch {url} into {path.parent}")
        return path

    def net(self, info: Inputs, width: Width) -> nn.Module:
        wanted = self.name.removeprefix(PREFIX)
        if width.factor != 1:
            problem = f"'{self.name}' has no width multiplier, and the method asks for width {width.factor:g}"
            made = f"torchvision.models.{wanted}(num_classes=num_classes)"
            raise ConfigError(
                "model.name", f"{problem}; a function(num_classes) of yours that returns {made} is narrowed"
            )
        extra = ONE_OUTPUT if wanted in WITH_AUXILIARY_HEADS else {}
        net = torchvision.models.get_model(wanted, weights=None, num_classes=info.num_classes, **extra)
        return self.normalized(open_attention(net))
