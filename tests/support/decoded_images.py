"""Checks of the images that a decoded cache returns, and of the files in its folder."""

from __future__ import annotations

import torch

from lit_loader.images import decode_image


def assert_whole(reader, table):
    """Compare every image of a reader with the decoded file."""
    for position in range(table.num_images):
        assert torch.equal(reader.open(position)[0].read(), decode_image(table.image_path(position)))


def files_in(folder):
    """Return the names of all files in a folder of decoded images, without locks, which stay."""
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"] if folder.is_dir() else []
