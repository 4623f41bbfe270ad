"""Whether all of the models are compiled, or one of every kind: continuous integration has twenty minutes."""

from __future__ import annotations

import os

IS_WHOLE = bool(os.environ.get("SUBTUNE_WHOLE_SUITE"))
