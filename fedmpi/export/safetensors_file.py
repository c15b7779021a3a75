"""The state of the net by torch's own names, for a net of the same layers: `load_state_dict(load_file(path))`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from fedmpi.export.extras import extra
from fedmpi.export.trained import TrainedNet

SUFFIX, IS_EXACT = ".safetensors", True
SNIPPET = """\
import torch
from safetensors.torch import load_file
net = ...  # a net of the same layers, as `list(load_file({path!r}))` names them
net.load_state_dict(load_file({path!r}))
with torch.no_grad():
    print(net.eval()(x).argmax(1))"""
_WANTED_BY = "--format safetensors"


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
