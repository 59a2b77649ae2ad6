"""Run every benchmark."""

from __future__ import annotations

from benchmarks import class_weights, overhead

for question in (class_weights, overhead):
    question.main()
