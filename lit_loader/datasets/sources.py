"""Interface of the sources that give a data module its annotation tables, and a base class for reading files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from lit_loader.annotations import AnnotationTable
from lit_loader.samplers import MixedSourceSampler, OrderSampler

__all__ = ["FileSource", "Names", "Stage", "StageTables", "TableSource", "listed"]

Stage: TypeAlias = Literal["train", "val", "test", "predict"]
StageTables: TypeAlias = dict[Stage, list[AnnotationTable]]
Names: TypeAlias = str | Sequence[str] | None


class TableSource(ABC):
    """Source of the annotation tables of every stage, all with the same classes."""

    @abstractmethod
    def prepare(self) -> None:
        """Prepare the tables once per machine: draw, unpack, index. Calling it again must be safe."""

    @abstractmethod
    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the tables of a stage: one, several (for several validation sets), or none."""

    def set_names(self, stage: Stage) -> list[str]:
        """Return a name for each table of a stage, by default its number, or an empty name for a single table."""
        num_tables = len(self.tables(stage))
        return [""] if num_tables == 1 else [str(number) for number in range(num_tables)]

    def join_samplers(self, samplers: Sequence[OrderSampler]) -> OrderSampler:
        """Return the sampler of training with several tables, whose samples count through all tables.

        By default an epoch is one epoch of each table, all mixed.

        Args:
            samplers: The sampler of each training table.
        """
        return MixedSourceSampler(samplers)

    def reopen(self) -> None:  # noqa: B027 # optional: a source without state has nothing to do
        """Load the results of `prepare` in another process of this machine; by default does nothing."""

    def fingerprint(self) -> Any:
        """Return a value that changes if `prepare` or `reopen` found other tables; by default always None."""
        return None


class FileSource(TableSource):
    """A source that reads files at the first call of `tables`, and again in `prepare`.

    Owns: The tables of all stages, once read. A pickled copy has none, and reads them through the cache, if any.
    """

    _key: Any
    _tables: StageTables

    def prepare(self) -> None:
        """Read everything, so that other processes find the tables in the cache."""
        self._update(trust_cache=False)

    def reopen(self) -> None:
        """Open the tables that `prepare` cached, without checking the annotation files again."""
        self._update(trust_cache=True)

    def fingerprint(self) -> Any:
        """Return a value that changes with the files, or None before they were read."""
        return self.__dict__.get("_key")

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the tables of a stage."""
        if "_tables" not in self.__dict__:
            self._update(trust_cache=False)
        return list(self._tables[stage])

    @abstractmethod
    def read(self, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Read all files; return a key that changes with them, and the tables of all stages.

        Args:
            trust_cache: Open cached tables without checking whether their files have changed.
        """

    def _update(self, *, trust_cache: bool) -> None:
        key, tables = self.read(trust_cache=trust_cache)
        # With an equal key, keep the current tables, so that datasets made from them stay valid.
        if key != self.fingerprint():
            # Subclasses may be frozen dataclasses, so set the attributes directly.
            self.__dict__.update(_key=key, _tables=tables)

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the tables through the cache, without copying them.
        return {name: value for name, value in self.__dict__.items() if name not in ("_key", "_tables")}


def listed(names: Names) -> list[str]:
    """Return the names of a stage as a list, from one name, several, or None."""
    if names is None:
        return []
    return [names] if isinstance(names, str) else list(names)
