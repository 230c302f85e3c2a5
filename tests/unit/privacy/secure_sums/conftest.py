import pytest
from sum_federation import Federation


@pytest.fixture
def federation():
    return Federation()
