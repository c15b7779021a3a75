"""The sections of a configuration that do not depend on a method, a model or a data set.

`configs/README.md` is generated from the texts below the fields; a resumed run may change what is `free`. This module
imports nothing heavier than pydantic: a config is checked in well under a second, before torch or MPI load.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from fedmpi import registry
from fedmpi.config.fields import (
    DATA_PLACES,
    FREE,
    Count,
    CountOrZero,
    Counts,
    DeviceClass,
    DeviceClasses,
    Folder,
    Metric,
    NotNegative,
    Places,
    Positive,
    Section,
    Share,
    ShareOrZero,
    free,
    named,
)
from fedmpi.config.yaml_text import dotted, flow, found, leaves, parse
from fedmpi.errors import UnknownError, counted
from fedmpi.registry import import_object, is_in_full

_LATER = """
method: {aggregate: mean, spectra: false, spectral_init: true, distillation_weight: 1.0, distillation_temperature: 1.0}
clients: {sampling: uniform, availability: "", dropout: 0.0, work: {partial: 0.0, least: 0.1}}
train: {local_steps: 0, loss: auto}
model: {weights: "", weights_skip: [], trained: []}
"""
# Keys that came after runs were archived: a config's hash leaves out the value that does what those did.
_DEFAULTS_LATER = dict(leaves(parse(_LATER).value))


class Work(Section):
    """Sets how much of its local work a client does in a round."""

    partial: ShareOrZero = 0.0
    """Probability that a client does only a part of its local steps, drawn in each round (FedProx's stragglers)."""
    least: Share = 0.1
    """The part is drawn uniformly between this share and all of the steps; it is one step or more."""


class Clients(Section):
    """Sets who takes part, and with which capacity."""

    count: Count = 20
    """Registered clients; the training set is partitioned among them."""
    per_round: Count = 10
    """Clients sampled in each round without replacement: the cohort."""
    sampling: Annotated[str, Field(max_length=200)] = "uniform"
    """How the cohort is drawn: `uniform`; `by_size`, with probabilities in proportion to the numbers of training
    examples (FedProx's sampling, for `method.weighting=uniform`; a plan that does not know the sizes draws uniformly);
    or `package.module:function(round, seed)`, which returns at most `per_round` client numbers, always the same.
    """
    availability: Folder = ""
    """A CSV file with lines `client,from,to`: a client can be drawn in these rounds only. Fewer clients than
    `per_round` all take part; a round without any changes nothing. Empty: clients are always there.
    """
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client trains, but its upload is lost: it changes neither the server nor its own memory."""
    work: Work = Work()
    tier_blocks: Counts = ()
    """Clients per tier, largest capacity first, in order of client numbers; empty: equal blocks. Not with `fits`."""
    tier_assignment: Literal["fixed", "dynamic", "fits"] = "fixed"
    """Tiers are `fixed`, `dynamic` (drawn every round by the blocks' shares), or the largest that `fits` a device."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        if self.per_round > self.count:
            yield "clients.per_round", f"{self.per_round}; allowed: 1 to clients.count, which is {self.count}"
        tiers = len(getattr(config.method, "tiers", (1.0,)))
        has = f"method {config.method.name!r} has {counted(tiers, 'tier')}"
        blocks = self.tier_blocks
        if not blocks and self.count < tiers:
            yield "clients.count", f"{counted(self.count, 'client')}, but {has}; allowed: one or more for each tier"
        wrong = []
        if blocks and len(blocks) != tiers:
            wrong.append(f"{counted(len(blocks), 'block')}, but {has}")
        if blocks and sum(blocks) != self.count:
            wrong.append(f"the blocks have {counted(sum(blocks), 'client')}, but clients.count is {self.count}")
        if blocks and self.tier_assignment == "fits" and not getattr(config.method, "needs_blocks", False):
            wrong.append(f"{list(blocks)}, but with clients.tier_assignment=fits devices decide")
        for text in wrong:
            yield "clients.tier_blocks", f"{text}; change them, or give []"
        if self.sampling not in ("uniform", "by_size") and (problem := _no_function(self.sampling)):
            yield "clients.sampling", f"{problem}; allowed: uniform, by_size, package.module:function"


class StepSchedule(Section):
    """Round t (from 1) trains with lr * factor^(number of milestones <= t - 1)."""

    name: Literal["step"] = "step"
    """Multiplies the learning rate by `factor` at milestones."""
    milestones: Counts = ()
    """Rounds after which the learning rate drops; empty means a constant rate."""
    factor: Share = 0.1
    """What the rate is multiplied by at each milestone."""


class CosineSchedule(Section):
    """Round t of T trains with 1e-4 + (lr - 1e-4) * (1 + cos(pi (t - 1) / T)) / 2."""

    name: Literal["cosine"] = "cosine"
    """Lowers the rate along half a cosine from `train.lr` down to 1e-4 over all rounds."""


Schedule = Annotated[StepSchedule | CosineSchedule, Field(discriminator="name"), named("step")]


class Train(Section):
    """Sets local training, the same for every method."""

    local_epochs: Count = 10
    """Passes over a client's data in each round it takes part in."""
    local_steps: CountOrZero = 0
    """Local steps in each round in place of `local_epochs`, as many for clients of all sizes (FedHM's E). 0: none."""
    batch_size: Count = 64
    """Examples in a mini-batch; a smaller last one stays (a single example joins the batch before it)."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """`sgd` with momentum, or `adamw` (betas 0.9 and 0.999, eps 1e-8), begun anew for every client and round."""
    lr: Positive = 0.1
    """The learning rate in the first round (AdamW: 0.001 is usual)."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """SGD's momentum."""
    clip_norm: Annotated[float, Field(gt=0)] = math.inf
    """Longest gradient (Euclidean norm over the whole net) of a step; `.inf` does not clip."""
    drop_last: bool = False
    """Leave out a last batch that is smaller than `batch_size`, as PriSM's code does."""
    weight_decay: NotNegative = 1e-4
    """L2 on every parameter, BatchNorm and biases included (and lambda of a method's Frobenius decay)."""
    schedule: Schedule = StepSchedule()
    """How the learning rate changes from round to round."""
    loss: Annotated[str, Field(max_length=200)] = "auto"
    """`auto`: cross-entropy for classes, mean squared error for numbers, binary cross-entropy for labels. Or
    `package.module:function(outputs, targets)`, for tests, too: float32 (B, outputs), of tokens (B, length, outputs),
    and targets (classes int64 (B,) or (B, length), -100 for none, else float32 (B, outputs)) to the mean loss or one of
    each example (B,).
    """
    masked_loss: bool = False
    """Masked cross-entropy (HeteroFL, FedHM): training overwrites logits of classes that the client lacks by 0."""
    augment: bool = True
    """Random crop and flip where the data set has them."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """`bf16` and `fp16` train under autocast, `fp16` with a scaled loss (for V100); all else stays float32."""
    on_divergence: Literal["fail", "drop", "upload_last_finite"] = "fail"
    """A client that diverges ends the run, is left out of the round, or uploads its last finite parameters."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        if self.loss != "auto" and (problem := _no_function(self.loss)):
            yield "train.loss", f"{problem}; allowed: auto, package.module:function of (outputs, targets)"
        if self.loss != "auto" and self.masked_loss:
            yield "train.masked_loss", f"true masks cross-entropy, and train.loss is {self.loss}; allowed: false"


def _no_function(name: str) -> str:
    """Returns what is wrong with a name that should be `package.module:function`, '' if nothing is."""
    try:
        function = import_object(name) if ":" in name else None
    except UnknownError as error:
        return str(error)
    is_function = callable(function) and not isinstance(function, type)
    return "" if is_function else f"{found(name)} is no function"


VALIDATION_SHARE = 0.2
"""The share of a client's examples that `evaluation.on: validation` tests on."""


class Evaluation(Section):
    """Sets how the nets of every tier are tested."""

    on: Literal["test", "validation"] = "test"
    """`test`: on the data set's test examples. `validation`, for choosing settings: on a fifth of every client's
    training examples, class by class, on which nobody trains (2 or more for each; a client with fewer trains on all).
    """
    every: Count = 1
    """Rounds between evaluations; the last round is always evaluated."""
    batch_size: Count = 64
    """Test batch size; under batch statistics results depend on it."""
    bn: Literal["batch", "restat", "milestone"] = "restat"
    """BatchNorm in tests has statistics of each test batch, those of all training data (`restat`), or the first up to
    the round of the first milestone and the second after it (FedHM, C.2).
    """
    personal: Literal["auto", "on", "off"] = "auto"
    """Test every client's own net on its own test data; `auto`: where a method has such nets."""
    personal_test: Literal["auto", "matching", "classes", "groups"] = "auto"
    """A client's own test data. `matching`: test examples divided by the clients' training classes, each used once.
    `classes`: all of the client's classes. `groups`: all of its writers, subjects or roles. `auto`: `groups` where the
    partition is by these and test examples have the same ones, else `matching`.
    """
    clients: CountOrZero = 0
    """How many clients' own nets are tested, the same random ones in every round; 0 tests all."""
    metrics: Annotated[tuple[Metric, ...], Field(strict=False)] = free(())
    """More scores of each tier's net: `f1_macro`, `auc` (one against the rest), for classes `top5` and
    `confusion`, for numbers `mse` and `mae`, or `package.module:function` from arrays of targets (classes int64 (N,),
    else float32 (N, outputs)) and outputs (float32 (N, outputs)) to a number.
    """

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        if self.personal_test == "groups" and not config.data.used().shares_groups:
            text = f"groups, but the test examples of {config.data.name} are not of its training examples' groups"
            yield "evaluation.personal_test", f"{text}; allowed: auto, matching, classes"
        if twice := [name for name in dict.fromkeys(self.metrics) if self.metrics.count(name) > 1]:
            yield "evaluation.metrics", f"{twice[0]} is given twice; leave one out"
        if self.clients > (count := config.clients.count):
            text = f"{self.clients} clients are to be tested, but clients.count is {count}"
            yield "evaluation.clients", f"{text}; 0 tests all"


class Stop(Section):
    """Ends a run before its last round, by the accuracy (r2 of a regression) of the largest tested net, or the mean
    over clients' own where they have no common one. The run counts as finished.
    """

    accuracy: ShareOrZero = free(0.0)
    """Ends the run at a test with this accuracy or more; 0: no target."""
    patience: CountOrZero = free(0)
    """Ends the run after this many tests in a row without a new best one; 0: never."""


class Mpi(Section):
    """Sets what runs where. Results depend on three of these keys alone, which say so."""

    exchange: Literal["gather", "reduce", "auto"] = free("gather")
    """`gather`: factors travel to rank 0, which lifts and adds. `reduce`: workers lift, sums travel. `auto`: `reduce`
    on one rank, and where several workers have 8 clients each.
    """
    server_trains: bool = free(False)
    """Let rank 0 train clients, too."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where clients train; `auto` takes GPUs if every worker has one. Results depend on it."""
    server_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where factorization and lifting run; `auto` takes a GPU if all ranks have one. Results depend on it."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Compute threads of each rank. Results depend on it."""
    time_limit_s: NotNegative = free(0.0)
    """Seconds of a start: before a round that would not end in time the run saves and stops with exit code 75. 0: no
    limit but the Slurm job's (`SLURM_JOB_END_TIME`), which always counts.
    """
    spare_time_s: NotNegative = free(30.0)
    """Seconds of that which stay free for saving and ending."""
    min_ranks: Count = free(1)
    """With fewer ranks a job does not start, or after a loss (`mpirun --with-ft ulfm`) saves and stops with code 75."""
    round_timeout_s: NotNegative = free(0.0)
    """Seconds of work in a round after which a rank counts as hung and ends itself; after a loss twice. 0: never."""
    startup_timeout_s: NotNegative = free(600.0)
    """Seconds that finding the other ranks may take at the start; with `round_timeout_s` also later. 0: no limit."""


class Output(Section):
    """Sets what is written, and how often."""

    dir: Folder = free("runs")
    """The folder that new run directories are made in."""
    checkpoint_every: Count = free(1)
    """Rounds between checkpoints; the last round is always saved."""
    keep_checkpoints: Count = free(2)
    """How many of the newest checkpoints stay, beside that of the best saved round."""
    tensorboard: bool = free(True)
    """Write TensorBoard events."""
    report: bool = free(True)
    """Write `report/report.html` at the end: the run on one page (`fedmpi show`)."""
    observers: Places = free(())
    """Classes, as `package.module:Class`, that hear of the run on rank 0: see `fedmpi/report/README.md`."""
    progress: Literal["plain", "off"] = free("plain")
    """`plain`: a line for each round, and now and then one within a long round."""


class Change(Section):
    """Gives some clients another device in the middle of a run (FDNNC's changing devices)."""

    round: CountOrZero = 0
    """The round from which on they have it; 0: never."""
    share: ShareOrZero = 0.5
    """Probability that a client's device changes then, to another of the fleet."""


class Devices(Section):
    """Sets the devices of clients and server: a simulated clock, energy and memory."""

    name: Literal["off", "lognormal", "classes", "file"] = "off"
    """`lognormal`: around `median`. `classes`: one of these each. `file`: rows of `path` in turn. `off`: no clock."""
    median: DeviceClass = "phone_mid"
    """The device whose speed, memory and link `lognormal` multiplies, each by exp(spread z), z standard normal."""
    spread: Annotated[float, Field(ge=0, le=3)] = 0.5
    """That spread."""
    classes: DeviceClasses = ("phone_high", "phone_mid", "phone_low")
    """The devices of `classes` (`fedmpi/devices/README.md`)."""
    shares: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    """How likely a client has each of `classes`, in proportion; empty: all alike."""
    path: Folder = ""
    """The CSV file of `file`, with the columns of `fedmpi/devices/profiles.csv`."""
    server: DeviceClass = "server"
    """The server's device; the clients of a round share its link."""
    deadline_s: NotNegative = 0.0
    """Simulated seconds after which the server ends a phase; clients that would be late are not trained. 0: none."""
    too_small: Literal["refuse", "drop"] = "refuse"
    """If no tier (without `fits`: its own) goes into a client's memory, refuse the run, or drop the client."""
    change: Change = Change()

    @property
    def is_on(self) -> bool:
        return self.name != "off"

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        if self.shares and len(self.shares) != len(self.classes):
            given = f"{counted(len(self.shares), 'share')}, but devices.classes has {len(self.classes)}"
            yield "devices.shares", f"{given}; give one for each, or [] for equal ones"
        if not self.is_on and self != type(self)():
            yield "devices.name", "off, so no other setting of devices counts; set lognormal, classes or file"
        if self.name == "file" and not self.path:
            yield "devices.path", "none, but devices.name=file; give the CSV file"
        owned = {"lognormal": ("median", "spread"), "classes": ("classes", "shares"), "file": ("path",)}
        for name, keys in owned.items() if self.is_on else ():
            for key in keys:
                if name != self.name and getattr(self, key) != type(self).model_fields[key].default:
                    yield f"devices.{key}", f"goes with devices.name={name}, but that is {self.name}; leave it out"
        if self.change.round and self.name == "classes" and len(set(self.classes)) == 1:
            yield "devices.change.round", "devices cannot change where all are of one class; name two or more"
        if not self.is_on and config.clients.tier_assignment == "fits":
            yield "clients.tier_assignment", "fits needs devices; set devices.name=lognormal, classes or file"


NAMED_SECTIONS = ("data", "partition", "model", "method")
"""Sections whose `name` selects their options (`fedmpi.registry`); the other sections stand in this file."""
_OTHER_CODE = (("method", "aggregate"), ("clients", "sampling"), ("train", "loss"), ("data", "tokenizer"))
_CODE_OF_TRAINING = (("output", "observers"), ("evaluation", "metrics"))
"""The keys of lists of the user's code, which only a run that trains imports."""


def named_in_full(values: Mapping[str, Any], *, trains: bool = True) -> dict[tuple[str, ...], str]:
    """Returns what a config names as `package.module:Name`, by key, in the words that a resume repeats."""
    plain = dict(leaves(values))
    code = (*((section, "name") for section in NAMED_SECTIONS), *_OTHER_CODE)
    names: dict[tuple[str, ...], str] = {key: plain[key] for key in code if is_in_full(plain.get(key))}
    for key in _CODE_OF_TRAINING if trains else ():
        if any(map(is_in_full, plain.get(key) or ())):
            names[key] = f"[{','.join(plain[key])}]"
    return names


class Config(Section):
    """A whole run, validated. Two of equal `hash()` compute the same bits on devices of the same kinds."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of everything random: partition, initial values, cohorts, tiers, batches, augmentation."""
    rounds: Count = 100
    """Rounds of the run. A resumed run may ask for more unless the schedule depends on them (cosine)."""
    # The name of each of these four selects its options class.
    data: Any = Field({}, validate_default=True)
    """The data set."""
    partition: Any = Field({}, validate_default=True)
    """How the training set is divided among the clients."""
    model: Any = Field({}, validate_default=True)
    """The net that the server keeps."""
    method: Any = Field({}, validate_default=True)
    """The federated method."""
    clients: Clients = Clients()
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    stop: Stop = Stop()
    devices: Devices = Devices()
    mpi: Mpi = Mpi()
    output: Output = Output()
    _where: str = PrivateAttr(default="config")
    _choices: frozenset[tuple[str, ...]] = PrivateAttr(default=frozenset())

    @field_validator(*NAMED_SECTIONS, mode="before")
    @classmethod
    def _by_name(cls, values: Any, info: ValidationInfo) -> Section:
        values = {} if values is None else values
        if not isinstance(values, dict):
            raise PydanticKnownError("model_type", {"class_name": "Section"})
        try:
            options: type[Section] = registry.options(str(info.field_name), values.get("name"))
        except UnknownError as error:
            raise PydanticCustomError("unknown_name", "{why}", {"why": str(error)}) from None
        return options.model_validate(values)

    @property
    def where(self) -> str:
        """Returns the file that the config was read from, for messages."""
        return self._where

    def __repr__(self) -> str:
        names = f"{self.method.name} with {self.model.name} on {self.data.name}"
        return f"Config({names}, {counted(self.rounds, 'round')}, seed {self.seed}; to_dict() has every key)"

    __str__ = __repr__

    def is_chosen(self, *path: str) -> bool:
        """Returns whether the user's file or words set this key; otherwise it has a default."""
        return path in self._choices

    def without_needless_mask(self, is_new: bool) -> Config:
        """Drops `train.masked_loss` where no paper has it (`is_new`), or there is no cross-entropy to mask."""
        train = self.train
        if not train.masked_loss or (not is_new and train.loss == "auto" and self.data.used().task == "classification"):
            return self
        return self.model_copy(update={"train": train.model_copy(update={"masked_loss": False})})

    @property
    def sections(self) -> dict[str, Section]:
        return {name: getattr(self, name) for name in type(self).model_fields if name not in ("seed", "rounds")}

    def to_dict(self) -> dict[str, Any]:
        """Returns plain numbers, text, lists and dicts, which `load` accepts as YAML."""
        return self.model_dump(mode="json")

    def hash(self) -> str:
        """Returns the SHA-256 of all keys that change results."""
        deciding = self._deciding(self.to_dict())
        if deciding.get(("mpi", "server_device")) == "auto":
            deciding["mpi", "server_device"] = "cpu"  # as `auto` says nothing of the device
        values = {".".join(key): canonical(value) for key, value in deciding.items()}
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def diff(self, saved: Mapping[str, Any]) -> list[str]:
        """Returns a line for each key that changes results and differs from a saved `to_dict()`."""
        ours = self._deciding(self.to_dict())
        theirs = self._deciding(saved)
        changed = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        # A section of another name has other keys: its name says it all.
        renamed = {key[:-1] for key in changed if key[-1] == "name"}
        lines = []
        for key in changed:
            sections = {key[:length] for length in range(len(key))}
            if key[-1] == "name" or not sections & renamed:
                lines.append(f"{dotted(key)}: run has {found(theirs.get(key))}, you ask {found(ours.get(key))}")
        return lines

    def _deciding(self, plain: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
        free_keys = set(self.free_keys())
        if self.train.schedule.name != "cosine":
            free_keys.add(("rounds",))
        deciding = {key: value for key, value in leaves(plain) if key[:2] not in free_keys}
        if deciding.get(("devices", "name"), "off") == "off":
            deciding = {key: value for key, value in deciding.items() if key[0] != "devices"}
        return {
            key: value for key, value in deciding.items() if key not in _DEFAULTS_LATER or value != _DEFAULTS_LATER[key]
        }

    @classmethod
    @cache
    def free_keys(cls) -> frozenset[tuple[str, ...]]:
        """Returns every key whose field is `free`: places and conveniences, which do not change results."""
        keys = [("data", place) for place in DATA_PLACES]
        for section, field in cls.model_fields.items():
            for key, option in getattr(field.annotation, "model_fields", {}).items():
                if option.json_schema_extra == FREE:
                    keys.append((section, key))
        return frozenset(keys)


def settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the text of each of a config's plain values that decides results and is no seed, by its dotted key."""
    without = {("seed",), *Config.free_keys()}
    return {dotted(path): flow(value) for path, value in leaves(values) if path[:2] not in without}


def canonical(value: Any) -> Any:
    """Makes 1 of 1.0: they are the same setting."""
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
