"""What running needs: TVM's runtime library without its compiler, memory, the thread pool, and what the machine has."""

from subtune.runtime.host import cpu_flags, missing_features, present_features
from subtune.runtime.library import has_cuda, load_library, load_runtime, versions, virtual_machine
from subtune.runtime.memory import (
    ALIGNMENT,
    HUGE_PAGE,
    address,
    aligned_array,
    aligned_empty,
    as_numpy,
    as_tensor,
    carried,
    has_huge_pages,
    host_copy,
    is_direct,
    is_numpys,
    numpy_dtype,
    private_pages,
    retyped,
    tensor_over,
    uncarried,
)
from subtune.runtime.threads import fork_generation, use_threads

__all__ = [
    "ALIGNMENT",
    "HUGE_PAGE",
    "address",
    "aligned_array",
    "aligned_empty",
    "as_numpy",
    "as_tensor",
    "carried",
    "cpu_flags",
    "fork_generation",
    "has_cuda",
    "has_huge_pages",
    "host_copy",
    "is_direct",
    "is_numpys",
    "load_library",
    "load_runtime",
    "missing_features",
    "numpy_dtype",
    "present_features",
    "private_pages",
    "retyped",
    "tensor_over",
    "uncarried",
    "use_threads",
    "versions",
    "virtual_machine",
]
