"""What the options of all nets have in common; those of a built-in net stand beside it in `nets/`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field
from torch import Tensor, nn

from fedmpi.config.fields import Folder, Patterns, Section
from fedmpi.models.width import Width

# A hundred times a paper's channels is ten thousand times its parameters.
Multiplier = Annotated[float, Field(gt=0, le=100)]


class Inputs(Protocol):
    """What a model needs to know of the data; `data.dataset.DataInfo` has it."""

    def __hash__(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def example_shape(self) -> tuple[int, ...]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def output_shape(self) -> tuple[int, ...]: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def examples(self) -> Tensor | None: ...


class Model(Section):
    """Options of a net for images whose stem alone stays dense."""

    kinds: ClassVar[tuple[str, ...]] = ("image",)
    """The kinds of data that it takes."""
    leading_dense: ClassVar[int] = 1
    """The stem: the first conv larger than 1x1, if there is one."""
    name: str
    weights: Folder = ""
    """Values that the net begins with: a file of safetensors or of `torch.save(net.state_dict())`, a run's folder (its
    newest round) or FOLDER@ROUND, or the name of torchvision's own weights, once fetched. Empty: initial values.
    """
    weights_skip: Patterns = ()
    """Name patterns (fnmatch) of tensors that keep their initial values, as fc.* for a head of other classes."""
    trained: Literal["none"] | Patterns = ()
    """Name patterns of the parameters that are trained, as fc.*; the others stay as they are and never travel. Empty:
    all that the net itself does not freeze (`requires_grad`). `none`, where a method adds parameters of its own (lora).
    """

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        if self.weights_skip and not self.weights:
            yield "model.weights_skip", "without model.weights all values are initial ones; leave it out"

    def fetched_weights(self) -> Path | None:
        """Returns the file of weights that `weights` names; None if it names none that this kind of net knows."""
        return None

    @property
    def dense_layers(self) -> int:
        """FedHM's rho by default: how many of the first convs larger than 1x1 are never factorized."""
        return self.leading_dense

    def net(self, info: Inputs, width: Width) -> nn.Module:
        """Makes the net with initial values, for such data, with this share of its channels."""
        raise NotImplementedError


class ScaledNet(Model):
    """Options of a net that has a width multiplier of its own; `make` gets the width and all other options."""

    make: ClassVar[Callable[..., nn.Module]]
    width: Multiplier = 1.0
    """Width multiplier of every layer but the last: round(width * its size)."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        own = {key: value for key, value in self if key not in {*Model.model_fields, "width"}}
        return type(self).make(info, width.times(self.width), **own)
