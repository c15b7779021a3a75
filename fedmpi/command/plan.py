"""`--plan`: what a run of this config would cost on this many ranks. Trains nothing.

It reads data only where their sizes are in no other place: a user's own file or folder, or a function's arrays.
"""

from __future__ import annotations

from fedmpi import methods
from fedmpi.config.schema import Config
from fedmpi.data.digest import place
from fedmpi.run.forecast import forecast
from fedmpi.run.start import blocks, check_model, method_context


def plan(config: Config, form: str, size: int) -> str:
    """The plan as `form` ("text" or "json") says. Raises `ConfigError` if the model cannot take the data."""
    info = config.data.info()
    check_model(config, info)
    method = methods.create(method_context(config, info))
    text = forecast(config, size, info, method, blocks(config)).text(form)
    if form == "text" and getattr(config.data, "reads_to_know", False):
        text += f"\n{place(config.data)} was read, because nothing else says its sizes"
    return text
