"""Machine code in a hurry: LLVM's optimisations take most of a compile's time, and change no result.

For rooms that test what a model means, not how fast it is: the zoo, the official suite, the kernels of every backend
and what is tuned are compiled as users compile them, and so is everything where the whole suite is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tvm.target import Target

from subtune.backends.cpu.device import CPUModel
from tests.whole import IS_WHOLE


@pytest.fixture(scope="module", autouse=True)
def quick_code() -> Iterator[None]:
    """What this process compiles, and what it forks to compile; not the processes of a measurer."""
    whole = CPUModel.target

    def target(self: CPUModel) -> Any:
        return Target({**dict(whole(self).export()), "opt-level": 0})

    with pytest.MonkeyPatch.context() as patch:
        if not IS_WHOLE:
            patch.setattr(CPUModel, "target", target)
        yield
