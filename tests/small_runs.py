"""The small federation of `fedmpi.check`, for tests, and the tests' own method in it."""

from fedmpi.check.small import SMALL, Finished, finished, one_round, run_all, small_config, small_setup

__all__ = ["SMALL", "TOY", "Finished", "finished", "one_round", "run_all", "small_config", "small_setup"]

TOY = ("method.name=toy_methods:Toy", "method.widths=[1,0.5,0.25]", "clients.tier_blocks=[3,3,2]")
