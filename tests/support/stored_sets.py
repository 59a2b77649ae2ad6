"""Small sets of images in a store that is a folder, and the end of their fetch processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from lit_loader.annotations import AnnotationTable
from lit_loader.datasets import DetectionDataset
from lit_loader.images.stored_reading import StoredReading
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.images import ImageStore, RemoteImages
from lit_loader.storage.settings import StorageSettings
from tests.support.any_table import small_table

FETCH_MODULE = "lit_loader.storage.fetch_process"


def catalog_of_files(folder: Path, names: list[str], *, root: str | None = None) -> Catalog:
    """Return the catalog of files, with an object for each file."""
    return Catalog(
        root=folder.as_uri() if root is None else root,
        objects=names,
        versions=[""] * len(names),
        object_of=np.arange(len(names), dtype=np.int32),
        starts=np.zeros(len(names), dtype=np.int64),
        lengths=np.array([(folder / name).stat().st_size for name in names], dtype=np.int64),
        path_hashes=Catalog.hash_paths(names),
    )


def remote_images(folder: Path, names: list[str], cache_dir: Path, **settings) -> RemoteImages:
    """Return a store of the files of a folder."""
    catalog = catalog_of_files(folder, names)
    return RemoteImages(catalog, StorageSettings(url=catalog.root, cache_dir=cache_dir, **settings))


def draw_images(folder: Path, num_images: int) -> list[str]:
    """Write small images, each of one other colour, and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number:03}.png" for number in range(num_images)]
    for number, name in enumerate(names):
        Image.fromarray(np.full((4, 5, 3), number, dtype=np.uint8)).save(folder / name)
    return names


def table_of(root: Path, names: list[str]) -> AnnotationTable:
    """Return a table of images without objects."""
    return small_table(
        root=root,
        image_paths=names,
        widths=[5] * len(names),
        heights=[4] * len(names),
        offsets=[0] * (len(names) + 1),
        boxes=np.empty((0, 4), dtype=np.float32),
        labels=[],
    )


def remote_set(store: ImageStore, root: Path, names: list[str], **settings) -> DetectionDataset:
    """Return a data set whose root has no files, so that all images are read from the store."""
    reading = StoredReading(stores={str(root): store})
    return DetectionDataset(table_of(root, names), reading=reading, **settings)


def fetch_processes(folder: Path | None = None) -> list[psutil.Process]:
    """Return the fetch processes that this process started and that still run, of all caches or of one folder."""
    words = {FETCH_MODULE} if folder is None else {FETCH_MODULE, str(folder)}
    processes = []
    for child in psutil.Process().children():
        # A child may end after it was listed.
        with contextlib.suppress(psutil.NoSuchProcess):
            if words <= set(child.cmdline()):
                processes.append(child)
    return processes


def end_fetch_processes(folder: Path | None = None) -> None:
    """End the fetch processes that this process started, which would wait for others."""
    deadline = time.monotonic() + 20
    while (processes := fetch_processes(folder)) and time.monotonic() < deadline:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        # A thread of the client waits for them.
        time.sleep(0.02)


@contextmanager
def closing_store(store: RemoteImages) -> Iterator[RemoteImages]:
    """Close a store at the end, and end its fetch process."""
    try:
        yield store
    finally:
        store.close()
        end_fetch_processes(store.folder)
