"""What a file says of its net, as texts: how to prepare an input, what the net is, how accurate it was measured."""

from __future__ import annotations

import json
from dataclasses import asdict

import fedmpi
from fedmpi.data.dataset import DataInfo
from fedmpi.export.trained import TrainedNet

FORMAT = "fedmpi net 1"


def input_text(info: DataInfo) -> str:
    """The type and shape of an input: `float32 (batch, 1, 8, 8)`."""
    dtype = "int64" if info.kind == "tokens" else "float32"
    return f"{dtype} ({', '.join(['batch', *map(str, info.example_shape)])})"


def preprocessing(info: DataInfo) -> str:
    """How an example becomes an input."""
    if info.kind == "tokens":
        return f"numbers of tokens, 0 to {info.vocabulary_size - 1}"
    if info.kind == "vector":
        return "the numbers as they are"
    if not (info.mean or info.std):
        return "pixels 0 to 255, channels first, as x / 255"
    return "pixels 0 to 255, channels first, as (x / 255 - mean) / std of the channel"


def metadata(trained: TrainedNet) -> dict[str, str]:
    """Name -> text; lists and numbers are JSON."""
    saved, accuracy = trained.saved, trained.accuracy
    config, info = saved.setup.config, saved.setup.data.info
    found: dict[str, object] = {
        "format": FORMAT,
        "net": trained.name,
        "form": trained.form,
        **({"cut": True} if trained.is_cut else {}),
        "input": input_text(info),
        "preprocessing": preprocessing(info),
        "input_shape": list(info.example_shape),
        "mean": list(info.mean),
        "std": list(info.std),
        "output": f"float32 (batch, {info.num_classes}): a logit for each class; the largest is the answer",
        "classes": info.num_classes,
        "round": saved.number,
        "accuracy": {**asdict(accuracy), "share": accuracy.share} if accuracy.num_tested else None,
        "method": config.method.name,
        "model": config.model.name,
        "data": config.data.name,
        "seed": config.seed,
        "data_digest": saved.setup.data_digest,
        "config_hash": saved.snapshot.config_hash,
        "fedmpi": fedmpi.__version__,
    }
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}
