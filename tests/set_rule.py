"""The rule of `test_architecture.py` about sets: found without running anything, from what a module says of its types.

A value is taken for a set if it is a set display or comprehension, a call of `set` or `frozenset`, one of the methods
or operators that make sets, or a name, an attribute or a function that the same module annotates or assigns as one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from architecture_rules import Source

SET_TYPES = {"set", "frozenset", "Set", "AbstractSet", "MutableSet", "FrozenSet"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
OPERATORS = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
ORDERLESS = {"sorted", "set", "frozenset", "len", "min", "max", "any", "all", "isinstance", "bool", "Counter"}
"""Functions whose result is the same in whatever order they see the elements. `sum` is not: floats round."""
ORDERED = set(
    """
    list tuple iter enumerate zip map filter dict sum str repr print array join extend fromkeys from_iterable
    dumps dump deque chain cat stack
""".split()
)
"""Functions whose result follows the order of the elements."""
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_sets(source: Source) -> Iterator[str]:
    """Nothing iterates a set where its order could be seen: that order follows PYTHONHASHSEED, so it differs between
    the processes of one run. Use sorted(), or keep the order: a tuple, or the keys of a dict."""
    yield from _Reader(source).problems(source.tree, _names(source.tree))


class _Reader:
    """Knows which attributes and functions of a module are sets, and finds where their order is seen."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.attributes: set[str] = set()
        self.functions: set[str] = set()
        for node in ast.walk(source.tree):
            if isinstance(node, Function) and _says_set(node.returns):
                names = {name.id for name in node.decorator_list if isinstance(name, ast.Name)}
                (self.attributes if names & {"property", "cached_property"} else self.functions).add(node.name)
            elif isinstance(node, ast.ClassDef):
                fields = [line for line in node.body if isinstance(line, ast.AnnAssign) and _says_set(line.annotation)]
                self.attributes |= {line.target.id for line in fields if isinstance(line.target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                self.attributes |= {node.target.attr} if _says_set(node.annotation) else set()

    def problems(self, scope: ast.AST, names: set[str]) -> Iterator[str]:
        """In one scope, whose `names` are sets; functions inside have names of their own."""
        for node in _own(scope):
            for seen in _where_order_is_seen(node):
                if self.is_set(seen, names):
                    yield self.source.at(seen, f"iterates the set {ast.unparse(seen)[:60]}")
            if isinstance(node, (*Function, ast.Lambda)):
                inner = names - _parameters(node)[1] | _parameters(node)[0]
                yield from self.problems(node, inner | _names(node))

    def is_set(self, node: ast.AST | None, names: set[str]) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in names
            case ast.Attribute(attr=name):
                return name in self.attributes
            case ast.Call(func=ast.Name(id=name)):
                return name in SET_TYPES | self.functions
            case ast.Call(func=ast.Attribute(attr=name)):
                return name in SET_METHODS | self.functions
            case ast.BinOp(op=operator, left=left, right=right) if isinstance(operator, OPERATORS):
                return any(_is_view(side) or self.is_set(side, names) for side in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_set(body, names) or self.is_set(orelse, names)
            case ast.BoolOp(values=values):
                return any(self.is_set(value, names) for value in values)
            case ast.NamedExpr(value=value):
                return self.is_set(value, names)
        return False


def _where_order_is_seen(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions that `node` goes through in their order."""
    match node:
        case ast.For(iter=iterable) | ast.AsyncFor(iter=iterable):
            yield iterable
        case ast.ListComp() | ast.DictComp() | ast.GeneratorExp() if not getattr(node, "is_orderless", False):
            yield from (loop.iter for loop in node.generators)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            yield from (element.value for element in elements if isinstance(element, ast.Starred))
        case ast.FormattedValue(value=value) | ast.YieldFrom(value=value):
            yield value
        case ast.Assign(targets=[ast.Tuple(elts=elements)], value=value) if len(elements) > 1:
            yield value
        case ast.Call(func=function, args=arguments):
            name = getattr(function, "id", None) or getattr(function, "attr", "")
            if name in ORDERED:
                yield from arguments
            if name not in ORDERLESS | SET_METHODS:
                yield from (argument.value for argument in arguments if isinstance(argument, ast.Starred))
            if name == "pop" and not arguments and isinstance(function, ast.Attribute):
                yield function.value


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope; functions in it are named, not entered. Marks comprehensions whose order nobody sees."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.Call) and getattr(child.func, "id", "") in ORDERLESS:
            for argument in child.args:
                argument.is_orderless = True
        yield child
        if not isinstance(child, (*Function, ast.Lambda)):
            yield from _own(child)


def _names(scope: ast.AST) -> set[str]:
    """The names that a scope annotates or assigns as sets, and never as anything else."""
    sets, others = set[str](), set[str]()
    maker = _Literal()
    for node in _own(scope):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                (sets if _says_set(annotation) else others).add(name)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ):
                (sets if maker.is_set(value, sets) else others).add(name)
    return sets - others


def _parameters(function: ast.AST) -> tuple[set[str], set[str]]:
    """The parameters that are annotated as sets, and all."""
    arguments = function.args
    starred = filter(None, [arguments.vararg, arguments.kwarg])
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]
    return {one.arg for one in every if _says_set(one.annotation)}, {one.arg for one in every}


def _says_set(annotation: ast.AST | None) -> bool:
    """Whether an annotation says set[...], frozenset[...] or the like, perhaps `| None`."""
    match annotation:
        case ast.Subscript(value=value):
            return _says_set(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SET_TYPES
        case ast.BinOp(left=left, right=right):
            return _says_set(left) or _says_set(right)
    return False


def _is_view(node: ast.AST) -> bool:
    """`x.keys()` or `x.items()`: `&`, `|`, `-` of these are sets."""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("keys", "items")


class _Literal(_Reader):
    """Knows no attribute or function: for names that get a set by their own assignment."""

    def __init__(self) -> None:
        self.attributes, self.functions = set(), set()
