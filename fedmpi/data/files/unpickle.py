"""The one place that reads pickles: CIFAR's files hold plain containers and one numpy array.

A pickle can name any function and call it. This reader resolves only the three names that numpy
wrote into those files, under the module paths of numpy 1 and 2, and refuses everything else.
"""

from __future__ import annotations

import io
import pickle

import numpy as np

ALLOWED = {
    # Taken out of numpy by its public protocol: the module path differs between versions.
    "numpy.core.multiarray _reconstruct": np.empty(0).__reduce__()[0],
    "numpy._core.multiarray _reconstruct": np.empty(0).__reduce__()[0],
    "numpy ndarray": np.ndarray,
    "numpy dtype": np.dtype,
}


class ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        allowed = ALLOWED.get(f"{module} {name}")
        if allowed is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which such a file has no need of")
        return allowed


def unpickle(content: bytes) -> object:
    """What `content` holds: containers, text, numbers and numpy arrays (Python 2's strings as latin-1 text).

    Raises pickle.UnpicklingError, whatever is wrong with it.
    """
    try:
        return ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle can fail in any of its opcodes, with any exception
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
