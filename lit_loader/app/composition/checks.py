"""Check a composed config against the signatures of its targets: unknown, missing and mistyped keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from lit_loader.foundation.signatures import Signature, fits, signature_of, type_text

__all__ = ["ConfigError", "unknown_key", "validate"]

_ROOT = Signature({"seed": int | None, "num_threads": int, "show_progress": bool}, is_open=True)
_PRESETS = {
    "ClassificationDataModule": "classification_transforms",
    "DetectionDataModule": "detection_transforms",
    "KeypointDataModule": "detection_transforms",
    "LandmarkDataModule": "landmark_transforms",
    "MultiTaskDataModule": "detection_transforms",
}


class ConfigError(ValueError):
    """A composed config does not fit its targets; the message lists every misfit with its remedy."""


def validate(cfg: DictConfig) -> None:
    """Check a composed config: its root, and every ``_target_`` against the signature that it names.

    A target that cannot be imported is left to `hydra.utils.instantiate`; the nodes inside are still checked.

    Raises:
        ConfigError: If keys are unknown, missing, or of the wrong type; the message lists all of them.
    """
    misfits = list(_misfits("", cfg, {}))
    if misfits:
        raise ConfigError("\n".join(misfits))


def accepted(path: str, node: Mapping[Any, Any], parent: Mapping[Any, Any]) -> Signature | None:
    """Return the keys that a node of a config may have, or None if they are unknown.

    Args:
        path: Path of the node, such as ``datamodule.train_transforms``.
        node: The node.
        parent: The node that contains it.
    """
    if "_target_" in node:
        return signature_of(str(node["_target_"]))
    # The transforms of a shipped data module are keywords of a preset, without a _target_ of their own.
    package, _, preset = str(parent.get("_target_", "")).rpartition(".")
    if path.endswith("_transforms") and package == "lit_loader.datamodules" and preset in _PRESETS:
        whole_images = preset == "LandmarkDataModule" and parent.get("sample_unit") == "image"
        function = "detection_transforms" if whole_images else _PRESETS[preset]
        signature = signature_of(f"lit_loader.transforms.{function}")
        if signature is None:
            return None
        # The data module sets these two itself.
        types = {name: hint for name, hint in signature.types.items() if name not in ("train", "crop")}
        types["hflip"] = types["hflip"] | None  # None: the data module chooses by the points' mirror pairs
        return Signature(types, is_open=False)
    return _ROOT if path == "" else None


def _misfits(path: str, node: DictConfig | ListConfig, parent: Mapping[Any, Any]) -> Iterator[str]:
    if isinstance(node, DictConfig):
        yield from _key_misfits(path, node, accepted(path, node, parent))
    keys: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        # The target of an interpolation is checked at its own path.
        if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
            child = node[key]
            if isinstance(child, DictConfig | ListConfig):
                yield from _misfits(_joined(path, str(key)), child, node if isinstance(node, DictConfig) else {})


def _key_misfits(path: str, node: DictConfig, signature: Signature | None) -> Iterator[str]:
    hints, is_open = signature or Signature({}, is_open=True)
    key: Any
    for key in node:
        name = str(key)
        key_path = _joined(path, name)
        if OmegaConf.is_missing(node, key) and (name in hints or name == "_target_"):
            yield f"{key_path} is missing; pass {key_path}=VALUE"
        elif name not in hints:
            if not is_open and not (name.startswith("_") and name.endswith("_")):
                children = {str(k): OmegaConf.select(node, str(k), throw_on_resolution_failure=False) for k in node}
                nested = [key for key, child in children.items() if isinstance(child, DictConfig) and name in child]
                yield unknown_key(path, name, list(hints), [f"{_joined(path, key)}.{name}" for key in nested])
        # The value of an interpolation may need a resolver of Hydra that does not work yet.
        elif not OmegaConf.is_interpolation(node, key):
            value = node[key]
            # Unresolved, since an interpolation inside of it is checked at its own path.
            if isinstance(value, DictConfig | ListConfig):
                value = OmegaConf.to_container(value, resolve=False)
            if not fits(value, hints[name]):
                # Keywords of presets take schedules; a transform of the user needs a wrapper, which rebuilds it.
                is_extra = ".extra_before." in path or ".extra_after." in path
                is_schedule = isinstance(value, dict) and not value.keys().isdisjoint({"points", "epochs", "choices"})
                wrapper = "; for a schedule, wrap the transform in lit_loader.transforms.ScheduledTransform"
                remedy = wrapper if is_extra and is_schedule else ""
                yield f"{key_path}={value!r} should be {type_text(hints[name])}{remedy}"


def unknown_key(path: str, name: str, accepted_keys: Sequence[str], nested_keys: Sequence[str]) -> str:
    """Return the message for a key that a node of a config does not accept.

    Args:
        path: Path of the node.
        name: The key.
        accepted_keys: The keys that the node accepts; the closest one is suggested.
        nested_keys: Paths of keys with the same name inside of the node, which are suggested first.
    """
    closest_keys = [_joined(path, key) for key in difflib.get_close_matches(name, accepted_keys, n=1)]
    suggested_keys = nested_keys or closest_keys
    suggestion = f"did you mean {' or '.join(suggested_keys)}? Its" if suggested_keys else "its"
    return f"{path} has no key {name!r}; {suggestion} keys: {', '.join(accepted_keys) or 'none'}"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
