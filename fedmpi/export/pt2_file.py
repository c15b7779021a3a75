"""The net as a graph of torch's operators (`torch.export`), for torch alone; any batch size."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from fedmpi.export.extras import exporting
from fedmpi.export.trained import TrainedNet

SUFFIX, IS_EXACT = ".pt2", True
NEEDS, ARRAYS = "torch alone", "torch"
SNIPPET = """\
import torch
net = torch.export.load({path!r}).module()
with torch.no_grad():
    print(net(x).argmax(1))"""
METADATA = "metadata.json"


def traced(trained: TrainedNet, wanted_by: str) -> torch.export.ExportedProgram:
    """The graph, its batch size free. Raises ConfigError where the net's Python depends on values."""
    with exporting(wanted_by, trained.name), torch.no_grad():
        batch = ({0: torch.export.Dim.DYNAMIC},)
        return torch.export.export(trained.net, (trained.example(),), dynamic_shapes=batch)


def pack(trained: TrainedNet, metadata: Mapping[str, str]) -> bytes:
    program, file = traced(trained, "--format=pt2"), io.BytesIO()
    with exporting("--format=pt2", trained.name):
        torch.export.save(program, file, extra_files={METADATA: json.dumps(dict(metadata))})
    return file.getvalue()


def load(path: Path, trained: TrainedNet) -> nn.Module:
    return torch.export.load(path).module()
