"""Files of the user's own: an .npz file, a folder of pictures, tables, a folder of Hugging Face's `datasets`.

Pickled objects are never read. pandas reads CSV and parquet files, `datasets` reads what its `save_to_disk` wrote; both
are imported when a config names such data.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.data.dataset import PARTS
from fedmpi.data.files import guarded
from fedmpi.data.own import CLASS_NAMES, NOTES, Arrays, FileOptions, VocabularySize, objects_in
from fedmpi.data.sets.steps import decode
from fedmpi.errors import DataError, counted, users_code
from fedmpi.store.files import user_path

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
ADVICE_NPZ = "write it by numpy.savez; data.path is the path of an .npz file"
ADVICE = "replace it or take it out; 'data.size=[height,width]' resizes pictures of other sizes"
Side = Annotated[int, Field(ge=1, le=8192)]
TABLE_ENDINGS = (".csv", ".parquet")
_CSV: dict[str, Any] = {"keep_default_na": False, "na_values": [""], "low_memory": False, "index_col": False}
"""Only an empty cell is missing, because NA may be a class; cells before the named columns are no index."""
_ROW_NUMBERS = ("Unnamed: ", "__index_level_")
"""How the names begin that pandas gives a CSV file's column without one, and Hugging Face a data frame's index."""


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


class _Columns(FileOptions):
    """Options of data that come in columns with names."""

    label: str = "label"
    """The column of the labels: numbers or names of classes, which are numbered in sorted order."""
    group: str = ""
    """The column that says whose an example is (writer, user, hospital); empty if no column says so."""

    @property
    def roles(self) -> list[str]:
        """Returns the columns that are no features."""
        return [name for name in (self.label, self.group) if name]

    def error(self, problem: str) -> DataError:
        return DataError(f"data.path={self.path}", problem)

    def arrays_of(
        self,
        table: DataFrame,
        examples: NDArray[Any],
        lengths: Mapping[str, int],
        clients: NDArray[np.str_] | None = None,
        names: list[str] | None = None,
    ) -> Arrays:
        """Returns the arrays of the parts with these `lengths`. `table` has the columns of labels and groups, `clients`
        the groups if none has, `names` the classes' names by number. Raises DataError."""
        labels, classes = self._labels(self.column(table, self.label))
        named = [str(names[each] if names else each) for each in classes]
        facts = {} if named == [*map(str, range(len(named)))] else {CLASS_NAMES: np.array(named)}
        whole = {"x": examples, "y": labels}
        groups = self.column(table, self.group).astype(str).to_numpy(dtype=str) if self.group else clients
        if groups is not None:
            whole["groups"] = groups
        return self.parted(lengths, whole, **facts)

    def column(self, table: DataFrame, name: str) -> Series[Any]:
        """Returns a column without empty cells. Raises DataError."""
        if table[name].isna().any():
            raise self.error(f"the column {name!r} has empty cells; fill them in, or leave these rows out")
        return table[name]

    def check_columns(self, columns: list[str]) -> None:
        """Raises DataError if a column that an option names is missing, or for row numbers, which a net would learn."""
        for name in self.roles:
            if name not in columns:
                has = ", ".join(map(str, columns[:12]))
                raise self.error(f"has no column {name!r}; name it by data.label or data.group: {has}")
        for name in columns:
            if str(name).startswith(_ROW_NUMBERS):
                todo = "write it without (to_csv(index=False), remove_columns), or give the column a name"
                raise self.error(f"the column {name!r} has row numbers of pandas; {todo}")

    def _labels(self, column: Series[Any]) -> tuple[NDArray[Any], list[Any]]:
        """Returns the labels, and what the numbers of classes stand for; floats are numbers to predict."""
        from pandas.api.types import infer_dtype, is_float_dtype

        if infer_dtype(column).startswith("mixed"):
            todo = "write the labels alike in all files"
            raise self.error(f"the column {self.label!r} has numbers and names; {todo}")
        if is_float_dtype(column.dtype):
            return column.to_numpy(dtype=np.float64), []
        classes, numbers = np.unique(column.to_numpy(), return_inverse=True)
        return numbers, classes.tolist()


class Table(_Columns):
    name: str = "table"
    """Your own CSV or parquet files, a column a feature: one file, train and test, or one for each client."""

    def arrays(self) -> Arrays:
        import pandas
        from pandas.api.types import is_numeric_dtype

        parts, are_clients = self._files(Path(user_path(self.path)))
        tables = {path: _table_of(path) for paths in parts.values() for path in paths}
        table = pandas.concat(tables.values(), ignore_index=True)
        self.check_columns(list(table.columns))
        features = table.drop(columns=self.roles)
        for name in features.columns:
            column = self.column(features, name)
            if not is_numeric_dtype(column.dtype):
                todo = "leave the column out, write numbers, or name it by data.group if it says whose an example is"
                raise self.error(f"the column {name!r} holds no numbers ({column.iloc[0]!r}); {todo}")
        num_rows = {path: len(rows) for path, rows in tables.items()}
        lengths = {part: sum(map(num_rows.__getitem__, paths)) for part, paths in parts.items()}
        clients = np.repeat([path.stem for path in tables], [*num_rows.values()]) if are_clients else None
        return self.arrays_of(table, features.to_numpy(dtype=np.float32), lengths, clients)

    def _files(self, path: Path) -> tuple[dict[str, list[Path]], bool]:
        """Returns the files of each part, or of the one part '', and whether each is a client's. Raises DataError where
        there is no file, and where clients are values of a column, too."""
        if not path.is_dir():
            return {"": [path]}, False
        parts = {"": _tables_in(path)}
        named = {file.stem: file for file in parts[""]}
        if named.keys() >= {*PARTS}:
            return {part: [named[part]] for part in PARTS}, False
        if all((path / part).is_dir() for part in PARTS):
            parts = {part: _tables_in(path / part) for part in PARTS}
        num_files = sum(map(len, parts.values()))
        if self.group or not num_files:
            problem = f"holds {num_files} files *{' or *'.join(TABLE_ENDINGS)}, each a client's"
            raise DataError(str(path), f"{problem}; write one or more, and leave data.group out")
        return parts, True


class HuggingFace(_Columns):
    name: str = "huggingface"
    """A folder that `save_to_disk` of Hugging Face's `datasets` wrote: pictures, lists of numbers or numbers."""

    def arrays(self) -> Arrays:
        problem = "is no folder that datasets' save_to_disk wrote, or `datasets` is missing"
        with users_code(f"data.path={self.path}", problem, DataError):
            import datasets

            found = datasets.load_from_disk(user_path(self.path))
        parts = found if isinstance(found, dict) else {"": found}
        if len(parts) == 1:
            parts = {"": next(iter(parts.values()))}
        elif missing := [part for part in PARTS if part not in parts]:
            raise self.error(f"has no part {missing[0]!r}; it has {', '.join(sorted(parts))}")
        else:
            parts = {part: parts[part] for part in PARTS}
        rows = datasets.concatenate_datasets(list(parts.values()))
        self.check_columns(rows.column_names)
        lengths = {part: len(own) for part, own in parts.items()}
        names = getattr(rows.features[self.label], "names", None)
        table = rows.select_columns(self.roles).to_pandas()
        return self.arrays_of(table, self._examples(rows.remove_columns(self.roles)), lengths, names=names)

    def _examples(self, rows: Any) -> NDArray[Any]:
        """Returns the one column of pictures or lists, or all columns of numbers as float32 (N, columns)."""
        rows = rows.with_format("numpy")
        columns = {name: np.asarray(rows[name][:]) for name in rows.column_names}
        for name, column in columns.items():
            if column.dtype.kind not in "biuf":
                todo = "remove it (remove_columns), or give all rows one length"
                raise self.error(f"the column {name!r} holds text, or rows of unequal lengths; {todo}")
            if column.ndim > 1 and len(columns) > 1:
                todo = f"keep one column beside the label: select_columns([{name!r}, {self.label!r}])"
                raise self.error(f"the column {name!r} has lists or pictures, and there are others; {todo}")
        if len(columns) == 1:
            return next(iter(columns.values()))
        return np.stack(list(columns.values()), axis=1).astype(np.float32)


def _tables_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in TABLE_ENDINGS and not path.name.startswith("."))


def _table_of(path: Path) -> DataFrame:
    import pandas

    with guarded(path, f"data.path is a file *{' or *'.join(TABLE_ENDINGS)}, or a folder of them", "cannot be read"):
        if path.suffix not in TABLE_ENDINGS:
            raise ValueError(f"its ending is {path.suffix or 'missing'}")
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # of a row with more cells than names
            table = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path, **_CSV)
        if table.empty:
            raise ValueError("it has no rows")
        if path.suffix == ".csv":  # pandas gives the second of two columns of one name another
            names = pandas.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna()
            if names.duplicated().any():
                raise ValueError(f"two columns are called {names[names.duplicated()].iloc[0]!r}")
        return table
