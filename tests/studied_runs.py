"""For the tests of `fedmpi.results`: a small config in a file."""

from pathlib import Path

from small_runs import small_config

from fedmpi.config import yaml_text


def write_config(path: Path, *overrides: str) -> Path:
    """A config of 48 examples and four clients, of whom two train in a round."""
    fast = ("data.num_train=48", "data.num_test=16", "clients.count=4", "clients.per_round=2", "clients.tier_blocks=[]")
    path.write_text(yaml_text.dump(small_config(*fast, *overrides).to_dict()))
    return path
