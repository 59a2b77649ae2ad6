"""A COCO file that a test writes as it likes."""

from __future__ import annotations

import json

from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.formats.policy import ReadPolicy


class CocoSet:
    """A COCO file that a test writes as it likes."""

    def __init__(self, root):
        self.root = root
        self.images = []
        self.categories = []
        self.annotations = []
        self.more = {}

    def image(self, image_id=1, file_name="a.jpg", **more):
        self.images.append({"id": image_id, "file_name": file_name, "width": 100, "height": 80} | more)
        (self.root / "img").mkdir(exist_ok=True)
        path = self.root / "img" / file_name if isinstance(file_name, str) else None
        if path is not None and path.parent.is_dir() and ".." not in file_name:
            path.touch()

    def add(self, bbox=(1, 2, 3, 4), category_id=1, image_id=1, **more):
        record = {"id": len(self.annotations), "image_id": image_id, "category_id": category_id}
        self.annotations.append(record | ({} if bbox is None else {"bbox": bbox}) | more)

    def category(self, category_id=1, name="x", **more):
        self.categories.append({"id": category_id, "name": name} | more)

    def write(self, order=("images", "categories", "annotations")):
        parts = [f'"{key}": {json.dumps(value)}' for key, value in self.more.items()]
        for key in order:
            lines = ",\n".join(json.dumps(record) for record in getattr(self, key))
            parts.append(f'"{key}": [\n{lines}]')
        (self.root / "a.json").write_text("{" + ",".join(parts) + "}")

    def read(self, *, rewrite=True, **options):
        """Read the file, written anew unless ``rewrite`` is False."""
        if rewrite:
            self.write()
        policy = {name: options.pop(name) for name in list(options) if name in ReadPolicy.__dataclass_fields__}
        options = {"use_cache": False, "image_dir": "img", "policy": policy} | options
        return read_annotations("coco", self.root, "a.json", **options)
