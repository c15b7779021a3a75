"""Which layers of a net are factorized: by type, by position, by name. The [rho, L, gamma] rule of FedHM.

By type, exactly (a subclass may use its weight in ways that we do not see): a Conv2d with a kernel larger than 1x1,
one group, and zero padding given as numbers is factorized, with any stride and dilation; and so is a Linear, but for
the layer that gives the classes. Other convs, a weight that is used under two names, and a layer with hooks, layers or
more parameters of its own stay dense.

By position: the first `dense_layers` convs with a kernel larger than 1x1, in the order in which the net registers them
and the stem included, stay dense (FedHM's rho: 3 for ResNet-18, 15 for ResNet-34; arXiv:2111.14655, 4.1).

By name: `overrides` beat position and type, so a 1x1 conv or the last Linear can be asked for; the first pattern that
matches counts.
"""

import difflib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from fedmpi.errors import ConfigError
from fedmpi.lowrank.factorized import FactorizedLayer, Unroll

Override = Literal["dense"] | float | int
Weighted = nn.Conv2d | nn.Linear


@dataclass(frozen=True)
class Rule:
    """Which layers are factorized, and how they are unrolled.

    `overrides`: name pattern (fnmatch) -> `dense`, a rank ratio < 1 (float) or a rank (int), which holds at every tier
    but the full one; that one is always dense. FedHM's smallest net (Fig. 8, 2 % of ResNet-18: rank k in every conv) is
    dense_layers=0, overrides={"*conv*": 3}; the 1x1 shortcuts stay dense there, or it would be 0.8 %.
    """

    dense_layers: int = 1
    unroll: Unroll = "paper"
    overrides: Mapping[str, Override] = field(default_factory=dict)
    classifier: str = ""
    """The layer that gives the classes, as a trial has found it; empty: the last Linear that the net registers."""


def plan_layers(net: nn.Module, rule: Rule) -> tuple[FactorizedLayer, ...]:
    """Returns the layers of `net` (on any device) that are factorized, in the order in which it registers them.

    Raises `ConfigError` (of `method.layer_ranks`, the source of overrides) for a pattern that no layer matches, and for
    a layer asked for by its full name that cannot be factorized.
    """
    weighted = {name: module for name, module in net.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))}
    uses = Counter(id(parameter) for _, parameter in net.named_parameters(remove_duplicate=False))
    # A parametrized weight is no parameter: reading it would compute it, which a net on meta need not be able to.
    possible = {
        name: module
        for name, module in weighted.items()
        if _can_factorize(module) and uses[id(module._parameters.get("weight"))] == 1
    }
    _check_patterns(rule, weighted, possible)
    dense_by_rule = {*_dense_by_rule(weighted, rule)}
    planned = []
    for name, module in possible.items():
        asked = (value for pattern, value in rule.overrides.items() if fnmatchcase(name, pattern))
        fixed = next(asked, "dense" if name in dense_by_rule else None)
        if fixed != "dense":
            planned.append(FactorizedLayer.of(name, module, rule.unroll, fixed))
    return tuple(planned)


def _dense_by_rule(weighted: Mapping[str, Weighted], rule: Rule) -> Iterator[str]:
    """Yields the names of the first convs, of all 1x1 convs and of the layer that gives the classes."""
    largest = {name: max(module.kernel_size) for name, module in weighted.items() if isinstance(module, nn.Conv2d)}
    yield from [name for name, side in largest.items() if side > 1][: rule.dense_layers]
    yield from (name for name, side in largest.items() if side == 1)
    linear = [name for name, module in weighted.items() if isinstance(module, nn.Linear)]
    yield from [rule.classifier] if rule.classifier else linear[-1:]


def _can_factorize(module: Weighted) -> bool:
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    if any(module.children()) or module._parameters.keys() != {"weight", "bias"}:
        return False
    if isinstance(module, nn.Linear):
        return type(module) is nn.Linear
    is_plain = module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Conv2d and is_plain


def _check_patterns(rule: Rule, weighted: Mapping[str, Weighted], possible: Collection[str]) -> None:
    problems = []
    for pattern, value in rule.overrides.items():
        if not any(fnmatchcase(name, pattern) for name in weighted):
            close = difflib.get_close_matches(pattern, weighted, 1)
            hint = f"Did you mean '{close[0]}'?" if close else f"Layers: {', '.join(weighted)}"
            problems.append(f"no layer matches '{pattern}'. {hint}")
        elif pattern in weighted and pattern not in possible and value != "dense":
            problems.append(f"'{pattern}' cannot be factorized: {weighted[pattern]}")
    if problems:
        raise ConfigError("method.layer_ranks", *problems)
