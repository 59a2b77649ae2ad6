"""Stored images of a test server: catalogs of raw files and of tar shards, and data sets that read them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.images.stored_reading import StoredReading
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.images import RemoteImages
from lit_loader.storage.settings import StorageSettings
from tests.support.object_server import ObjectServer
from tests.support.object_store import etag_of
from tests.support.stored_sets import catalog_of_files, end_fetch_processes, fetch_processes

__all__ = [
    "digest",
    "end_stores",
    "fetch_processes",
    "options_with_credentials",
    "packed_catalog",
    "raw_catalog",
    "remote_reading",
]

stores: list[RemoteImages] = []


def raw_catalog(server: ObjectServer, table: AnnotationTable) -> Catalog:
    """Return the catalog of a table whose root is a folder of the server's bucket."""
    root = Path(table.root)
    versions = [etag_of(os.stat(root / path)) for path in table.image_paths]
    url = server.url(str(root.relative_to(server.folder)))
    return replace(catalog_of_files(root, list(table.image_paths), root=url), versions=versions)


def packed_catalog(
    server: ObjectServer, table: AnnotationTable, *, images_per_shard: int, prefix: str = "shards"
) -> Catalog:
    """Write the images of a local table to tar shards in the server's bucket, and return their catalog."""
    folder = server.folder / prefix
    folder.mkdir()
    num_shards = -(-table.num_images // images_per_shard)
    names = [f"{number:05d}.tar" for number in range(num_shards)]
    starts = []
    lengths = []
    for number, name in enumerate(names):
        with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as shard:
            for path in table.image_paths[number * images_per_shard : (number + 1) * images_per_shard]:
                data = Path(table.root, path).read_bytes()
                member = tarfile.TarInfo(path)
                member.size = len(data)
                starts.append(shard.offset + tarfile.BLOCKSIZE)
                lengths.append(len(data))
                shard.addfile(member, io.BytesIO(data))
    return Catalog(
        root=server.url(prefix),
        objects=names,
        versions=[etag_of(os.stat(folder / name)) for name in names],
        object_of=(np.arange(table.num_images) // images_per_shard).astype(np.int32),
        starts=np.array(starts, dtype=np.int64),
        lengths=np.array(lengths, dtype=np.int64),
        path_hashes=Catalog.hash_paths(table.image_paths),
    )


def remote_reading(
    server: ObjectServer, table: AnnotationTable, catalog: Catalog, cache_dir: Path, **settings: Any
) -> StoredReading:
    """Return the reading of a data set over ``table`` whose images are in the server."""
    settings = {"options": server.options, **settings}
    storage = StorageSettings(url=catalog.root, cache_dir=cache_dir, **settings)
    store = RemoteImages(catalog, storage)
    stores.append(store)
    return StoredReading(stores={str(table.root): store})


def options_with_credentials(server: ObjectServer, file: Path, token: str) -> dict[str, str]:
    """Write a file with credentials, and return options that read it."""
    credentials = {"access_key_id": "id", "secret_access_key": "key", "token": token, "expires_at": None}
    # A fetch process may read the file now.
    file.with_suffix(".new").write_text(json.dumps(credentials))
    file.with_suffix(".new").rename(file)
    options = {name: value for name, value in server.options.items() if name != "skip_signature"}
    return options | {"credentials_file": str(file)}


def digest(batch: tuple[Any, list[dict[str, Any]]]) -> tuple[list[int], str]:
    """Return the indices of a batch of a detection data set, and a digest of its images and targets."""
    images, targets = batch
    state = blake2b(digest_size=16)
    for image in images:
        state.update(f"{image.dtype} {image.shape}".encode())
        state.update(image.contiguous().numpy().data)
    indices = [target["image_id"] for target in targets]
    for target in targets:
        state.update(repr(sorted((name, repr(value)) for name, value in target.items())).encode())
    return indices, state.hexdigest()


def end_stores() -> None:
    """Close the stores of `remote_reading`, and end the fetch processes that this process started."""
    while stores:
        stores.pop().close()
    end_fetch_processes()
