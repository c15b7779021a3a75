"""What the tests of Hermes share: a net of two linear layers, options without what most of them do not need."""

from torch import nn

PLAINLY = {"validation_share": 0.0, "group_lasso": 0.0}


def chain(inputs: int, hidden: int, *, bias: bool = False, act: bool = True) -> nn.Sequential:
    """inputs -> hidden -> 1, linear up to a ReLU; with one output every prediction is class 0."""
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=bias), nn.ReLU() if act else nn.Identity(), nn.Linear(hidden, 1, bias=False)
    )
