"""Text of the user's own, a file or a folder of files: a net says of each token which one follows.

A file's tokens are cut once, so that the last `test_share` of them is test. Each side is cut into blocks, whose targets
are the tokens shifted by one: (a, b), (c, d) of a, b, c, d, e have the targets (b, c), (d, e). Tokens 0 without targets
fill the last block.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi import registry
from fedmpi.config.fields import Folder, PartialShare, free
from fedmpi.data.dataset import IGNORED, Dataset, integer_type
from fedmpi.data.files import guarded, read_text, track
from fedmpi.data.own import MAX_TOKEN, ArrayOptions, VocabularySize
from fedmpi.data.sets.steps import ByName, by_names, first_of_test
from fedmpi.errors import DataError, UnknownError, users_code
from fedmpi.store.files import user_path

NUM_BYTES = 256


class Text(ArrayOptions):
    name: str = "text"
    """Your own text, one file or one for each user: the byte or token that follows."""
    path: Folder = free(...)
    """A file, or a folder of files, in folders within it, too; each file is a group."""
    length: Annotated[int, Field(ge=2, le=2**31 - 1)] = 128
    """Tokens of a block."""
    test_share: PartialShare = 0.1
    """The later part of each file is test data; no training block has a token of it."""
    tokenizer: Annotated[str, Field(max_length=200)] = "bytes"
    """`bytes` (256 tokens), or package.module:function(text), which returns the numbers of a text's tokens (UTF-8)."""
    vocabulary_size: VocabularySize = 0
    """How many tokens there are, as many as a trained net has; 0: the largest one in the data plus 1."""

    def given_vocabulary(self) -> int:
        return self.vocabulary_size or (NUM_BYTES if self.tokenizer == "bytes" else 0)

    def arrays(self) -> Dataset:
        """Returns the blocks of each file, in the order of the files' names. Raises DataError."""
        root = Path(user_path(self.path))
        paths = [root]
        if root.is_dir():
            names = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
            paths = [root / name for name in sorted(names) if "/." not in f"/{name.as_posix()}"]
        train: ByName = {}
        test: ByName = {}
        for path in track(paths, "reading text"):
            tokens = self._tokens(path)
            cut = first_of_test(len(tokens), self.test_share)
            for blocks, part in ((train, tokens[:cut]), (test, tokens[cut:])):
                if len(part) > 1:
                    blocks[path.relative_to(root).as_posix()] = _blocks(part, self.length)
        return by_names(root, train, test, "take longer files, or another data.test_share")

    def _tokens(self, path: Path) -> NDArray[np.integer]:
        """Returns the tokens of a file, (N,). Raises DataError."""
        if self.tokenizer == "bytes":
            with guarded(path, "data.path is a file or a folder of files", "cannot be read"):
                return np.frombuffer(path.read_bytes(), np.uint8)
        where = f"data.tokenizer={self.tokenizer}"
        try:
            tokenize = registry.import_object(self.tokenizer)
        except UnknownError as error:
            raise DataError(where, f"{error}; allowed: bytes, package.module:function") from None
        text = read_text(path)
        with users_code(where, f"failed on {path}", DataError):
            tokens = np.asarray(tokenize(text))
        largest = self.vocabulary_size - 1 if self.vocabulary_size else MAX_TOKEN
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or ((tokens < 0) | (tokens > largest)).any():
            found = f"gave {tokens.dtype} {tokens.shape} for {path}"
            raise DataError(where, f"{found}; expected whole numbers (N,) from 0 to {largest}")
        return tokens


def _blocks(tokens: NDArray[np.integer], length: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Returns blocks of tokens and the token after each, both (n, length); `tokens` (N,) are two or more."""
    num_targets = len(tokens) - 1
    size = -(-num_targets // length) * length
    dtype = integer_type(int(tokens.max()) + 1)
    x = np.zeros(size, dtype)
    y = np.full(size, IGNORED, dtype)
    x[:num_targets] = tokens[:-1]
    y[:num_targets] = tokens[1:]
    return x.reshape(-1, length), y.reshape(-1, length)
