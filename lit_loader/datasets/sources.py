"""Sources of annotation tables: what a data module asks of one, and the base of those that read files."""

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
    """Gives the annotation tables of every stage, all with the same classes."""

    @abstractmethod
    def prepare(self) -> None:
        """Do once on a machine what the tables need: draw, unpack, index. Safe to call again."""

    @abstractmethod
    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the tables of a stage: one, several (a list of validation sets), or none."""

    def reopen(self) -> None:  # noqa: B027 # a source that keeps nothing has nothing to do
        """Take over what `prepare` has just done in another process of this machine; by default nothing is kept."""

    def fingerprint(self) -> Any:
        """Return something that differs when `prepare` or `reopen` has found other tables; by default always None."""
        return None


class FileSource(TableSource):
    """A source that reads annotation files: at the first call of `tables`, and again in `prepare`.

    Owns: The tables of all stages, once read. A copy for another process has none, and reads them through the cache.
    """

    _keys: list[Any]
    _tables: dict[Stage, list[AnnotationTable]]

    def prepare(self) -> None:
        """Read everything, so that other processes find the tables in the cache."""
        self._read(trust_cache=False)

    def reopen(self) -> None:
        """Open the tables that `prepare` has put into the cache, with no look at the files that they are made of."""
        self._read(trust_cache=True)

    def fingerprint(self) -> Any:
        """Return the keys of the tables in the cache."""
        return self.__dict__.get("_keys")

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the stage's tables."""
        if "_tables" not in self.__dict__:
            self._read(trust_cache=False)
        return list(self._tables[stage])

    @abstractmethod
    def _read_all(self, read: Callable[..., AnnotationTable]) -> dict[Stage, list[AnnotationTable]]:
        """Return the tables of all stages, read by ``read``, which takes what `read_annotations` takes."""

    def _read(self, *, trust_cache: bool) -> None:
        keys: list[Any] = []

        def read(*arguments: Any, **options: Any) -> AnnotationTable:
            table = read_annotations(*arguments, trust_cache=trust_cache, **options)
            keys.append(table.cache_key or object())  # one that is not in the cache may be another each time
            return table

        tables = self._read_all(read)
        if keys != self.fingerprint():  # else those that are there are as good
            self.__dict__.update(_keys=keys, _tables=tables)  # a subclass may be a frozen dataclass

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_keys", "_tables")}


def listed(names: Names) -> list[str]:
    """Return what a stage is given as a list: one name, several, or none."""
    if names is None:
        return []
    return [names] if isinstance(names, str) else list(names)
