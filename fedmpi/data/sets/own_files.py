"""Files of the user's own, an .npz file or a folder of pictures, as README.md of `fedmpi.data` describes them.

Pickled objects are never read. Pictures come class after class, sorted by name; notes on how a camera was held are not
followed. Which bits a JPEG decodes to, and what resizing makes of them, depends a little on Pillow's version.
"""

import zipfile
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.data.files import guarded, track
from fedmpi.data.own import CLASS_NAMES, NOTES, Arrays, FileOptions, VocabularySize, objects_in
from fedmpi.data.sets.steps import decode
from fedmpi.errors import DataError, counted
from fedmpi.store.files import user_path

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
ADVICE_NPZ = "write it by numpy.savez; data.path is the path of an .npz file"
ADVICE = "replace it or take it out; 'data.size=[height,width]' resizes pictures of other sizes"
Side = Annotated[int, Field(ge=1, le=8192)]


class Npz(FileOptions):
    """Sizes, kind and classes are those of the arrays, so a plan reads the file, too."""

    name: str = "npz"
    """Your own arrays in one .npz file: pictures, vectors or tokens."""
    vocabulary_size: VocabularySize = 0
    """How many tokens there are, as many as a trained net has; 0: the largest one in the data plus 1."""

    def given_vocabulary(self) -> int:
        return self.vocabulary_size

    def arrays(self) -> Arrays:
        path = Path(user_path(self.path))
        with guarded(path, ADVICE_NPZ, "cannot be read"):
            if path.exists() and not zipfile.is_zipfile(path):  # numpy would say how to load it as a pickle
                raise ValueError("it is no .npz file")
            arrays = {}
            with np.load(path, allow_pickle=False) as archive:
                for name in archive.files:
                    try:
                        arrays[name] = archive[name]
                    except ValueError as error:
                        if "allow_pickle" not in str(error):
                            raise
                        raise objects_in(name, str(path)) from None
        return self.divided(arrays)


class ImageFolder(FileOptions):
    """Sizes and classes are those of the pictures, so a plan decodes them, too."""

    name: str = "image_folder"
    """Your own pictures, in a folder for each class."""
    size: Annotated[tuple[Side, Side], Field(strict=False)] | None = None
    """Height and width that all pictures are resized to (bilinear); none if they are all of one size."""
    grey: bool = False
    """One channel instead of red, green and blue."""

    def arrays(self) -> Arrays:
        root = Path(user_path(self.path))
        if not root.is_dir():
            raise DataError(f"data.path={self.path}", "no such folder; expected one with train/CLASS and test/CLASS")
        has_parts = (root / "train").is_dir() and (root / "test").is_dir()
        folders = {"train_": root / "train", "test_": root / "test"} if has_parts else {"": root}
        classes = [*_pictures(next(iter(folders.values())))]
        arrays: dict[str, Any] = {CLASS_NAMES: np.array(classes)}
        clear: list[Path] = []
        size: tuple[int, ...] | None = self.size
        for prefix, folder in folders.items():
            pictures = _pictures(folder)
            if strange := [name for name in pictures if name not in classes]:
                raise DataError(str(folder), f"the class {strange[0][:60]!r} is not among the training classes")
            paths = [*chain.from_iterable(pictures.values())]
            size = size or decode(paths[0], ADVICE, None).shape[:2]
            numbers = [classes.index(name) for name in pictures]
            arrays[f"{prefix}x"] = self._decoded(paths, size, clear)
            arrays[f"{prefix}y"] = np.repeat(numbers, [len(own) for own in pictures.values()])
        if clear:
            found = f"{counted(len(clear), 'picture')} with transparent pixels, as {clear[0]}"
            arrays[NOTES] = np.array([f"{found}: the alpha channel is left out, and the colours beneath are used"])
        return self.divided(arrays)

    def _decoded(self, paths: list[Path], size: tuple[int, ...], clear: list[Path]) -> NDArray[np.uint8]:
        """Returns the pictures, uint8 (N, H, W, C). Raises DataError that names the first one that is wrong."""
        height, width = size
        images = np.empty((len(paths), height, width, 1 if self.grey else 3), np.uint8)
        for number, path in enumerate(track(paths, "decoding pictures")):
            given = decode(path, ADVICE, (width, height), resizes=bool(self.size), grey=self.grey, clear=clear)
            images[number] = given
        return images


def _pictures(folder: Path) -> dict[str, list[Path]]:
    """Returns the pictures of each class, all sorted by name. Raises DataError for a class without pictures."""
    pictures = {}
    for place in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        own = [path for path in sorted(place.iterdir()) if not path.name.startswith(".")]
        pictures[place.name] = [path for path in own if path.name.lower().endswith(ENDINGS)]
    if not pictures or not all(pictures.values()):
        found = next((f"{name!r} has none" for name, own in pictures.items() if not own), "there is no folder")
        raise DataError(str(folder), f"expected a folder of pictures ({' '.join(ENDINGS)}) for each class, {found}")
    return pictures
