"""Values of a parameter of which the short run takes some, and the long run all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")


def all_in_long_run(values: Iterable[T], *, short: Collection[T]) -> list[object]:
    """For parametrize(): the values in `short` belong to both runs, all others to the long run."""
    values = list(values)
    missing = [value for value in short if value not in values]
    assert not missing, f"the short run wants {missing}, and there are {values}"
    return [value if value in short else pytest.param(value, marks=pytest.mark.long) for value in values]
