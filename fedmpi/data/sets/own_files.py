"""Files of the user's own: an .npz file, of which pickled objects are never read, or a folder of pictures."""

import zipfile
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedmpi.data.dataset import PARTS
from fedmpi.data.files import guarded
from fedmpi.data.own import CLASS_NAMES, NOTES, Arrays, FileOptions, VocabularySize, objects_in
from fedmpi.data.sets.steps import decode
from fedmpi.errors import DataError, counted
from fedmpi.store.files import user_path

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
ADVICE_NPZ = "write it by numpy.savez; data.path is the path of an .npz file"
ADVICE = "replace it or take it out; 'data.size=[height,width]' resizes pictures of other sizes"
Side = Annotated[int, Field(ge=1, le=8192)]


class Npz(FileOptions):
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
    """Pictures come class after class, sorted by name; notes on how a camera was held are not followed."""

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
        has_parts = all((root / part).is_dir() for part in PARTS)
        folders = {part: root / part for part in PARTS} if has_parts else {"": root}
        classes = [*_pictures(next(iter(folders.values())))]
        paths: list[Path] = []
        labels: list[int] = []
        lengths: dict[str, int] = {}
        for part, folder in folders.items():
            for name, own in _pictures(folder).items():
                if name not in classes:
                    raise DataError(str(folder), f"the class {name[:60]!r} is not among the training classes")
                paths += own
                labels += [classes.index(name)] * len(own)
            lengths[part] = len(paths) - sum(lengths.values())
        images, clear = decode(paths, ADVICE, self.size, resizes=bool(self.size), grey=self.grey)
        facts = {CLASS_NAMES: np.array(classes)}
        if clear:
            found = f"{counted(len(clear), 'picture')} with transparent pixels, as {clear[0]}"
            facts[NOTES] = np.array([f"{found}: the alpha channel is left out, and the colours beneath are used"])
        return self.parted(lengths, {"x": images, "y": np.array(labels)}, **facts)


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
