"""What models of Hugging Face's transformers return, made known to PyTorch before they are exported."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch


def make_results_known(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Run a model of transformers once; any other module is left alone. Raises what its own code does.

    transformers tells PyTorch of a class of results when the first one is made, though not while it is traced; of its
    cache of keys and values only when it is asked to.
    """
    library = sys.modules.get("transformers")
    if library is None or not any(type(one).__module__.startswith("transformers.") for one in module.modules()):
        return
    with suppress(ImportError, AttributeError):  # versions differ; without it, an export that needs it says so
        from transformers.integrations.executorch import register_dynamic_cache_export_support

        register_dynamic_cache_export_support()
    with torch.no_grad():
        module(*args, **kwargs)
