"""One export, as the command does it: choose, write, measure, check, print."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from pathlib import Path

from fedmpi.command.manners import file_to_write, show
from fedmpi.errors import ConfigError
from fedmpi.export.choices import Form, format_of, tier_name
from fedmpi.export.formats import FORMATS, Pt2, input_text, preprocessing, usage
from fedmpi.export.measure import BATCHES, Checked, Measured, check, compared, measure
from fedmpi.export.nets import Accuracy, TrainedNet, cut_net, net_of_client, net_of_tier
from fedmpi.export.saved import SavedRound, saved_round
from fedmpi.methods.hermes import Hermes
from fedmpi.report.terminal import wrapped
from fedmpi.store.files import write_atomic
from fedmpi.store.units import si, size

# The column in which what is said of a name begins.
_SAID_AT = 13


def export(arguments: Namespace) -> int:
    """The exit code: 1 where the file's accuracy is not the reported one. Raises `UserError`."""
    form = FORMATS[format_of(arguments.out, arguments.format)]
    saved = saved_round(arguments.run, arguments.round, arguments.overrides)
    trained = net_of(saved, arguments.tier, arguments.client, arguments.form)
    if arguments.check and not trained.accuracy.num_tested:
        raise ConfigError("--check", f"{trained.name} has no test example of its own, so there is nothing to compare")
    whole, trained = trained, cut_net(trained) if arguments.cut else trained
    path = write(trained, form, arguments.out)
    show(_about(path, trained, form))
    if trained.is_cut:
        show(_uncut(whole, trained, form))
    show(_costs(path, measure(trained, form.load(path, trained))))
    checked = check(path, trained, form) if arguments.check else None
    if checked:
        show(_rows(f"  check      {verdict(checked)}"))
    code = usage(path, trained, form, arguments.overrides)
    show("\n".join(["  use it:", *(f"    {line}" for line in code.splitlines())]))
    return 1 if checked and not checked.holds else 0


def net_of(saved: SavedRound, tier: str | float | None, client: int | None, form: Form | None) -> TrainedNet:
    """The net of a client, or of a tier (both None: the only one). Raises `UserError`."""
    if client is not None and tier is not None:
        raise ConfigError("--client", f"a net is of a client or of a tier, got both client {client} and tier {tier}")
    if client is not None:
        return net_of_client(saved, client, form)
    return net_of_tier(saved, None if tier is None else tier_name(tier), form)


def write(trained: TrainedNet, form: Pt2, out: str | os.PathLike[str] | None) -> Path:
    """Writes the net to `out`, or to a name of its own in this folder; the path. Raises `UserError`."""
    saved = trained.saved
    name = f"{saved.path.resolve().name}-{trained.label}-round{saved.number}{form.suffix}"
    path = file_to_write("--out", out or name)
    write_atomic(path, form.pack(trained))
    return path


def _about(path: Path, trained: TrainedNet, form: Pt2) -> str:
    saved, info = trained.saved, trained.saved.setup.data.info
    lines = [
        f"{path}: {trained.name} of {saved.path}, round {saved.number}, {trained.form}",
        f"  needs      {form.needs}",
        f"  input      {input_text(info)}: {preprocessing(info)}",
    ]
    if info.mean or info.std:
        lines.append(f"             mean {', '.join(map(str, info.mean))}; std {', '.join(map(str, info.std))}")
    return _rows(*lines, f"  accuracy   {_accuracy(trained.accuracy)}")


def _rows(*lines: str) -> str:
    """Lines of a name and what is said of it, in 80 columns."""
    return "\n".join(wrapped(*lines, hang=_SAID_AT - 2))


def _accuracy(found: Accuracy) -> str:
    if not found.num_tested:
        return "not known: it has no test example of its own"
    own = f"{100 * found.share:.2f} % ({found.correct} of {found.num_tested})"
    if found.reported is None:
        return f"{own}, measured now: the run has not tested this net in this round"
    if found.in_batches:
        reported = f"{100 * found.reported:.2f} % reported, with the statistics of each test batch"
        return f"{own} with statistics of the training data, which the file has; {reported}"
    if round(found.reported * found.num_tested) != found.correct:
        return f"{own} on this machine; {100 * found.reported:.2f} % reported"
    return f"{own}, as reported"


def _uncut(whole: TrainedNet, small: TrainedNet, form: Pt2) -> str:
    """What the net costs where nothing is cut, in a file of the same format, and how its answers differ."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"uncut{form.suffix}")
        path.write_bytes(form.pack(whole))
        costs = _costs(path, measure(whole, form.load(path, whole)))
    _, num_other, largest = compared(small.net, whole)
    method = whole.saved.setup.method
    assert isinstance(method, Hermes) and whole.masks is not None
    tested = (
        f"  cut        the mask keeps {100 * method.remaining_share(whole.masks):.1f} % of the parameters; {num_other} "
        f"other predictions of {whole.accuracy.num_tested}, outputs differ by {largest:.2g} at most"
    )
    return f"  uncut:\n{costs}\n{_rows(tested)}"


def _costs(path: Path, found: Measured) -> str:
    times = [f"batch {number}: {_milliseconds(found, number)}" for number in BATCHES]
    peaks = [f"batch {number}: {size(found.peak_bytes[number])}" for number in BATCHES]
    return _rows(
        f"  size       {size(path.stat().st_size)}; {found.params:,} parameters, {si(found.macs)} MACs an example",
        f"  latency    {'; '.join(times)} (median, first to last decile; one thread)",
        f"  memory     {'; '.join(peaks)} (weights and the most tensors alive at once, counted in torch)",
    )


def _milliseconds(found: Measured, number: int) -> str:
    taken = found.latency[number]
    return f"{1e3 * taken.median_s:.3g} ms ({1e3 * taken.low_s:.3g} to {1e3 * taken.high_s:.3g})"


def verdict(found: Checked) -> str:
    """The test of a file, in words."""
    wanted = f"{found.correct} of {found.num_tested} right, expected {found.expected}"
    others = f"{found.num_other} other predictions, outputs differ by {found.largest_difference:.2g} at most"
    return f"{'ok' if found.holds else 'FAIL'}: {wanted}; {others}"
