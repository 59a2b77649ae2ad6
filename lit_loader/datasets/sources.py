"""Interface of the sources that give a data module its annotation tables, and a base class for reading files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import read_annotations

__all__ = ["FileSource", "Names", "Stage", "TableSource", "listed"]

Stage: TypeAlias = Literal["train", "val", "test", "predict"]
Names: TypeAlias = str | Sequence[str] | None


class TableSource(ABC):
    """Source of the annotation tables of every stage, all with the same classes."""

    @abstractmethod
    def prepare(self) -> None:
        """Prepare the tables once per machine: draw, unpack, index. Calling it again must be safe."""

    @abstractmethod
    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the tables of a stage: one, several (for several validation sets), or none."""

    def reopen(self) -> None:  # noqa: B027 # optional: a source without state has nothing to do
        """Load the results of `prepare` in another process of this machine; by default does nothing."""

    def fingerprint(self) -> Any:
        """Return a value that changes if `prepare` or `reopen` found other tables; by default always None."""
        return None


class FileSource(TableSource):
    """A source that reads annotation files at the first call of `tables`, and again in `prepare`.

    Owns: The tables of all stages, once read. A pickled copy has none, and reads them through the cache.
    """

    _keys: list[Any]
    _tables: dict[Stage, list[AnnotationTable]]

    def prepare(self) -> None:
        """Read everything, so that other processes find the tables in the cache."""
        self._read(trust_cache=False)

    def reopen(self) -> None:
        """Open the tables that `prepare` cached, without checking the annotation files again."""
        self._read(trust_cache=True)

    def fingerprint(self) -> Any:
        """Return the keys of the tables in the cache."""
        return self.__dict__.get("_keys")

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the tables of a stage."""
        if "_tables" not in self.__dict__:
            self._read(trust_cache=False)
        return list(self._tables[stage])

    @abstractmethod
    def read_all(self, read: Callable[..., AnnotationTable]) -> dict[Stage, list[AnnotationTable]]:
        """Return the tables of all stages, using ``read``, which has the arguments of `read_annotations`."""

    def _read(self, *, trust_cache: bool) -> None:
        keys: list[Any] = []

        def read(*arguments: Any, **options: Any) -> AnnotationTable:
            table = read_annotations(*arguments, trust_cache=trust_cache, **options)
            # A table without a cache key may have changed; a new object() never equals an earlier one.
            keys.append(table.cache_key or object())
            return table

        tables = self.read_all(read)
        # With equal keys, keep the current tables, so that datasets made from them stay valid.
        if keys != self.fingerprint():
            # Subclasses may be frozen dataclasses, so set the attributes directly.
            self.__dict__.update(_keys=keys, _tables=tables)

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the tables through the cache, without copying them.
        return {name: value for name, value in self.__dict__.items() if name not in ("_keys", "_tables")}


def listed(names: Names) -> list[str]:
    """Return the names of a stage as a list, from one name, several, or None."""
    if names is None:
        return []
    return [names] if isinstance(names, str) else list(names)
