"""Transform that waits."""

from __future__ import annotations

import time


class Sleepy:
    """Return a sample after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, image, target):
        time.sleep(self.seconds)
        return image, target
