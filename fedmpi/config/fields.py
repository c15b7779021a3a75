"""What sections of a configuration are made of: their base class, and the types of their fields."""

import re
from collections.abc import Iterable
from ctypes import c_float
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fedmpi.registry import by_path, is_in_full


class Section(BaseModel):
    """A frozen, strictly typed section: unknown keys are errors, nothing is converted silently."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # most commands use a few of fifty classes
        ser_json_inf_nan="constants",
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_empty(cls, values: Any) -> Any:
        """Reads `train:` and nothing as a section without keys."""
        return {} if values is None else values

    @field_validator("*")
    @classmethod
    def _is_in_range_in_float32(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses a number that float32, in which nets are computed, rounds to the end of a range that excludes it."""
        for bound in cls.model_fields[str(info.field_name)].metadata if isinstance(value, float) else ():
            rounded = c_float(value).value
            if rounded in (getattr(bound, "gt", None), getattr(bound, "lt", None)):
                text = "Input should not be {end} in float32, in which nets are computed"
                raise PydanticCustomError("float32", text, {"end": f"{rounded:g}"})
        return value

    def problems(self, config: Any) -> Iterable[tuple[str, str]]:
        """Yields (dotted key, message) of each setting that does not fit the other sections, though valid alone."""
        return ()


FREE: Any = {"changes_results": False}


def free(default: Any) -> Any:
    """Makes a field that a resumed run may change: it cannot change what is computed."""
    return Field(default, json_schema_extra=FREE)


def named(default: str) -> BeforeValidator:
    """Gives an inner section without a name its default one, before the name selects the section's class."""

    def with_name(values: Any) -> Any:
        return {"name": default, **(values or {})} if isinstance(values or {}, dict) else values

    return BeforeValidator(with_name)


MAX_NUMBER = 1e12
"""A limit that no real setting reaches; the product of three such numbers is finite in float32."""
Positive = Annotated[float, Field(gt=0, le=MAX_NUMBER, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
ShareOrZero = Annotated[float, Field(ge=0, le=1)]
PartialShare = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
CountOrZero = Annotated[int, Field(ge=0, le=2**31 - 1)]
MAX_TIERS = 32
"""A net is built and tested for each tier; the papers have five at most."""
# YAML has lists, frozen sections have tuples: the one conversion that is let through.
Shares = Annotated[tuple[Share, ...], Field(strict=False, min_length=1, max_length=MAX_TIERS)]
Counts = Annotated[tuple[Count, ...], Field(strict=False)]


def _path(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected a path without control characters")
    from fedmpi.store.files import user_path  # only where a path is given

    user_path(text)
    return text


def _place(text: str) -> str:
    if not is_in_full(text):
        raise ValueError(f"expected package.module:Class{by_path(text)}")
    return text


Task = Literal["classification", "token_classification", "regression", "multi_label"]
"""What a net predicts of an example: its class, each token's class, numbers, or which of some labels it has."""
_LABELS = ("classification", "multi_label")
METRICS = {
    **dict.fromkeys(("f1_macro", "auc"), _LABELS),
    **dict.fromkeys(("top5", "confusion"), _LABELS[:1]),
    **dict.fromkeys(("mse", "mae"), ("regression",)),
}
"""The metrics that have a name of their own (`learning/metrics.py`), and the tasks that they score."""


def _metric(text: str) -> str:
    if text not in METRICS and not is_in_full(text):
        raise ValueError(f"expected {', '.join(METRICS)} or package.module:function{by_path(text)}")
    return text


DeviceClass = Literal[
    "phone_high", "phone_mid", "phone_low", "esp32_s3", "raspberry_pi_4", "jetson_nano", "gtx_1080", "server"
]
"""The devices that have a name (`devices/profiles.csv`)."""
DeviceClasses = Annotated[tuple[DeviceClass, ...], Field(strict=False, min_length=1, max_length=MAX_TIERS)]
Metric = Annotated[str, Field(max_length=200), AfterValidator(_metric)]
Places = Annotated[tuple[Annotated[str, Field(max_length=200), AfterValidator(_place)], ...], Field(strict=False)]
Folder = Annotated[str, Field(max_length=4096), AfterValidator(_path)]

Patterns = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(strict=False)]
AT_ROUND = re.compile(r"(.+)@(\d{1,18})", re.DOTALL)
"""FOLDER@ROUND, a round of a run."""

DATA_PLACES = ("root", "path")
"""Options of data sets that say where the files are, which may differ between ranks and between starts."""
