"""A budget: what a config's numbers of rounds and of local epochs are multiplied by, for a smaller machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

from fedmpi.config.schema import Config


@dataclass(frozen=True)
class Budget:
    """The two factors. No number falls below 1."""

    rounds: float = 1.0
    epochs: float = 1.0

    @classmethod
    def read(cls, text: str) -> Budget:
        """Reads `0.05`, or `rounds=0.05,epochs=0.1`; for argparse."""
        parts = text.split(",") if "=" in text else [f"rounds={text}", f"epochs={text}"]
        factors = {}
        for part in parts:
            name, _, number = part.partition("=")
            factors[name] = _positive(number, text)
        if not set(factors) <= {"rounds", "epochs"} or len(factors) < len(parts):
            raise argparse.ArgumentTypeError(f"expected a number, or rounds=0.05,epochs=0.1, got {text!r}")
        return cls(**factors)

    @property
    def changed(self) -> dict[str, float]:
        """Returns the factors that are not 1."""
        return {name: factor for name, factor in asdict(self).items() if factor != 1}

    def __str__(self) -> str:
        """Returns `rounds x 0.05, local epochs x 0.1`; empty for a budget that changes nothing."""
        return ", ".join(f"{name.replace('epochs', 'local epochs')} x {by:g}" for name, by in self.changed.items())

    @property
    def folder_part(self) -> str:
        """Returns `-rounds_x0.05-epochs_x0.1`, which tells the runs of this budget from others."""
        return "".join(f"-{name}_x{factor:g}" for name, factor in self.changed.items())

    def overrides(self, config: Config) -> list[str]:
        """Returns the overrides that give the config this budget."""
        epochs = max(1, round(self.epochs * config.train.local_epochs))
        changed = [f"train.local_epochs={epochs}"] if epochs != config.train.local_epochs else []
        return self._rounds(config) + changed

    def _rounds(self, config: Config) -> list[str]:
        """Multiplies what counts rounds; what happened within the run still does if it can."""
        if self.rounds == 1:
            return []
        rounds = self._times(config.rounds)
        overrides = [f"rounds={rounds}"]
        if milestones := self.milestones(config):
            overrides.append(f"train.schedule.milestones=[{','.join(map(str, milestones))}]")
        if self.rounds < 1:  # a longer run needs no coarser look
            overrides.append(f"evaluation.every={self._times(config.evaluation.every)}")
        for key, value in config.method:
            if key.endswith(("_round", "_rounds")) and isinstance(value, int) and value > 0:
                latest = max(1, rounds - 1) if value < config.rounds else self._times(value)
                overrides.append(f"method.{key}={min(self._times(value), latest)}")
        return overrides

    def milestones(self, config: Config) -> list[int]:
        """Returns those of `train.schedule`: different ones stay different and, as long as there are enough rounds,
        before the last round, so that each still changes the learning rate; else the last ones come too late.
        """
        milestones = getattr(config.train.schedule, "milestones", ())
        rounds = self._times(config.rounds)
        effective = sorted({milestone for milestone in milestones if milestone < config.rounds})
        latest = max(rounds - 1, len(effective))
        places: dict[int, int] = {}
        for number, milestone in enumerate(effective, 1):
            after_last = max(places.values(), default=0) + 1
            before_next = latest - (len(effective) - number)
            places[milestone] = min(max(round(self.rounds * milestone), after_last), before_next)
        return [places.get(milestone, max(rounds, round(self.rounds * milestone))) for milestone in milestones]

    def _times(self, count: int) -> int:
        return max(1, round(self.rounds * count))


def _positive(text: str, whole: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number > 0, or rounds=0.05,epochs=0.1, got {whole!r}")
    return number
