"""Tables of the user's own: CSV and parquet files, one for all clients or one for each, and Hugging Face folders.

A column is the label, one may say whose an example is, the others are the features. pandas reads files, `datasets`
reads what its `save_to_disk` wrote; both are imported when a config names such data. Nothing is downloaded.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import PARTS
from fedmpi.data.files import guarded
from fedmpi.data.own import CLASS_NAMES, Arrays, FileOptions
from fedmpi.errors import DataError, users_code
from fedmpi.store.files import user_path

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ENDINGS = (".csv", ".parquet")
_CSV: dict[str, Any] = {"keep_default_na": False, "na_values": [""], "low_memory": False, "index_col": False}
"""Only an empty cell is missing, because NA may be a class; cells before the named columns are no index."""
_ROW_NUMBERS = ("Unnamed: ", "__index_level_")
"""How the names begin that pandas gives a CSV file's column without one, and Hugging Face a data frame's index."""


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

    def joined(
        self,
        table: DataFrame,
        examples: NDArray[Any],
        part: NDArray[np.str_],
        clients: NDArray[np.str_] | None = None,
        names: list[str] | None = None,
    ) -> Arrays:
        """Returns the arrays of the parts train and test, or of the one named '', which is divided. Raises DataError.

        `table` has the columns of labels and groups, `part` the part of each row, `clients` its group if no column says
        it, `names` those of the classes by number.
        """
        labels, classes = self._labels(self.column(table, self.label))
        named = [str(names[each] if names else each) for each in classes]
        arrays: dict[str, NDArray[Any]] = {}
        if named != [*map(str, range(len(named)))]:
            arrays[CLASS_NAMES] = np.array(named)
        groups = self.column(table, self.group).astype(str).to_numpy(dtype=str) if self.group else clients
        for name in np.unique(part).tolist():
            is_in = part == name
            prefix = f"{name}_" if name else ""
            arrays[f"{prefix}x"] = examples[is_in]
            arrays[f"{prefix}y"] = labels[is_in]
            if groups is not None:
                arrays["test_groups" if name == "test" else "groups"] = groups[is_in]
        return self.divided(arrays)

    def column(self, table: DataFrame, name: str) -> Series[Any]:
        """Returns a column without empty cells. Raises DataError."""
        if table[name].isna().any():
            todo = "fill them in, or leave these rows out"
            raise DataError(f"data.path={self.path}", f"the column {name!r} has empty cells; {todo}")
        return table[name]

    def check_columns(self, columns: list[str]) -> None:
        """Raises DataError if a column that an option names is missing, or for row numbers, which a net would learn."""
        where = f"data.path={self.path}"
        if missing := [name for name in self.roles if name not in columns]:
            has = ", ".join(map(str, columns[:12]))
            raise DataError(where, f"has no column {missing[0]!r}; name it by data.label or data.group: {has}")
        if numbers := [name for name in columns if str(name).startswith(_ROW_NUMBERS)]:
            todo = "write it without (to_csv(index=False), remove_columns), or give the column a name"
            raise DataError(where, f"the column {numbers[0]!r} has row numbers of pandas; {todo}")

    def _labels(self, column: Series[Any]) -> tuple[NDArray[Any], list[Any]]:
        """Returns the labels, and what the numbers of classes stand for; floats are numbers to predict."""
        from pandas.api.types import infer_dtype, is_float_dtype

        if infer_dtype(column).startswith("mixed"):
            problem = f"the column {self.label!r} has numbers and names; write the labels alike in all files"
            raise DataError(f"data.path={self.path}", problem)
        if is_float_dtype(column.dtype):
            return column.to_numpy(dtype=np.float64), []
        classes, numbers = np.unique(column.to_numpy(), return_inverse=True)
        return numbers, classes.tolist()


class Table(_Columns):
    """Sizes and classes are those of the files, so a plan reads them, too."""

    name: str = "table"
    """Your own CSV or parquet files, a column a feature: one file, train and test, or one for each client."""

    def arrays(self) -> Arrays:
        import pandas

        parts, clients = self._files(Path(user_path(self.path)))
        tables = [_table_of(path) for path in parts]
        lengths = [len(table) for table in tables]
        table = pandas.concat(tables, ignore_index=True)
        self.check_columns(list(table.columns))
        part = np.repeat(list(parts.values()), lengths)
        whose = np.repeat(clients, lengths) if clients else None
        return self.joined(table, self._vectors(table.drop(columns=self.roles)), part, whose)

    def _files(self, path: Path) -> tuple[dict[Path, str], list[str]]:
        """Returns each file's part, '' for one that is divided, and the files' clients, [] where a file is no client.

        Raises DataError where there is no file, and where clients are files and values of a column, too.
        """
        if not path.is_dir():
            return {path: ""}, []
        files = dict.fromkeys(_tables_in(path), "")
        named = {file.stem: file for file in files}
        if named.keys() >= {*PARTS}:
            return {named[part]: part for part in PARTS}, []
        if all((path / part).is_dir() for part in PARTS):
            files = {file: part for part in PARTS for file in _tables_in(path / part)}
        if self.group or not files:
            problem = f"holds {len(files)} files *{' or *'.join(ENDINGS)}, each a client's"
            raise DataError(str(path), f"{problem}; write one or more, and leave data.group out")
        return files, [file.stem for file in files]

    def _vectors(self, table: DataFrame) -> NDArray[Any]:
        """Returns float32 (N, columns). Raises DataError that names the first column that holds no numbers."""
        from pandas.api.types import is_numeric_dtype

        for name in table.columns:
            column = self.column(table, name)
            if not is_numeric_dtype(column.dtype):
                todo = "leave the column out, write numbers, or name it by data.group if it says whose an example is"
                problem = f"the column {name!r} holds no numbers ({column.iloc[0]!r}); {todo}"
                raise DataError(f"data.path={self.path}", problem)
        return table.to_numpy(dtype=np.float32)


class HuggingFace(_Columns):
    """Sizes and classes are those of the folder, so a plan reads it, too."""

    name: str = "huggingface"
    """A folder that `save_to_disk` of Hugging Face's `datasets` wrote: pictures, lists of numbers or numbers."""

    def arrays(self) -> Arrays:
        where = f"data.path={self.path}"
        with users_code(where, "is no folder that datasets' save_to_disk wrote, or `datasets` is missing", DataError):
            import datasets

            found = datasets.load_from_disk(user_path(self.path))
        parts = found if isinstance(found, dict) else {"": found}
        if len(parts) == 1:
            parts = {"": next(iter(parts.values()))}
        elif missing := [part for part in PARTS if part not in parts]:
            raise DataError(where, f"has no part {missing[0]!r}; it has {', '.join(sorted(parts))}")
        else:
            parts = {part: parts[part] for part in PARTS}
        rows = datasets.concatenate_datasets(list(parts.values()))
        self.check_columns(rows.column_names)
        part = np.repeat(list(parts), [len(own) for own in parts.values()])
        names = getattr(rows.features[self.label], "names", None)
        return self.joined(rows.select_columns(self.roles).to_pandas(), self._examples(rows), part, names=names)

    def _examples(self, rows: Any) -> NDArray[Any]:
        """Returns the one column of pictures or lists, or all columns of numbers as float32 (N, columns)."""
        where = f"data.path={self.path}"
        rows = rows.remove_columns(self.roles).with_format("numpy")
        columns = {name: np.asarray(rows[name][:]) for name in rows.column_names}
        for name, column in columns.items():
            if column.dtype.kind not in "biuf":
                todo = "remove it (remove_columns), or give all rows one length"
                raise DataError(where, f"the column {name!r} holds text, or rows of unequal lengths; {todo}")
            if column.ndim > 1 and len(columns) > 1:
                todo = f"keep one column beside the label: select_columns([{name!r}, {self.label!r}])"
                raise DataError(where, f"the column {name!r} has lists or pictures, and there are others; {todo}")
        if len(columns) == 1:
            return next(iter(columns.values()))
        return np.stack(list(columns.values()), axis=1).astype(np.float32)


def _tables_in(folder: Path) -> list[Path]:
    """Returns the tables of a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix in ENDINGS and not path.name.startswith("."))


def _table_of(path: Path) -> DataFrame:
    """Reads a CSV or parquet file. Raises DataError."""
    import pandas

    with guarded(path, f"data.path is a file *{' or *'.join(ENDINGS)}, or a folder of them", "cannot be read"):
        if path.suffix not in ENDINGS:
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
