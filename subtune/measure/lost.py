"""When a machine on which work was under way is gone, or its processes are."""

from __future__ import annotations


class HostLost(Exception):
    """Nothing is known of the job that was under way there: it is done again elsewhere."""


MOST_LOSSES = 3
"""Of hosts during one job, before it counts as what ends them."""
