"""Half a minute of hostile peers at random; the seed is printed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster import MakeCluster

from .peers import fuzz


@pytest.mark.long
def test_random_answers_stay_within_limits(make_cluster: MakeCluster, tmp_path: Path, http: None) -> None:
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    print(fuzz(make_cluster(), 30, random.randrange(1 << 30), tmp_path))
