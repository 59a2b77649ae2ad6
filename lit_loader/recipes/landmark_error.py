"""The normalised mean error of landmarks and the share of faces on which it is too large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

__all__ = ["LandmarkScores", "NormalizeBy", "NormalizedMeanError", "choose_normalizer", "error_scale"]

NormalizeBy = Literal["pair", "box", "diagonal"]
_CHOICES: Final = ("pair", "box", "diagonal")


@dataclass(frozen=True, kw_only=True)
class LandmarkScores:
    """What one evaluation found.

    Args:
        nme: Mean over faces of the normalised mean error; 0.05 is 5 % of the normaliser. NaN without faces.
        failure_rate: Share of faces whose error is above the threshold; NaN without faces.
        num_faces: Faces (or other objects) that were measured.
        num_excluded: Faces that could not be: no point present, or nothing to divide by.
    """

    nme: float
    failure_rate: float
    num_faces: int
    num_excluded: int


class NormalizedMeanError(Metric):
    """Mean over faces of the mean distance of points from where they belong, divided by the face's size.

    ``error(face) = mean over present points k of |p_k - g_k| / d(face)``, and NME is its mean over faces.
    A face fails where its error is above ``failure_threshold``, or is no number at all. A face without a
    present point, or whose d is 0 or not computable (an eye's point is absent), is left out and counted in
    ``num_excluded``.

    Args:
        normalize_by: What d is: ``"pair"``, the distance of two points (of outer eye corners in 300-W
            and WFLW); ``"box"``, the square root of the box's area; ``"diagonal"``, of the box.
        normalization_pair: Positions of those two points; needed for ``"pair"`` and refused otherwise.
        failure_threshold: Error above which a face fails: 0.10 is WFLW's, 0.08 is 300-W's.

    Raises:
        ValueError: If an argument is out of range, missing, or without effect.

    Source:
        Interocular distance, and failure rate at 0.08: Sagonas et al. 2016, "300 Faces In-The-Wild Challenge".
        Failure rate at 0.10: Wu et al. 2018, "Look at Boundary" (WFLW).
        Square root of the box's area: Bulat and Tzimiropoulos 2017, "How far are we from solving the 2D & 3D
        Face Alignment problem?".
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    error_sum: Tensor
    num_failures: Tensor
    num_faces: Tensor
    num_excluded: Tensor

    def __init__(
        self,
        *,
        normalize_by: NormalizeBy = "box",
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
    ) -> None:
        super().__init__()
        _check_normalizer(normalize_by, normalization_pair)
        if not failure_threshold > 0:
            raise ValueError(f"failure_threshold={failure_threshold} must be above 0; WFLW's is 0.10")
        self.normalize_by: NormalizeBy = normalize_by
        self.normalization_pair = (
            None if normalization_pair is None else (normalization_pair[0], normalization_pair[1])
        )
        self.failure_threshold = failure_threshold
        self.add_state("error_sum", torch.tensor(0.0), dist_reduce_fx="sum")
        for count in ("num_failures", "num_faces", "num_excluded"):
            self.add_state(count, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, wanted: Tensor, mask: Tensor, boxes: Tensor) -> None:
        """Collect faces.

        Args:
            predicted: Points found, float, shape ``(N, K, 2)``, pixels.
            wanted: Points as annotated, the same shape and pixels; what is masked may be anything.
            mask: bool ``(N, K)``, True on points that are present.
            boxes: The faces' annotated boxes, float, shape ``(N, 4)``, xyxy in the same pixels; read where
                the error is normalised by them.

        Raises:
            ValueError: If shapes do not go together.
        """
        if predicted.shape != wanted.shape or mask.shape != wanted.shape[:2] or len(boxes) != len(wanted):
            raise ValueError(
                f"points {tuple(predicted.shape)} and {tuple(wanted.shape)}, mask {tuple(mask.shape)} and boxes "
                f"{tuple(boxes.shape)} do not go together; the rule is (N, K, 2) twice, (N, K), (N, 4)"
            )
        mask = mask.bool()
        scale, known = error_scale(
            wanted, mask, boxes, normalize_by=self.normalize_by, normalization_pair=self.normalization_pair
        )
        counted = known & mask.any(dim=1)
        distances = (predicted.float() - wanted.float()).norm(dim=-1).masked_fill(~mask, 0.0)
        errors = (distances.sum(dim=1) / mask.sum(dim=1).clamp(min=1) / scale)[counted]
        self.error_sum += errors.sum()
        self.num_failures += (~(errors <= self.failure_threshold)).sum()  # an error that is no number fails
        self.num_faces += counted.sum()
        self.num_excluded += (~counted).sum()

    def compute(self) -> dict[str, Tensor]:
        """Return ``nme`` and ``failure_rate`` of everything collected since the last reset, over all ranks."""
        return {
            "nme": self.error_sum / self.num_faces,
            "failure_rate": self.num_failures / self.num_faces,
            "num_faces": self.num_faces,
            "num_excluded": self.num_excluded,
        }

    def compute_scores(self) -> LandmarkScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        found = self.compute()
        return LandmarkScores(
            nme=float(found["nme"]),
            failure_rate=float(found["failure_rate"]),
            num_faces=int(found["num_faces"]),
            num_excluded=int(found["num_excluded"]),
        )


def error_scale(
    points: Tensor,
    mask: Tensor,
    boxes: Tensor,
    *,
    normalize_by: NormalizeBy,
    normalization_pair: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what each face's error is divided by, and where that can be known.

    Args:
        points: As annotated, float, shape ``(N, K, 2)``.
        mask: bool ``(N, K)``, True on points that are present.
        boxes: float ``(N, 4)``, xyxy.
        normalize_by: See `NormalizedMeanError`.
        normalization_pair: See `NormalizedMeanError`.

    Returns:
        float32 ``(N,)``, 1 where it is not known; bool ``(N,)``.
    """
    if normalize_by == "pair":
        assert normalization_pair is not None
        left, right = normalization_pair
        scale = (points[:, left].float() - points[:, right].float()).norm(dim=-1)
        known = mask[:, left] & mask[:, right]
    else:
        sides = (boxes[:, 2:] - boxes[:, :2]).float().clamp(min=0)
        scale = sides.prod(dim=1).sqrt() if normalize_by == "box" else sides.norm(dim=1)
        known = torch.ones_like(scale, dtype=torch.bool)
    known = known & scale.isfinite() & (scale > 0)
    return torch.where(known, scale, torch.ones_like(scale)), known


def choose_normalizer(
    normalize_by: NormalizeBy | None, normalization_pair: Sequence[int] | None, *, num_points: int
) -> tuple[NormalizeBy, list[int] | None]:
    """Return the settings of `NormalizedMeanError` for data that may have two eyes.

    Args:
        normalize_by: What the error is divided by; None: ``"pair"`` where the data has these two points,
            else ``"box"``.
        normalization_pair: Positions of the two points, where the data has them; not needed otherwise.
        num_points: Points of a face.

    Raises:
        ValueError: If ``normalize_by`` is unknown or needs points that are not given, or positions are not
            those of two different points.
    """
    if normalization_pair is not None:
        _check_pair(normalization_pair, num_points=num_points)
    if normalize_by is None:
        normalize_by = "box" if normalization_pair is None else "pair"
    pair = normalization_pair if normalize_by == "pair" else None
    _check_normalizer(normalize_by, pair)
    return normalize_by, None if pair is None else [int(position) for position in pair]


def _check_normalizer(normalize_by: str, normalization_pair: Sequence[int] | None) -> None:
    if normalize_by not in _CHOICES:
        raise ValueError(f"normalize_by={normalize_by!r} is none of {', '.join(map(repr, _CHOICES))}")
    if normalize_by == "pair" and normalization_pair is None:
        raise ValueError(
            'normalize_by="pair" needs normalization_pair=(left, right), the positions of two points; '
            'give them, or normalize_by="box"'
        )
    if normalization_pair is None:
        return
    if normalize_by != "pair":
        raise ValueError(
            f"normalization_pair={tuple(normalization_pair)} has no effect with normalize_by={normalize_by!r}; "
            "leave it out"
        )
    _check_pair(normalization_pair)


def _check_pair(normalization_pair: Sequence[int], *, num_points: int | None = None) -> None:
    pair = tuple(normalization_pair)
    known = num_points is None or (len(pair) == 2 and max(pair) < num_points)
    if len(pair) != 2 or pair[0] == pair[1] or min(pair) < 0 or not known:
        among = "" if num_points is None else f" among {num_points}"
        raise ValueError(f"normalization_pair={pair} must be the positions of two different points{among}")
