import pytest

from fedcore.methods.federation import Federation
from tests.support.tiny import tiny_federation


@pytest.fixture
def federation() -> Federation:
    """Three clients with a few random images each, made for this test."""
    return tiny_federation()
