"""Finds assertions on wording: four words or more of a text, one after the other.

Such a test breaks when a message gets better. What users are told stands in `golden/`, and other tests match the key
and the value that a message names.
"""

import ast
import re
from collections.abc import Iterator

MOST_WORDS = 3
# Of a regular expression, what stands for something else.
_PATTERN = re.compile(r"\\[SdwWDs]\+?|\.\*\??|\\(?=\W)")
_WORD = re.compile(r"[A-Za-z]+(['-][A-Za-z]+)*")
# What may stand between words of one phrase: a number, or a value that the test puts in.
_VALUE = re.compile(r"[\d.,%]*|\{\}")


def phrases(source: str) -> list[tuple[int, str]]:
    """Line and text of each assertion on a phrase: in `assert` (not in what it says when it fails) and in `match=`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert | ast.Call):
            said = [text for part in _compared(node) for text in _texts(part) if _longest_run(text) > MOST_WORDS]
            found += [(node.lineno, text) for text in said[:1]]
    return found


def _compared(node: ast.Assert | ast.Call) -> list[ast.expr]:
    if isinstance(node, ast.Assert):
        return [node.test]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "raises":
        return [keyword.value for keyword in node.keywords if keyword.arg == "match"]
    return []


def _texts(expression: ast.expr) -> Iterator[str]:
    """Those of f-strings with {} for each value."""
    of_f_strings: set[int] = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.JoinedStr):
            of_f_strings.update(map(id, node.values))
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in of_f_strings:
            yield node.value


def _longest_run(text: str) -> int:
    """How many words of it stand one after the other."""
    longest = run = 0
    for part in _PATTERN.sub(" ", text).split():
        part = part.strip("^$.,;:!?()[]'\"`=")
        if _WORD.fullmatch(part):
            run += 1
        elif not _VALUE.fullmatch(part):
            run = 0
        longest = max(longest, run)
    return longest
