"""The long description of the package: the README without what works only in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = r"\((?!https?:)[^)]*\)"


def project_page(readme: str) -> str:
    """Return the README without pictures of the repository, and with the text of relative links only."""
    without_pictures = re.sub(rf"^!\[[^\]]*\]{_RELATIVE}\n+", "", readme, flags=re.MULTILINE)
    return re.sub(rf"\[([^\]]*)\]{_RELATIVE}", r"\1", without_pictures)


class ProjectPageHook(MetadataHookInterface):
    """Sets `readme`, which is dynamic in pyproject.toml; hatchling calls it for the sdist, wheels and installs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the project page to the metadata of the package."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": project_page(readme)}
