"""The data set of a command: its folder, or for the URL of a store the mirror, and how its images are read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lit_loader.annotations.formats.folder import is_image_name
from lit_loader.app.commands.settings import UsageError, parse_actions, parse_value, usage_errors
from lit_loader.storage.mirror import Mirror, open_mirror
from lit_loader.storage.settings import check_url, is_public_option, is_url, remote_settings

if TYPE_CHECKING:
    from lit_loader.annotations.splitting import Traits
    from lit_loader.images import ImageReading

__all__ = ["errors_with_url", "folder_of", "is_place", "reading_of", "refuse_url", "storage_of", "traits_of"]

_LISTED: Final = "listed_mirrors"


def is_place(root: str) -> bool:
    """Return True if a word is a URL, whose scheme is checked later, or an existing folder."""
    return "://" in root or Path(root).is_dir()


def folder_of(arguments: argparse.Namespace, root: str) -> Path:
    """Return the folder to read: a folder itself, or the mirror of a URL, which is listed once in a command.

    Args:
        arguments: The arguments of a command that reads annotations.
        root: A folder or URL.

    Raises:
        UsageError: If an option of the store is a credential, unknown, or has a wrong value.
        StorageError: If the store cannot be read.
    """
    mirror = _mirror(arguments, root)
    return Path(root) if mirror is None else mirror.folder


def reading_of(arguments: argparse.Namespace) -> ImageReading:
    """Return the reading of the images of ``arguments.root``."""
    # Commands that read no pixels need not import torch, which takes seconds.
    from lit_loader.images import ImageReading
    from lit_loader.images.stored_reading import StoredReading
    from lit_loader.storage.images import RemoteImages

    mirror = _mirror(arguments, arguments.root)
    if mirror is None:
        return ImageReading()
    store = RemoteImages(mirror.catalog, mirror.settings)
    return StoredReading.extending(ImageReading(), {str(mirror.folder): store})


def traits_of(arguments: argparse.Namespace) -> Traits | None:
    """Return functions of a path that are equal for copies of an image, or None to compare files."""
    return reading_of(arguments).copy_traits if is_url(arguments.root) else None


@contextmanager
def errors_with_url(arguments: argparse.Namespace, root: str) -> Iterator[None]:
    """Name the URL instead of its mirror in errors about annotations."""
    mirror = _mirror(arguments, root)
    if mirror is None:
        yield
        return
    with mirror.named_in_errors():
        yield


def refuse_url(arguments: argparse.Namespace, action: str, remedy: str) -> None:
    """Refuse the URL of a store as ROOT, for a command that needs files of this host.

    Raises:
        UsageError: If ROOT is a URL.
    """
    if is_url(arguments.root):
        # The message below repeats the URL.
        with usage_errors():
            check_url(arguments.root)
        raise UsageError(f"ROOT {arguments.root!r} is the URL of a store, and {action}; {remedy}")


def _mirror(arguments: argparse.Namespace, root: str) -> Mirror | None:
    mirrors: dict[str, Mirror] = vars(arguments).setdefault(_LISTED, {})
    if root in mirrors:
        return mirrors[root]
    for listed_root, mirror in mirrors.items():
        folder = root.removeprefix(f"{listed_root.rstrip('/')}/")
        # A folder that was found in the data set is a part of its mirror.
        if folder != root:
            return mirror.below(folder)
    settings = None
    with usage_errors():
        settings = remote_settings(root, storage_of(arguments), cache_dir=arguments.cache_dir)
        if settings is None:
            return None
        mirrors[root] = open_mirror(settings, is_image=is_image_name, refresh=True, progress=arguments.progress)
    return mirrors[root]


def storage_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``--storage``, without credentials, which other users could see in a list of processes."""
    storage = {name: parse_value(value) for name, value in parse_actions(arguments.storage).items()}
    for name in storage:
        if not is_public_option(name):
            remedy = "give it by the store's environment variable, such as AWS_SECRET_ACCESS_KEY"
            raise UsageError(f"--storage {name}=... may be a credential, which a command line would show; {remedy}")
    return storage
