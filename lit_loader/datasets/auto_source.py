"""A source that finds the format and the layout of its data set."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lit_loader.annotations.layouts import STAGES, Layout, choose_layout
from lit_loader.datasets.format_source import FormatSource
from lit_loader.datasets.packed_source import PackedSource
from lit_loader.datasets.sources import StageTables
from lit_loader.errors import SettingError
from lit_loader.foundation.escaping import escape_interpolations, hydra_value, printable, shell_command
from lit_loader.images import ImageReading
from lit_loader.storage.pack_target import CATALOG_FILE, set_file
from lit_loader.storage.settings import is_public_option

__all__ = ["AutoSource", "dataset_overrides", "open_source"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AutoSource(FormatSource):
    """A data set whose format and layout are found when its tables are first asked for.

    The search lists names and reads the start of a few files; it opens no image. The log names the layout, and the
    settings of the same source without a search.

    Args:
        root: Folder of the data set, or a folder with one data set in it, or the URL of such a folder in a store.
        layout: Name of the layout to use where several fit; the error lists them.
        options: Options of the format, which override those that were found.
        policy: Actions for problems in the annotations; they override the actions of the layout.
        val_fraction: Fraction of the training images to hold out for validation if the data set has no such split.
        test_fraction: The same for testing, if the data set has neither a test nor a validation split; a data set
            without a test split is tested on its validation split.
        train, val, test: File, folder or split of a stage, or None for the one that was found.
        folds, fold, split_file: As of `FormatSource`; no images are then held out by fractions.
        predict, stage_options, group_pattern, seed, class_names, storage, cache_dir, num_workers, progress: As of
            `FormatSource`.

    Raises:
        AnnotationError: From every method: no layout fits, or several do and ``layout`` names none of them; or as for
            `FormatSource`.
    """

    format: str = field(default="", init=False)
    layout: str | None = None
    val_fraction: float = 0.1
    test_fraction: float = 0.1

    def __post_init__(self) -> None:
        """Leave the checks of the settings to the source that is found."""

    def find(self, *, refresh: bool = True) -> FormatSource:
        """Return the source of the layout, after the first call always the same one.

        Args:
            refresh: List the store of a URL again in the first call.
        """
        # A frozen dataclass has no other place for it.
        source: FormatSource | None = self.__dict__.get("_source")
        if source is None:
            mirror = self.open_mirror(refresh=refresh)
            root = str(Path(self.root).resolve()) if mirror is None else mirror.settings.url
            with nullcontext() if mirror is None else mirror.named_in_errors():
                folder = Path(root) if mirror is None else mirror.folder
                # No reader of files finds the images of a packed set, so its layout is the only one.
                layout = _packed_layout(folder) or choose_layout(folder, self.layout)
            source = self._source_of(layout, root if layout.root == "." else f"{root}/{layout.root}")
            # The mirror of a packed set also has its tar files.
            if mirror is not None and layout.format != "packed":
                source.use_mirror(mirror.below(layout.root), self.__dict__["_time_listed"])
            self.__dict__["_source"] = source
            _logger.info("%s: %s (%s)", printable(root), layout.format, layout.reason)
            overrides = shell_command(dataset_overrides(source))
            _logger.info("the same without a search, as the only data set: %s", overrides)
            for stage in ("val", "test"):
                if fraction := getattr(source, f"{stage}_fraction"):
                    # A warning, because a program without logging set up shows nothing else.
                    message = "%s: no split for %s: %g %% of the training images are held out for it"
                    _logger.warning(message, printable(root), stage, 100 * fraction)
        return source

    def _source_of(self, layout: Layout, root: str) -> FormatSource:
        names: dict[str, Any] = {stage: getattr(self, stage) or layout.stages.get(stage) for stage in STAGES}
        # Without a test split the run tests on the validation split, as the configs of single formats do.
        names["test"] = names["test"] or names["val"]
        # Options that were found belong to the files that were found.
        found_options = {
            stage: options for stage, options in layout.stage_options.items() if names[stage] == layout.stages[stage]
        }
        if names["test"] == names["val"] and "val" in found_options:
            found_options.setdefault("test", found_options["val"])
        stage_options = {
            stage: {**found_options.get(stage, {}), **self.stage_options.get(stage, {})}
            for stage in dict.fromkeys((*found_options, *self.stage_options))
        }
        has_folds = self.folds is not None or self.split_file is not None
        fractions: dict[str, Any] = {
            f"{stage}_fraction": 0.0
            if names[stage] or not names["train"] or has_folds
            else getattr(self, f"{stage}_fraction")
            for stage in ("val", "test")
        }
        settings = {setting.name: getattr(self, setting.name) for setting in fields(FormatSource)}
        settings |= {
            "format": layout.format,
            "root": root,
            "options": {**layout.options, **self.options},
            "stage_options": stage_options,
            "policy": {**layout.policy, **self.policy},
        }
        settings |= {**names, **fractions}
        return _packed_source(settings) if layout.format == "packed" else FormatSource(**settings)

    def read(self, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Find the layout, and read the tables of all stages."""
        return self.find(refresh=not trust_cache).read(trust_cache=trust_cache)

    def image_reading(self, reading: ImageReading) -> ImageReading:
        """Return the reading of the source that is found."""
        return self.find(refresh=False).image_reading(reading)


def _packed_source(settings: Mapping[str, Any]) -> PackedSource:
    """Return the source of a packed set.

    Raises:
        SettingError: A setting is of annotation files.
    """
    accepted = {setting.name for setting in fields(PackedSource) if setting.init}
    for name in ("options", "stage_options", "policy"):
        if settings[name]:
            raise SettingError(name, settings[name], "is of annotation files, and the data set is packed", "remove it")
    return PackedSource(**{name: value for name, value in settings.items() if name in accepted})


def _packed_layout(folder: Path) -> Layout | None:
    """Return the layout of a packed set, or None for another folder."""
    if not (folder / CATALOG_FILE).is_file():
        return None
    stages = {stage: stage for stage in STAGES if (folder / set_file(stage)).is_file()}
    return Layout(name="packed", format="packed", reason=f"the index {CATALOG_FILE}", stages=stages)


def open_source(root: str | Path, **settings: Any) -> FormatSource:
    """Find the format and the layout of a data set, and return the source that reads it.

    Args:
        root: As of `AutoSource`.
        settings: The other arguments of `AutoSource`, such as ``layout`` or ``class_names``.

    Raises:
        AnnotationError: As for `AutoSource`.
    """
    return AutoSource(root, **settings).find()


def dataset_overrides(source: FormatSource) -> list[str]:
    """Return the overrides that give this source with ``dataset=files``, or ``dataset=packed`` for a packed set."""
    defaults = {setting.name: setting.default for setting in fields(source) if setting.init}
    words = [f"dataset={'packed' if isinstance(source, PackedSource) else 'files'}"]
    for name, default in defaults.items():
        value = getattr(source, name)
        if name == "storage":
            # Credentials belong into the environment, and not on a command line.
            value = {key: item for key, item in value.items() if is_public_option(key)}
        if isinstance(value, Mapping):
            # The config has none of the options, so the words add them.
            words += [f"++dataset.{name}.{key}={_text(item)}" for key, item in _flatten(value).items()]
        elif value != default:
            words.append(f"dataset.{name}={_text(value)}")
    return words


def _text(value: Any) -> str:
    # Names of files may contain "${", which OmegaConf would interpret.
    return hydra_value(escape_interpolations(value) if isinstance(value, str) else value)


def _flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return flat
