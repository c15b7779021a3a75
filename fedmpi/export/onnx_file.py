"""The net as one ONNX file, for ONNX Runtime and others; any batch size. Its products are summed in another order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedmpi.errors import ConfigError
from fedmpi.export.extras import exporting, extra
from fedmpi.export.pt2_file import traced
from fedmpi.export.trained import TrainedNet

SUFFIX, IS_EXACT = ".onnx", False
NEEDS, ARRAYS = "onnxruntime and numpy", "numpy"
SNIPPET = """\
import onnxruntime, numpy
net = onnxruntime.InferenceSession({path!r})
print(net.run(None, {{"input": x}})[0].argmax(1))"""
_WANTED_BY = "--format=onnx"
# Else the runtime notes its use, and leaves a file in the temporary folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Protocol buffers end there.
_MOST_BYTES = 2 * 10**9


def pack(trained: TrainedNet, metadata: Mapping[str, str]) -> bytes:
    for package in ("onnx", "onnxscript"):
        extra(package, _WANTED_BY)
    num_bytes = sum(value.nbytes for value in trained.net.state_dict().values())
    if num_bytes > _MOST_BYTES:
        raise ConfigError(
            _WANTED_BY, f"one file holds 2 GB, the net has {num_bytes / 1e9:.1f}; take pt2 or safetensors"
        )
    program = traced(trained, _WANTED_BY)
    with exporting(_WANTED_BY, trained.name):
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=["input"], output_names=["logits"]
        )
        assert exported is not None
        exported.model.metadata_props.update(metadata)
        packed: bytes = exported.model_proto.SerializeToString()
    return packed


def load(path: Path, trained: TrainedNet) -> Callable[[Tensor], Tensor]:
    """ONNX Runtime on one thread of the CPU."""
    runtime = extra("onnxruntime", _WANTED_BY)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda inputs: torch.from_numpy(session.run(None, {name: inputs.contiguous().numpy()})[0])
