"""Generated examples are the same in every run and have no deadline: no test needs luck."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("raypool", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("raypool")

NEED_RAY = Path(__file__).parent / "ray"


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is below tests/ray is marked `ray` by its place, so that no module of it can be left out."""
    if NEED_RAY in item.path.parents:
        item.add_marker(pytest.mark.ray)
