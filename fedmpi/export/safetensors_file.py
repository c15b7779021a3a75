"""The state of the net by torch's own names, for a net of the same layers: `load_state_dict(load_file(path))`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from fedmpi.export.extras import extra
from fedmpi.export.trained import TrainedNet

SUFFIX, IS_EXACT = ".safetensors", True
NEEDS, ARRAYS = "torch, safetensors and the net's code, as the file has its values only; pt2 needs no code", "torch"
SNIPPET = """\
import torch, fedmpi
from safetensors.torch import load_file
net = {made}  # or one of your own with these layers
net.load_state_dict(load_file({path!r}))
with torch.no_grad():
    print(net.eval()(x).argmax(1))"""
_WANTED_BY = "--format=safetensors"


def pack(trained: TrainedNet, metadata: Mapping[str, str]) -> bytes:
    """Every tensor of the state dict. A tensor of two names is there twice: a plain `load_state_dict` wants both."""
    save = extra("safetensors.torch", _WANTED_BY).save
    tensors = {name: value.detach().contiguous().clone() for name, value in trained.net.state_dict().items()}
    packed: bytes = save(tensors, metadata=dict(metadata))
    return packed


def load(path: Path, trained: TrainedNet) -> nn.Module:
    """A net that is made anew, with the file's state."""
    net = trained.fresh()
    net.load_state_dict(extra("safetensors.torch", _WANTED_BY).load_file(path))
    return net.eval()
