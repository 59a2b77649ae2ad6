"""A source of several sources: one table for each of them, all with the same names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.keypoints import common_schema
from lit_loader.annotations.merge import with_same_names
from lit_loader.datasets.auto_source import AutoSource
from lit_loader.datasets.sources import Stage, StageTables, TableSource
from lit_loader.errors import LitLoaderError, SettingError, as_argument
from lit_loader.foundation.escaping import hydra_value
from lit_loader.images import ImageReading
from lit_loader.samplers import MixedSourceSampler, OrderSampler
from lit_loader.samplers.checks import checked_int
from lit_loader.samplers.epoch_settings import EpochSetting, epoch_schedule
from lit_loader.samplers.mixed_source import share_check
from lit_loader.schedules import EpochSchedule, Scheduled

__all__ = ["MixedSource"]

MissingClass: TypeAlias = Literal["unlabelled", "absent"]
"""Meaning of a class that a source does not label: its objects may be visible in the images, or there are none."""

_STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
# Key of `classes` for all classes that are not listed.
_OTHERS: Final = "*"


class _Mix(NamedTuple):
    """Tables of all stages, and the name of each table.

    Attributes:
        key: The fingerprint of the sources that the tables were made from.
        tables: The tables by stage.
        names: Their names by stage.
    """

    key: Any
    tables: StageTables
    names: dict[Stage, list[str]]


@dataclass(frozen=True, kw_only=True)
class MixedSource(TableSource):
    """Several sources in one run, each with its own root and its own classes.

    Every stage has one table for each source that has the stage, in the order of ``sources``; a source with several
    validation sets gives all of them. Validation and testing therefore have one set for each source. Training joins the
    tables, as ``ratio`` says. All tables have the same names:

    - Classes get common numbers, after ``classes`` has renamed, merged or dropped them. Objects of dropped classes
      vanish, and their images stay: an image that only had such objects becomes an image without objects.
    - A class that one source labels and another does not must be settled by ``missing``. The tables of a source with an
      unlabelled class name it in `AnnotationTable.unlabelled_classes`.
    - Attributes of all sources are united, and so are the values of an attribute. Objects of a source without the
      attribute have no value.
    - Points must have the same schema. Objects of a source without points get absent points.

    Args:
        sources: Source of each name, or the path of a data set, which `AutoSource` opens. Names of metrics and files
            contain the name, see `TableDataModule.set_names`.
        classes: For each source the new name of its classes, the same name for classes to merge, or None for classes to
            drop. The entry ``"*"`` is for all classes that have none, which otherwise keep their names.
        class_names: Names of the run in the order of their ids, or None for the order of first occurrence.
        missing: Meaning of the classes that a source does not label: ``"unlabelled"`` if their objects may be visible
            in its images, so that loss and metrics ignore the class there, or ``"absent"`` if there are none, so that
            such a detection is wrong. One word for all, or a mapping from source to word, or from source to a mapping
            from class to word.
        ratio: Number of each source in proportion to which training mixes their samples, for all sources with training
            images. None for every source in full. With ``ratio_per="epoch"`` and ``num_samples`` a number may be a
            schedule of epochs, such as ``{"points": {0: 3, 10: 1}}``, and may then be 0 in some of them.
        ratio_per: ``"batch"`` for batches with exactly ``ratio`` samples of each source, or a multiple of it, on every
            rank; the numbers are integers, and the batch size is a multiple of their sum. ``"epoch"`` for exact shares
            of each epoch at random positions.
        num_samples: Training samples of an epoch, over all ranks, or None for the smallest number that visits every
            source in full.
        cache_dir: Folder of the cached tables of sources that are given by path, and of decoded images, or None for the
            user's cache folder.
        progress: Show progress bars of sources that are given by path.

    Raises:
        TypeError: A setting has a wrong type.
        ValueError: Settings contradict each other, or name an unknown source; from every method also: they do not fit
            the classes, points or training images of the sources.
        LitLoaderError: From every method: a source cannot be read; the error names it.
    """

    sources: Mapping[str, TableSource | str | Path] = field(kw_only=False)
    classes: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    class_names: Sequence[str] | None = None
    missing: MissingClass | Mapping[str, Any] | None = None
    ratio: Mapping[str, Scheduled] | None = None
    ratio_per: Literal["batch", "epoch"] = "epoch"
    num_samples: int | None = None
    cache_dir: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.sources, Mapping):
            raise TypeError(
                f"`sources` must map names to sources, got {type(self.sources).__name__}; give a mapping such as "
                "{'plant': 'data/plant', 'street': 'data/street'}"
            )
        if not self.sources:
            raise ValueError("`sources` is empty; give at least one source")
        if isinstance(self.ratio, Mapping):
            # Before its keys become text, because the epochs of a schedule are whole numbers.
            self.__dict__["ratio"] = {name: epoch_schedule(f"ratio.{name}", item) for name, item in self.ratio.items()}
        for setting in ("sources", "classes", "missing", "ratio"):
            self.__dict__[setting] = _with_text_keys(getattr(self, setting))
        self._check_names()
        _check_classes(self.classes)
        _check_missing(self.missing)
        if isinstance(self.class_names, str):
            raise TypeError(f"class_names={self.class_names!r} must be a list of names, got str")
        self._check_ratio()
        # A frozen dataclass has no other place for them.
        self.__dict__["_source_by_name"] = {name: self._open(name, source) for name, source in self.sources.items()}

    # -- settings -------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        for name in self.sources:
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                raise ValueError(f"sources names {name!r}; expected a text that can be printed")
        settings = {"classes": self.classes, "missing": self.missing, "ratio": self.ratio}
        for setting, value in settings.items():
            unknown = [name for name in value if name not in self.sources] if isinstance(value, Mapping) else []
            if unknown:
                raise ValueError(
                    f"{setting} names {unknown}, expected names of sources: {list(self.sources)}; with a checkpoint of "
                    "a run on other sources, give classes, missing, ratio, ratio_per and class_names again"
                )

    def _check_ratio(self) -> None:
        if self.ratio_per not in ("batch", "epoch"):
            raise ValueError(f"ratio_per={self.ratio_per!r} is not one of ['batch', 'epoch']")
        if self.num_samples is not None:
            checked_int("num_samples", self.num_samples, minimum=1)
        ratio: Any = self.ratio
        if not isinstance(ratio, Mapping | None):
            raise TypeError(f"ratio={ratio!r} must map names of sources to numbers, got {type(ratio).__name__}")
        if ratio is None:
            if self.ratio_per == "batch":
                rule = "needs the number of each source in a batch"
                raise SettingError("ratio_per", "batch", rule, settings={"ratio": ..., "ratio_per": "epoch"})
            return
        is_scheduled = any(isinstance(number, EpochSchedule) for number in ratio.values())
        if is_scheduled and self.ratio_per == "batch":
            rule = "fixes the numbers of every batch, and ratio has a schedule"
            raise SettingError("ratio_per", "batch", rule, settings={"ratio_per": "epoch"})
        if is_scheduled and self.num_samples is None:
            rule = "leaves the length of an epoch open, because ratio has a schedule and the length must not change"
            raise SettingError("num_samples", None, rule, settings={"num_samples": ...})
        for name, number in ratio.items():
            EpochSetting(f"ratio[{name!r}]", number, share_check(number))
            if self.ratio_per == "batch" and int(number) != number:
                raise SettingError(
                    "ratio_per",
                    "batch",
                    f"needs whole numbers of samples, got ratio[{name!r}]={number}",
                    settings={"ratio_per": "epoch"},
                )

    def _open(self, name: str, source: Any) -> TableSource:
        if isinstance(source, TableSource):
            return source
        if not isinstance(source, str | Path):
            raise TypeError(
                f"sources[{name!r}]={source!r} must be a TableSource or a path; a node of a config needs a _target_, "
                "such as lit_loader.datasets.AutoSource"
            )
        return AutoSource(source, cache_dir=self.cache_dir, progress=self.progress)

    # -- as a source ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Prepare every source."""
        for name, source in self._opened.items():
            with self._errors_of(name):
                source.prepare()

    def reopen(self) -> None:
        """Open what `prepare` has prepared in another process of this machine."""
        for name, source in self._opened.items():
            with self._errors_of(name):
                source.reopen()

    def fingerprint(self) -> Any:
        """Return the fingerprints of the sources."""
        return tuple(source.fingerprint() for source in self._opened.values())

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the tables of a stage, in the order of the sources."""
        return list(self._current_mix().tables[stage])

    def set_names(self, stage: Stage) -> list[str]:
        """Return the name of the source of each table; ``plant-0``, ``plant-1`` for several sets of one source."""
        return list(self._current_mix().names[stage])

    def join_samplers(self, samplers: Sequence[OrderSampler]) -> OrderSampler:
        """Return the sampler of training, which mixes the sources as ``ratio`` says.

        Args:
            samplers: The sampler of each training table.
        """
        if self.ratio is None:
            return MixedSourceSampler(samplers, num_samples=self.num_samples)
        numbers = [self.ratio[name] for name in self.set_names("train")]
        if self.ratio_per == "epoch":
            return MixedSourceSampler(samplers, shares=numbers, num_samples=self.num_samples)
        counts = [int(cast("float", number)) for number in numbers]
        if self.num_samples is not None and self.num_samples % sum(counts):
            raise SettingError(
                "num_samples",
                self.num_samples,
                f"is not a multiple of {sum(counts)}, the sum of {dict(self.ratio)}",
                settings={"num_samples": -(-self.num_samples // sum(counts)) * sum(counts)},
            )
        return MixedSourceSampler(samplers, counts, num_samples=self.num_samples)

    def image_reading(self, reading: ImageReading) -> ImageReading:
        """Return a reading for the images of every source."""
        for source in self._opened.values():
            reading = source.image_reading(reading)
        return reading

    @contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        """Name a source in its errors."""
        try:
            yield
        except (LitLoaderError, SettingError) as error:
            # Its settings belong to the source, and would be written as settings of the mix.
            source = self.sources[name]
            if isinstance(source, TableSource):
                remedies = [f"give {as_argument(*setting)} to the source" for setting in error.settings.items()]
            else:
                nodes = _nodes_of(str(source), error.settings)
                remedies = [f"set arguments of the source by dataset.sources.{name}={node}" for node in nodes]
            error.remedy = "; ".join(filter(None, [error.remedy, " or ".join(remedies)]))
            error.settings = {}
            if isinstance(error, SettingError):
                error.argument = f"sources.{name}.{error.argument}"
            else:
                error.problem = f"source {name}: {error.problem}"
            error.args = (error.text(),)
            raise
        except (ValueError, TypeError) as error:
            # Subclasses, such as UnicodeDecodeError, have other arguments.
            if type(error) in (ValueError, TypeError):
                error.args = (f"source {name}: {error}",)
            raise

    @property
    def _opened(self) -> dict[str, TableSource]:
        source_by_name: dict[str, TableSource] = self.__dict__["_source_by_name"]
        return source_by_name

    def __getstate__(self) -> dict[str, Any]:
        # Another process makes the tables anew, from those that the sources open through their caches.
        return {name: value for name, value in self.__dict__.items() if name != "_mix"}

    # -- tables with the same names -------------------------------------------------------------------------

    def _current_mix(self) -> _Mix:
        current: _Mix | None = self.__dict__.get("_mix")
        if current is not None and current.key == self.fingerprint():
            return current
        tables_by_source: dict[str, StageTables] = {}
        for name, source in self._opened.items():
            with self._errors_of(name):
                tables_by_source[name] = {stage: source.tables(stage) for stage in _STAGES}
        self._check_training(tables_by_source)
        tables = self._with_same_names(tables_by_source)
        names = {stage: self._names_of(stage, tables_by_source) for stage in _STAGES}
        # After `tables`, because a source may read its files only then, and has another fingerprint afterwards.
        current = _Mix(self.fingerprint(), tables, names)
        self.__dict__["_mix"] = current
        return current

    def _names_of(self, stage: Stage, tables_by_source: Mapping[str, StageTables]) -> list[str]:
        names = []
        for name, tables in tables_by_source.items():
            inner_names = self._opened[name].set_names(stage)
            single = len(tables[stage]) == 1
            names += [name if single else f"{name}-{inner}" for inner in inner_names]
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise ValueError(f"several sets of {stage} have the names {repeated}; give other names to the sources")
        return names

    def _check_training(self, tables_by_source: Mapping[str, StageTables]) -> None:
        """Refuse training sets that cannot be mixed, and a ratio that does not fit them."""
        num_tables = {name: len(tables["train"]) for name, tables in tables_by_source.items()}
        for name, number in num_tables.items():
            if number > 1:
                raise ValueError(
                    f"sources[{name!r}] has {number} training tables; give a source with one, such as each of them "
                    "under a name of its own"
                )
        training = [name for name, number in num_tables.items() if number]
        if self.ratio is not None and training and set(self.ratio) != set(training):
            raise SettingError(
                "ratio",
                dict(self.ratio),
                f"must have a number for each source with training images, which are {training}",
            )
        if self.num_samples is not None and len(training) == 1:
            raise SettingError(
                "num_samples",
                self.num_samples,
                f"is the length of a mix, and only {training[0]} has training images",
                remedy="leave it out, or take a sampler with num_samples",
            )
        if self.ratio_per == "batch" and len(training) == 1:
            raise SettingError(
                "ratio_per",
                "batch",
                f"fixes the mix of a batch, and only {training[0]} has training images",
                settings={"ratio_per": "epoch"},
            )

    def _with_same_names(self, tables_by_source: Mapping[str, StageTables]) -> StageTables:
        """Return the tables of all sources by stage, with common classes, attributes and points."""
        # Stages of one source may share a table, which then stays shared.
        tables_by_id = {
            name: {id(table): table for stage in _STAGES for table in tables[stage]}
            for name, tables in tables_by_source.items()
        }
        renamed = {
            name: {key: self._renamed(name, table, tables.values()) for key, table in tables.items()}
            for name, tables in tables_by_id.items()
        }
        labelled = {name: _class_names(tables.values()) for name, tables in renamed.items()}
        class_names = self._names_of_run(labelled)
        # Nothing is learnt from a source without labelled stages, such as images to predict.
        lacking = {
            name: [label for label in class_names if label not in labels]
            for name, labels in labelled.items()
            if any(tables_by_source[name][stage] for stage in _STAGES[:3])
        }
        unlabelled = self._unlabelled_classes(lacking)
        _check_points(renamed)
        # Sources may share a table, and rename its classes differently.
        table_by_key: dict[tuple[str, int], AnnotationTable] = {}
        for name, tables in renamed.items():
            for table_id, table in tables.items():
                names = dict.fromkeys([*table.unlabelled_classes, *unlabelled.get(name, ())])
                numbered = table.with_class_names(class_names)
                table_by_key[name, table_id] = numbered.with_unlabelled_classes(tuple(names)) if names else numbered
        aligned = dict(zip(table_by_key, with_same_names(list(table_by_key.values())), strict=True))
        return {
            stage: [aligned[name, id(table)] for name, tables in tables_by_source.items() for table in tables[stage]]
            for stage in _STAGES
        }

    def _renamed(self, name: str, table: AnnotationTable, tables: Any) -> AnnotationTable:
        """Return a table of a source under the names of the run."""
        names = self.classes.get(name, {})
        source_names = _class_names(tables)
        unknown = [old for old in names if old not in (*source_names, _OTHERS)]
        if unknown:
            raise SettingError(
                "classes",
                {name: {old: names[old] for old in unknown}},
                f"names classes that {name} does not have; its classes: {', '.join(source_names)}",
            )
        return table.with_renamed_classes({old: names.get(old, names.get(_OTHERS, old)) for old in table.class_names})

    def _names_of_run(self, labelled: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        """Return the class names of the run."""
        all_names = tuple(dict.fromkeys(label for labels in labelled.values() for label in labels))
        if not all_names:
            raise ValueError("no source has a class, or `classes` drops all of them; keep at least one")
        if self.class_names is None:
            return all_names
        forgotten = [label for label in all_names if label not in self.class_names]
        if forgotten:
            raise SettingError(
                "class_names",
                list(self.class_names),
                f"lacks {forgotten}, which the sources have",
                remedy="add them, or drop them by classes",
            )
        return tuple(self.class_names)

    def _unlabelled_classes(self, lacking: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return the unlabelled classes of each source.

        Args:
            lacking: The classes of the run that each source does not label.
        """
        word_by_class: dict[str, Mapping[str, Any]] = {}
        for name, labels in lacking.items():
            entry = self.missing.get(name) if isinstance(self.missing, Mapping) else self.missing
            if isinstance(entry, Mapping):
                contradictory = [label for label in entry if label not in labels]
                if contradictory:
                    raise SettingError(
                        "missing",
                        {name: {label: entry[label] for label in contradictory}},
                        f"names classes that {name} labels, or that the run does not have; {name} lacks "
                        f"{', '.join(labels) or 'no class'}",
                    )
                word_by_class[name] = entry
            else:
                word_by_class[name] = {} if entry is None else dict.fromkeys(labels, entry)
        open_classes = {
            name: [label for label in labels if label not in word_by_class[name]] for name, labels in lacking.items()
        }
        if any(open_classes.values()):
            example = dict(self.missing) if isinstance(self.missing, Mapping) else {}
            for name, labels in open_classes.items():
                if labels:
                    words = {**word_by_class[name], **dict.fromkeys(labels, "unlabelled")}
                    example[name] = words if word_by_class[name] else "unlabelled"
            gaps = " and ".join(f"{name} lacks {', '.join(labels)}" for name, labels in open_classes.items() if labels)
            raise SettingError(
                "missing",
                self.missing,
                f"leaves open what these differences mean: {gaps}. 'unlabelled': such objects may be visible there "
                "without annotation, and loss and metrics ignore the class in those images. 'absent': there are none, "
                "and they count as background",
                remedy="give one word for all sources, or one for each class, or give classes of the same kind the "
                "same name by classes",
                settings={"missing": example},
            )
        return {
            name: [label for label in labels if word_by_class[name][label] == "unlabelled"]
            for name, labels in lacking.items()
        }


# -- checks ------------------------------------------------------------------------------------------------


def _check_classes(classes: Any) -> None:
    if not isinstance(classes, Mapping):
        raise TypeError(f"`classes` must map sources to mappings of class names, got {type(classes).__name__}")
    for name, names in classes.items():
        if not isinstance(names, Mapping):
            raise TypeError(f"classes[{name!r}]={names!r} must map class names to new names, or to None to drop them")
        for old, new in names.items():
            if not isinstance(old, str) or not (new is None or (isinstance(new, str) and new)):
                raise TypeError(
                    f"classes[{name!r}] has {old!r}: {new!r}, expected the name of a class and its new name, or None; "
                    "write a number as new name in quotes; a key has quotes only in a YAML file"
                )


def _check_missing(missing: Any) -> None:
    if missing is None:
        return
    words = get_args(MissingClass)
    for entry in missing.values() if isinstance(missing, Mapping) else [missing]:
        for word in entry.values() if isinstance(entry, Mapping) else [entry]:
            if word not in words:
                raise ValueError(f"missing={missing!r} has {word!r}, which is not one of {list(words)}")


def _check_points(tables_by_source: Mapping[str, Mapping[int, AnnotationTable]]) -> None:
    """Refuse sources with different points."""
    first: tuple[str, AnnotationTable] | None = None
    for name, tables in tables_by_source.items():
        for table in tables.values():
            if table.keypoint_schema is None:
                continue
            first = first or (name, table)
            try:
                common_schema((first[1].keypoint_schema, table.keypoint_schema))
            except ValueError as error:
                message = f"the points of the sources {first[0]} and {name} differ: {error}"
                raise ValueError(f"{message}, see the options of their formats") from None


def _class_names(tables: Any) -> tuple[str, ...]:
    """Return the classes of tables, in the order of first occurrence."""
    return tuple(dict.fromkeys(name for table in tables for name in table.class_names))


def _with_text_keys(value: Any) -> Any:
    """Return nested mappings with text for whole numbers as keys, since Hydra cannot parse quotes there."""
    if not isinstance(value, Mapping):
        return value
    return {str(key) if type(key) is int else key: _with_text_keys(item) for key, item in value.items()}


def _nodes_of(root: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Return configs of an `AutoSource`, each with one of the settings of an error, or with a placeholder."""
    arguments = {parameter.name for parameter in fields(AutoSource)}
    for name, value in (settings or {"ARGUMENT": ...}).items():
        setting: dict[str, Any] = {name: "VALUE" if value is ... else value}
        # Errors of a format name its options, and problems of its policy.
        owner, _, problem = name.partition(".")
        if owner == "policy":
            setting = {owner: {problem: setting[name]}}
        elif settings and name not in arguments:
            setting = {"options": setting}
        yield hydra_value({"_target_": "lit_loader.datasets.AutoSource", "root": root, **setting})
