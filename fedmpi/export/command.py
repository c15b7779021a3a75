"""One export, as the command does it: choose, write, measure, check, print."""

import logging
import os
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedmpi import costs
from fedmpi.command.manners import file_to_write, show
from fedmpi.errors import ConfigError
from fedmpi.export.formats import Answers, Pt2, format_of, input_text, preprocessing
from fedmpi.export.nets import Accuracy, TrainedNet, cut_net, net_of
from fedmpi.export.saved import saved_round
from fedmpi.methods.hermes import Hermes
from fedmpi.report.terminal import wrapped
from fedmpi.store.files import write_atomic
from fedmpi.store.units import percent, si, size
from fedmpi.tensors import frozen_values, total_bytes

BATCHES = (1, 64)
_TIMED_S = 0.5
_TOLERANCE = 2 / 10_000


def export(arguments: Namespace) -> int:
    """Returns the exit code: 1 where the file's accuracy is not the reported one. Raises `UserError`."""
    form = format_of(arguments.out, arguments.format)
    saved = saved_round(arguments.run, arguments.round, arguments.overrides)
    whole = net_of(saved, arguments.tier, arguments.client, dense=arguments.dense)
    if arguments.check and not whole.accuracy.num_tested:
        raise ConfigError("--check", f"compares classes of test examples, and {whole.name} has none")
    trained = cut_net(whole) if arguments.cut else whole
    path = write(trained, form, arguments.out)
    show(_about(path, trained, form))
    if arguments.cut:
        show(_uncut(whole, trained, form))
    show(_costs(path, trained, form))
    if not arguments.check:
        return 0
    checked = check_file(path, trained, form)
    show(_rows(f"  check      {checked.verdict()}"))
    return 0 if checked.holds else 1


def write(trained: TrainedNet, form: Pt2, out: str | os.PathLike[str] | None) -> Path:
    """Writes the net to `out`, or to a name of its own in this folder; returns the path. Raises `UserError`."""
    saved = trained.saved
    label = trained.name.replace(" ", "")
    if trained.is_cut:
        label = f"{label}-cut"
    path = file_to_write("--out", out or f"{saved.path.resolve().name}-{label}-round{saved.number}.{form.name}")
    write_atomic(path, form.pack(trained))
    return path


def _about(path: Path, trained: TrainedNet, form: Pt2) -> str:
    saved = trained.saved
    info = trained.saved.setup.data.info
    lines = [
        f"{path}: {trained.name} of {saved.path}, round {saved.number}, {trained.form}",
        f"  needs      {form.needs}",
        f"  load it    {form.loading.format(path=str(path))}",
        f"  input      {input_text(info)}: {preprocessing(info)}",
    ]
    if info.mean or info.std:
        lines.append(f"             mean {', '.join(map(str, info.mean))}; std {', '.join(map(str, info.std))}")
    if info.class_names:
        lines.append(f"  classes    {', '.join(info.class_names)}")
    if form.name == "onnx":
        meaning = "preprocessing, mean, std: how to make an input; output, class_names: what the answer means"
        lines.append(f"  metadata   metadata_props has {meaning}; data_digest, config_hash: what made it")
    return _rows(*lines, f"  {saved.setup.evaluation.scoring.name:9}  {_accuracy(trained.accuracy)}")


def _rows(*lines: str) -> str:
    """Returns lines of a name and, 11 columns on, what is said of it, in 80 columns."""
    return "\n".join(wrapped(*lines, hang=11))


def _accuracy(found: Accuracy) -> str:
    if not found.num_tested:
        reported = "not known: it has no test example of its own"
        return reported if found.reported is None else f"{percent(found.reported)} reported"
    own = f"{percent(found.share)} ({found.correct} of {found.num_tested})"
    if found.reported is None:
        return f"{own}, measured now: the run has not tested this net in this round"
    reported = f"{percent(found.reported)} reported"
    if found.in_batches:
        own = f"{own} with statistics of the training data, which the file has"
        return f"{own}; {reported}, with the statistics of each test batch"
    if round(found.reported * found.num_tested) != found.correct:
        return f"{own} on this machine; {reported}"
    return f"{own}, as reported"


def _uncut(whole: TrainedNet, small: TrainedNet, form: Pt2) -> str:
    """Says what the net costs where nothing is cut, in a file of the same format, and how its answers differ."""
    method = whole.saved.setup.method
    assert isinstance(method, Hermes) and whole.masks is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"uncut.{form.name}")
        path.write_bytes(form.pack(whole))
        lines = _costs(path, whole, form)
    kept = f"{100 * method.remaining_share(whole.masks):.1f} % of the parameters remain"
    return f"  uncut:\n{lines}\n{_rows(f'  cut        {kept}; {compared(small.net, whole).difference()}')}"


def _costs(path: Path, trained: TrainedNet, form: Pt2) -> str:
    answers = form.load(path, trained)
    shape = trained.saved.setup.data.info.example_shape
    counted = costs.measure(trained.net, trained.example())
    macs = "MACs not counted: it does not run without values"
    activations = "not counted"
    if counted.macs:
        macs = f"{si(counted.macs)} MACs an example"
        activations = f"{size(counted.activation_bytes)} an example"
    times = []
    for number in BATCHES:
        times.append(f"batch {number}: {latency(answers, trained.example()[:1].expand(number, *shape).clone())}")
    weights = total_bytes([*trained.net.parameters(), *trained.net.buffers()])
    frozen = {id(value): value.numel() for value in frozen_values(trained.net).values()}
    params = counted.params + sum(frozen.values())
    return _rows(
        f"  size       {size(path.stat().st_size)}; {params:,} parameters, {macs}",
        f"  latency    {'; '.join(times)} (median, and between the quartiles; one thread)",
        f"  memory     weights {size(weights)}, activations of all layers {activations}",
    )


@torch.no_grad()
def latency(answers: Answers, inputs: Tensor) -> str:
    """Times passes on one thread of the CPU: the median, and between the quartiles."""
    # Else the import warns on each machine that has CUDA's compiler and no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import benchmark

    given = {"answers": answers, "inputs": inputs}
    # By default the timer waits for whatever accelerator there is.
    timer = benchmark.Timer("answers(inputs)", globals=given, num_threads=1, timer=time.perf_counter)
    measured = timer.blocked_autorange(min_run_time=_TIMED_S)
    return f"{1e3 * measured.median:.3g} ms ({1e3 * measured.iqr:.2g})"


@dataclass(frozen=True)
class Checked:
    """Answers to the test examples of a net, beside its own."""

    own: Accuracy
    correct: int
    num_other: int
    """Predictions that are not the net's own."""
    largest_difference: float
    """Between two logits."""
    num_allowed: int
    """Predictions that may differ."""

    @property
    def holds(self) -> bool:
        return max(abs(self.correct - self.own.correct), self.num_other) <= self.num_allowed

    def verdict(self) -> str:
        counts = f"{self.correct} of {self.own.num_tested} right, expected {self.own.correct}"
        return f"{'ok' if self.holds else 'FAIL'}: {counts}; {self.difference()}"

    def difference(self) -> str:
        return f"{self.num_other} other predictions, outputs differ by {self.largest_difference:.2g} at most"


def check_file(path: Path, trained: TrainedNet, form: Pt2) -> Checked:
    """Tests a file. One that torch runs must give the reported number of correct answers exactly; one of ONNX, and one
    of a net that is cut, but for 2 of 10,000 predictions (at least one).
    """
    sums_otherwise = form.name == "onnx" or trained.is_cut
    num_allowed = max(1, int(trained.accuracy.num_tested * _TOLERANCE)) if sums_otherwise else 0
    return compared(form.load(path, trained), trained, num_allowed)


@torch.no_grad()
def compared(answers: Answers, trained: TrainedNet, num_allowed: int = 0) -> Checked:
    correct = 0
    num_other = 0
    largest = 0.0
    for inputs, targets in trained.batches():
        found = answers(inputs)
        own = trained.net(inputs)
        correct += int((found.argmax(1) == targets).sum())
        num_other += int((found.argmax(1) != own.argmax(1)).sum())
        largest = max(largest, float((found - own).abs().max()))
    return Checked(trained.accuracy, correct, num_other, largest, num_allowed)
