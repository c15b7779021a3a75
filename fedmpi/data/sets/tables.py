"""Tables of the user's own: CSV and parquet files, one for all clients or one for each, and Hugging Face folders.

A column is the label, one may say whose an example is, the others are the features. pandas reads files, `datasets`
reads what its `save_to_disk` wrote; both are imported when a config names such data. Nothing is downloaded.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.files import guarded
from fedmpi.data.own import CLASS_NAMES, FEATURE_NAMES, Arrays, FileOptions
from fedmpi.errors import DataError, as_one_line
from fedmpi.store.files import user_path

if TYPE_CHECKING:
    from pandas import DataFrame, Series

PARTS = ("train", "test")
ENDINGS = (".csv", ".parquet")
_ROW_NUMBERS = re.compile(r"Unnamed: [\d.]+|__index_level_\d+__")
"""What pandas calls a CSV file's column without a name, and Hugging Face a data frame's index."""


class _Columns(FileOptions):
    """Options of data that come in columns with names."""

    as_classes: ClassVar[str] = "write their column as whole numbers or names"
    label: str = "label"
    """The column of the labels: numbers or names of classes, which are numbered in sorted order."""
    group: str = ""
    """The column that says whose an example is (writer, user, hospital); empty if no column says so."""

    def joined(
        self,
        tables: dict[str, DataFrame],
        examples: Callable[[str], NDArray[Any]],
        columns: Iterable[str],
        names: Sequence[str] = (),
    ) -> Arrays:
        """Returns the arrays of the parts train and test, or of the one named '', which is divided. Raises DataError.

        `tables` has the columns of labels and groups of each part; `examples` returns the examples of a part. `columns`
        has the names of all columns, `names` those of the classes, by number, if the labels' column has numbers.
        """
        labels, classes = self._labels(tables)
        arrays: dict[str, NDArray[Any]] = {}
        named = [str(names[each] if names else each) for each in classes]
        if named != [*map(str, range(len(named)))]:
            arrays[CLASS_NAMES] = np.array(named)
        arrays[FEATURE_NAMES] = np.array([str(column) for column in columns if column not in self.roles])
        for part, table in tables.items():
            prefix = f"{part}_" if part else ""
            if self.group:
                groups = "test_groups" if part == "test" else "groups"
                arrays[groups] = table[self.group].astype(str).to_numpy(dtype=str)
            arrays[f"{prefix}x"] = examples(part)
            arrays[f"{prefix}y"] = labels[part]
        return self.divided(arrays)

    @property
    def roles(self) -> list[str]:
        """Returns the columns that are no features."""
        return [name for name in (self.label, self.group) if name]

    def _labels(self, tables: dict[str, DataFrame]) -> tuple[dict[str, NDArray[Any]], list[Any]]:
        """Returns the labels of each part, and what the numbers of classes stand for; these are alike in all parts."""
        import pandas

        columns = {part: table[self.label] for part, table in tables.items()}
        together = pandas.concat(list(columns.values()))
        for name in self.roles:
            if any(table[name].isna().any() for table in tables.values()):
                raise DataError(f"data.path={self.path}", f"the column {name!r} has empty cells")
        _check_alike(f"data.path={self.path}", {f"the {part} part": column for part, column in columns.items()})
        if pandas.api.types.is_float_dtype(together.dtype):
            return {part: column.to_numpy(dtype=np.float64) for part, column in columns.items()}, []
        classes = sorted(together.unique())
        number_of = {name: number for number, name in enumerate(classes)}
        labels = {part: column.map(number_of).to_numpy(dtype=np.int64) for part, column in columns.items()}
        return labels, classes

    def check_columns(self, part: str, columns: Iterable[str]) -> None:
        """Raises DataError if a column that an option names is missing, and for the numbers of rows that pandas adds:
        a net would learn them."""
        has = list(map(str, columns))
        if index := next(filter(_ROW_NUMBERS.fullmatch, has), ""):
            todo = "write it without (to_csv(index=False), remove_columns), or give the column a name"
            raise DataError(f"data.path={self.path}", f"the column {index!r} has row numbers of pandas; {todo}")
        for option in ("label", "group"):
            name = getattr(self, option)
            if name and name not in has:
                found = f"the {part} part" if part else "the data"
                problem = f"{found} has no column {name!r}; name it by data.{option}"
                raise DataError(f"data.path={self.path}", f"{problem}: {', '.join(has[:12])}")


class Table(_Columns):
    """Sizes and classes are those of the files, so a plan reads them, too."""

    name: str = "table"
    """Your own CSV or parquet files, a column a feature: one file, train and test, or one for each client."""

    def arrays(self) -> Arrays:
        path = Path(user_path(self.path))
        if not path.is_dir():
            return self._of({"": _table_of(path)})
        files = {file.stem: file for file in _files_of(path)}
        if all(part in files for part in PARTS):
            return self._of({part: _table_of(files[part]) for part in PARTS})
        if self.group:
            raise DataError(f"data.group={self.group}", "each file is a client; leave data.group out")
        folders = {part: path / part for part in PARTS}
        if not all(folder.is_dir() for folder in folders.values()):
            folders = {"": path}
        by_file = self.model_copy(update={"group": "fedmpi client"})
        return by_file._of({part: by_file._of_clients(folder) for part, folder in folders.items()})

    def _of(self, tables: dict[str, DataFrame]) -> Arrays:
        for part, table in tables.items():
            self.check_columns(part, table.columns)
        columns = next(iter(tables.values())).columns
        return self.joined(tables, lambda part: self._vectors(tables[part].drop(columns=self.roles)), columns)

    def _of_clients(self, folder: Path) -> DataFrame:
        """Returns the rows of all files of a folder, with the file's name in the column `group`. Raises DataError."""
        import pandas

        tables = {path.name: _table_of(path).assign(**{self.group: path.stem}) for path in _files_of(folder)}
        if not tables:
            raise DataError(str(folder), f"holds no file *{' or *'.join(ENDINGS)}")
        (first, expected), *others = tables.items()
        for name, table in others:
            missing = [column for column in expected.columns if column not in table.columns]
            more = [column for column in table.columns if column not in expected.columns]
            if missing or more:
                found = f"no column {missing[0]!r}, which" if missing else f"a column {more[0]!r}, which no"
                raise DataError(str(folder / name), f"has {found} {first} has; give all files the same columns")
        if self.label in expected.columns:
            _check_alike(str(folder), {name: table[self.label] for name, table in tables.items()})
        return pandas.concat(list(tables.values()), ignore_index=True)

    def _vectors(self, table: DataFrame) -> NDArray[Any]:
        """Returns float32 (N, columns). Raises DataError that names the first column that holds no numbers."""
        import pandas

        for name, column in table.items():
            if not pandas.api.types.is_numeric_dtype(column.dtype):
                todo = "leave the column out, or write numbers, as pandas.get_dummies does"
                found = next((repr(cell) for cell in column if isinstance(cell, str)), "")
                if found and not self.group:
                    todo = f"{todo}; if it says whose an example is, give data.group={name}"
                raise DataError(
                    f"data.path={self.path}", f"the column {name!r} holds no numbers ({found or column.dtype}); {todo}"
                )
            if column.isna().any():
                todo = "fill them in, or leave these rows out"
                raise DataError(f"data.path={self.path}", f"the column {name!r} has empty cells; {todo}")
        return table.to_numpy(dtype=np.float32)


class HuggingFace(_Columns):
    """Sizes and classes are those of the folder, so a plan reads it, too."""

    name: str = "huggingface"
    """A folder that `save_to_disk` of Hugging Face's `datasets` wrote: pictures, lists of numbers or numbers."""

    def arrays(self) -> Arrays:
        try:
            import datasets
        except ImportError as error:
            raise DataError(f"data.name={self.name}", "needs the package `datasets`: pip install datasets") from error
        path = Path(user_path(self.path))
        try:
            found = datasets.load_from_disk(str(path))
        except Exception as error:  # whatever is wrong with the folder
            advice = "data.path is a folder that datasets' save_to_disk wrote"
            raise DataError(str(path), f"cannot be read ({as_one_line(error)}); {advice}") from error
        parts = self._parts(found if isinstance(found, dict) else {"": found})
        for part, rows in parts.items():
            self.check_columns(part, rows.column_names)
        tables = {part: rows.select_columns(self.roles).to_pandas() for part, rows in parts.items()}
        features = next(iter(parts.values())).features
        names = getattr(features[self.label], "names", ())
        return self.joined(tables, lambda part: self._examples(parts[part]), features, names)

    def _parts(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Returns train and test, or all rows as the part ''. Raises DataError."""
        if len(parts) == 1:
            return {"": next(iter(parts.values()))}
        if missing := [part for part in PARTS if part not in parts]:
            has = ", ".join(sorted(parts))
            raise DataError(f"data.path={self.path}", f"has no part {missing[0]!r}; it has {has}")
        return {part: parts[part] for part in PARTS}

    def _examples(self, rows: Any) -> NDArray[Any]:
        """Returns the one column of pictures or lists, or all columns of numbers as float32 (N, columns)."""
        where = f"data.path={self.path}"
        rows = rows.remove_columns(self.roles).with_format("numpy")
        columns = {name: np.asarray(rows[name][:]) for name in rows.column_names}
        for name, column in columns.items():
            if column.dtype.kind not in "biuf":
                todo = "remove it (remove_columns), or give all rows one length"
                raise DataError(where, f"the column {name!r} holds text, or rows of unequal lengths; {todo}")
        if len(columns) == 1:
            return next(iter(columns.values()))
        if wide := [name for name, column in columns.items() if column.ndim > 1]:
            todo = f"keep one column beside the label: select_columns([{wide[0]!r}, {self.label!r}])"
            raise DataError(where, f"the column {wide[0]!r} has lists or pictures, and there are others; {todo}")
        return np.stack(list(columns.values()), axis=1).astype(np.float32)


def _files_of(folder: Path) -> list[Path]:
    """Returns the tables of a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix in ENDINGS and not path.name.startswith("."))


def _check_alike(where: str, columns: Mapping[str, Series[Any]]) -> None:
    """Raises DataError if the labels of one file or part are names and those of another are numbers, or if it is in
    doubt whether they are classes: 0, 1, 2 in one and 0.0, 1.0, 2.0 in another."""
    from pandas.api.types import is_float_dtype, is_numeric_dtype

    kinds: dict[str, str] = {}
    for place, column in columns.items():
        kind = "names"
        if is_numeric_dtype(column.dtype):
            is_whole = not is_float_dtype(column.dtype)
            kind = "whole numbers" if is_whole else "floats as 0.0" if (column % 1 == 0).all() else "fractions"
        kinds.setdefault(kind, place)
    if len(kinds) > 1 and ("names" in kinds or "fractions" not in kinds):
        found = " and ".join(f"{kind} in {place}" for kind, place in kinds.items())
        label = next(iter(columns.values())).name
        raise DataError(where, f"the labels' column {label!r} has {found}; write the labels alike in all files")


def _table_of(path: Path) -> DataFrame:
    """Reads a CSV or parquet file. Raises DataError."""
    import pandas

    readers = {".csv": _csv_of, ".parquet": pandas.read_parquet}
    advice = f"data.path is a file *{' or *'.join(ENDINGS)}, or a folder of them"
    with guarded(path, advice, "cannot be read"):
        if path.suffix not in readers:
            raise ValueError(f"its ending is {path.suffix or 'missing'}")
        table = readers[path.suffix](path)
        if table.columns.has_duplicates:
            raise ValueError(f"two columns are called {table.columns[table.columns.duplicated()][0]!r}")
        if not len(table):
            raise DataError(str(path), "has names of columns and no rows; add rows, or leave the file out")
        return table


def _csv_of(path: Path) -> DataFrame:
    """Reads a CSV file; only an empty cell is missing, because NA may be a class. Raises ValueError."""
    import pandas

    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        first = next(rows, [])
    if len(names) == 1 and (found := next((sign for sign in ";\t|" if sign in names[0]), "")):
        raise ValueError(f"its columns are separated by {found!r}, expected ','")
    if len(first) > len(names):  # pandas would take the first cells for an index
        raise ValueError(f"its first row has {len(first)} cells, and {len(names)} columns have names")
    table = pandas.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    if len({*names}) < len(names):  # pandas gives the second one another name
        table.columns = pandas.Index(names)
    return table
