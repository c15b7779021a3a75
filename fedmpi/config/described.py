"""What a field of a config does, in words: the text that stands below it in the source of its class.

pydantic would read the texts of every class when Python makes the class, a third of what `--version` takes. Here a
class's source is read when a command first asks for one of its texts.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import textwrap
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any


def description(section: Any, key: str) -> str:
    """Of a field of a section, in one line; of the class nearest to `section` that says something. Else empty."""
    given = section.model_fields[key].description
    texts = [given] if given else [text for kind in section.__mro__ if (text := _texts(kind).get(key))]
    return " ".join(texts[0].split()) if texts else ""


def summary(options: Any) -> str:
    """One line about what the name of a section with these options stands for."""
    return description(options, "name").rstrip(".")


def summary_in(module: str, name: str) -> str:
    """The `summary` of the class that has this name in a config, read from the module's file: nothing is imported."""
    package, *inner = module.split(".")
    spec = importlib.util.find_spec(package)  # of the module itself this would import the packages that it is in
    assert spec is not None and spec.origin is not None
    file = Path(spec.origin).parent.joinpath(*inner).with_suffix(".py")
    default = re.escape(name) + r"\w*" * name.endswith(":")
    found = re.search(rf'    name: .* = "{default}"\n    """([^"]*)"""', file.read_text("utf-8"))
    assert found is not None, f"{module} has no options with the name {name!r}"
    return " ".join(found[1].split()).rstrip(".")


@cache
def _texts(kind: type) -> dict[str, str]:
    """By field of this class, without those of its bases; none where Python has no source, as in an interpreter."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    fields = pairwise(tree.body if isinstance(tree, ast.ClassDef) else ())
    return {
        field.target.id: text.value.value
        for field, text in fields
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
