"""Packs a net into a file, and loads the file: pt2, safetensors and ONNX."""

import copy
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import fedmpi
from fedmpi.data.dataset import DataInfo
from fedmpi.errors import ConfigError, one_line
from fedmpi.export.nets import TrainedNet

FormatName = Literal["pt2", "safetensors", "onnx"]
Answers = Callable[[Tensor], Tensor]
"""Inputs (B, ...) -> logits (B, num_classes)."""
_OUTPUTS = {
    "classification": "a logit for each class; the largest is the answer",
    "token_classification": "for each token a logit for each class; the largest is the answer",
    "multi_label": "a logit for each label; the answer is those above 0",
    "regression": "the predicted numbers",
}
# Else the runtime notes its use, and leaves a file in the temporary folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class Pt2:
    """The net as a graph of torch's operators (`torch.export`)."""

    name: FormatName = "pt2"
    needs = "torch alone"
    loading = "torch.export.load({path!r}).module()"
    """Code that gives the net."""

    def pack(self, trained: TrainedNet) -> bytes:
        """Returns the file. Raises `ConfigError` where the net has no such form, or a package is missing."""
        file = io.BytesIO()
        with _tracing(self.name, trained):
            torch.export.save(_traced(trained), file, extra_files={"metadata.json": json.dumps(metadata(trained))})
        return file.getvalue()

    def load(self, path: Path, trained: TrainedNet) -> Answers:
        """Returns the function that the file computes. Raises `ConfigError` where a package is missing."""
        return torch.export.load(path).module()


class Safetensors(Pt2):
    """The state dict by torch's own names."""

    name = "safetensors"
    needs = "torch, safetensors and the net's code, as the file has its values only; pt2 needs no code"
    loading = "net.load_state_dict(safetensors.torch.load_file({path!r})), of a net with the same layers"

    def pack(self, trained: TrainedNet) -> bytes:
        """Packs a tensor of two names twice, because a plain `load_state_dict` wants both."""
        tensors = {name: value.detach().contiguous().clone() for name, value in trained.net.state_dict().items()}
        packed: bytes = _package("safetensors.torch", self.name).save(tensors, metadata=metadata(trained))
        return packed

    def load(self, path: Path, trained: TrainedNet) -> Answers:
        net = copy.deepcopy(trained.net)
        net.load_state_dict(_package("safetensors.torch", self.name).load_file(path))
        return net


class Onnx(Pt2):
    """One ONNX file, whose products ONNX Runtime sums in another order."""

    name = "onnx"
    needs = "onnxruntime and numpy"
    loading = "onnxruntime.InferenceSession({path!r}), then run(None, {{'input': x}})[0]"

    def pack(self, trained: TrainedNet) -> bytes:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            _package(package, self.name)
        names: dict[str, Any] = {"input_names": ["input"], "output_names": ["logits"]}
        with _tracing(self.name, trained):
            exported = torch.onnx.export(_traced(trained), dynamo=True, verbose=False, **names)
            assert exported is not None
            exported.model.metadata_props.update(metadata(trained))
            packed: bytes = exported.model_proto.SerializeToString()
            self._answers(packed)(trained.example())  # of an LSTM with proj_size torch makes a file that does not run
        return packed

    def load(self, path: Path, trained: TrainedNet) -> Answers:
        return self._answers(path)

    def _answers(self, file: Path | bytes) -> Answers:
        runtime = _package("onnxruntime", self.name)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # an error is raised, too
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return lambda inputs: torch.from_numpy(session.run(None, {"input": inputs.contiguous().numpy()})[0])


FORMATS: dict[FormatName, Pt2] = {form.name: form for form in (Pt2(), Safetensors(), Onnx())}


def format_of(out: str | os.PathLike[str] | None, asked: FormatName | None) -> Pt2:
    """Returns the format of a file: the one asked for, else that of the file's ending, else pt2.

    Raises ConfigError where the ending is another format's, or nobody's. A name may end in a number: `net-0.25`.
    """
    ending = Path(out or "").suffix
    by_ending: dict[str, FormatName] = {f".{name}": name for name in FORMATS}
    if ending not in by_ending and ending[1:2].isalpha():
        raise ConfigError("--out", f"no format ends in {ending}; allowed: {', '.join(by_ending)}, or no ending")
    found = by_ending.get(ending)
    if asked and found and asked != found:
        raise ConfigError("--out", f"ends in {ending}, but the format is {asked}; leave one of them out")
    return FORMATS[asked or found or "pt2"]


def _package(name: str, form: FormatName) -> Any:
    """Imports it. Raises `ConfigError` that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        top = name.partition(".")[0]
        raise ConfigError(f"--format={form}", f"needs the package {top}; pip install 'fedmpi[export]'") from None


@torch.no_grad()
def _traced(trained: TrainedNet) -> torch.export.ExportedProgram:
    """Returns the graph, with a free batch size."""
    batch = ({0: torch.export.Dim.DYNAMIC},)
    return torch.export.export(trained.net, (trained.example(),), dynamic_shapes=batch)


@contextmanager
def _tracing(form: FormatName, trained: TrainedNet) -> Iterator[None]:
    """Turns a failure within the block into a `ConfigError` of one line, and hides torch's own warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        # To stderr torch prints the graph so far, where a net cannot be traced.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        cause = error.__cause__ or error
        why = one_line(f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}")
        advice = "take --format=safetensors, which needs no graph"
        raise ConfigError(f"--format={form}", f"the net of {trained.name} cannot be traced: {why}; {advice}") from error
    finally:
        logging.disable(before)


def input_text(info: DataInfo) -> str:
    """Returns the type and shape of an input: `float32 (batch, 1, 8, 8)`."""
    dtype = "int64" if info.kind == "tokens" else "float32"
    return f"{dtype} ({', '.join(['batch', *map(str, info.example_shape)])})"


def preprocessing(info: DataInfo) -> str:
    """Says how an example becomes an input."""
    if info.kind == "tokens":
        return f"numbers of tokens, 0 to {info.vocabulary_size - 1}"
    if info.kind == "vector":
        return "the numbers as they are"
    if not (info.mean or info.std):
        return "pixels 0 to 255, channels first, as x / 255"
    return "pixels 0 to 255, channels first, as (x / 255 - mean) / std of the channel"


def metadata(trained: TrainedNet) -> dict[str, str]:
    """Returns name -> text; lists and numbers are JSON."""
    saved = trained.saved
    accuracy = trained.accuracy
    config = saved.setup.config
    info = saved.setup.data.info
    found: dict[str, object] = {
        "format": "fedmpi net 1",
        "net": trained.name,
        "form": trained.form,
        "cut": trained.is_cut,
        "input": input_text(info),
        "preprocessing": preprocessing(info),
        "input_shape": list(info.example_shape),
        "mean": list(info.mean),
        "std": list(info.std),
        "output": f"float32 (batch, {', '.join(map(str, info.output_shape))}): {_OUTPUTS[info.task]}",
        "classes": info.num_classes,
        "class_names": list(info.class_names),
        "round": saved.number,
        "accuracy": {**asdict(accuracy), "share": accuracy.share} if accuracy.num_tested else None,
        "method": config.method.name,
        "model": config.model.name,
        "data": config.data.name,
        "seed": config.seed,
        "data_digest": saved.setup.dataset.digest,
        "config_hash": saved.snapshot.config_hash,
        "fedmpi": fedmpi.__version__,
    }
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}
