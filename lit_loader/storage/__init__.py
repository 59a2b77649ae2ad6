"""Stored images that are not files of this host: objects of a store, and members of tar files.

NOTE [Reading ahead]
    A `Catalog` has one row for each stored image: its object, and its range of bytes there. One fetch process a host
    reads objects ahead of need, because the order of an epoch is known, and writes them to a `CacheFile`. Workers only
    read that file. The fetch process is a fresh interpreter and not a fork: the runtime of obstore does not survive a
    fork, and a fresh process neither copies the training process nor meets its threads.

    - ``settings``: `StorageSettings`, the store's URL, credentials and limits.
    - ``catalog``: `Catalog`, where the bytes of each image are.
    - ``protocol``: the folder of a cache, its states, and the messages between processes.
    - ``cache_file``: `CacheFile`, the sparse file and the mapped state of each image.
    - ``fetch_process``: the process that fetches and answers requests; ``schedule`` has the order in which images are
      needed and chooses what to evict, ``fetching`` the requests to the store.
    - ``fetch_launch`` and ``fetch_link``: start and restart that process, and send it messages, first a ``greeting``.
    - ``client``: `StorageClient`, and the streams that tell the process in which order images are needed.
    - ``images``: `ImageStore`, which returns the bytes of an image.
    - ``jobs``: list, download and upload in a process of their own; ``object_store`` opens the store there.
    - ``mirror``: the local folder of a URL that readers of annotations get; ``listing`` has its objects.
    - ``tar_index``, ``tar_samples``: members of tar files; ``shard_writer``, ``pack_target``, ``verifying``: packing.
"""

from __future__ import annotations

__all__: list[str] = []
