"""For all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples in every run: a test that fails does so because of a change. The README says how to look for others.
settings.register_profile("suite", derandomize=True, deadline=None, max_examples=150)
settings.register_profile("fuzz", deadline=None, max_examples=5000)
settings.load_profile("suite")

# A shell that starts the tests in the background makes them, and all their children, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads the user's database, or one that another process of the suite writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
