"""CUDA's driver as far as running models needs it: memory, streams, graphs, events, machine code of our own.

Everything happens on the first visible GPU, in its primary context, which TVM's runtime uses as well. Every failure is
a `CudaError`. After one that is sticky (an illegal address, say) the context of the process is lost for good.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from subtune.backends.cuda.driver import driver_device, driver_library
from subtune.core.errors import SubtuneError

_THREAD_LOCAL_CAPTURE = 1
_NON_BLOCKING = 1
_Handle = ctypes.c_void_p
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_FREE_SHARED = 48 * 1024
_MAY_START_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class CudaError(SubtuneError):
    """A call of CUDA's driver failed."""


def _call(name: str, *args: Any) -> None:
    driver = driver_library()
    assert driver is not None, "activate() comes first"
    if code := getattr(driver, name)(*args):
        text = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(f"{name} failed: {(text.value or b'unknown error').decode()}")


@cache
def _primary_context() -> _Handle:
    here = driver_device()
    if isinstance(here, str):
        raise CudaError(f"no GPU can be used: {here}")
    context = _Handle()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    return context


def activate() -> None:
    """Make the GPU's context the calling thread's."""
    _call("cuCtxSetCurrent", _primary_context())


def synchronize() -> None:
    """Wait for all that was begun; errors of kernels come to light here at the latest."""
    _call("cuCtxSynchronize")


class Memory:
    """`nbytes` bytes of the GPU, aligned to 256; freed with the object."""

    def __init__(self, nbytes: int) -> None:
        self.address = 0
        self.nbytes = nbytes
        activate()
        address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        self.address = int(address.value)

    def __del__(self) -> None:
        if self.address:
            with suppress(CudaError, AttributeError, TypeError):  # the context may be lost, the interpreter going
                _call("cuMemFree_v2", ctypes.c_uint64(self.address))

    def write(self, array: np.ndarray, offset: int = 0) -> None:
        """Copy a contiguous array's bytes here."""
        assert array.flags.c_contiguous
        assert offset + array.nbytes <= self.nbytes
        if array.nbytes:
            source = ctypes.c_void_p(array.__array_interface__["data"][0])
            _call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address + offset), source, ctypes.c_size_t(array.nbytes))

    def read_into(self, array: np.ndarray, offset: int = 0) -> None:
        """Copy as many bytes from here as the contiguous `array` has."""
        assert array.flags.c_contiguous
        assert offset + array.nbytes <= self.nbytes
        if array.nbytes:
            target = ctypes.c_void_p(array.__array_interface__["data"][0])
            _call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(self.address + offset), ctypes.c_size_t(array.nbytes))

    def read(self, nbytes: int, offset: int = 0) -> np.ndarray:
        """`nbytes` bytes as a new array of uint8."""
        array = np.empty(nbytes, np.uint8)
        self.read_into(array, offset)
        return array

    def fill(self, value: int, nbytes: int | None = None, offset: int = 0) -> None:
        """Set bytes to `value`."""
        count = self.nbytes - offset if nbytes is None else nbytes
        if count:
            _call(
                "cuMemsetD8_v2", ctypes.c_uint64(self.address + offset), ctypes.c_ubyte(value), ctypes.c_size_t(count)
            )


def copy_on_device(target: int, source: int, nbytes: int) -> None:
    """Between two addresses on the GPU."""
    if nbytes:
        _call("cuMemcpyDtoD_v2", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes))


class Stream:
    """A queue of work; TVM's kernels go there inside `used`.

    Args:
        borrowed: the handle of somebody else's stream, who keeps it; None makes one.
    """

    def __init__(self, borrowed: int | None = None) -> None:
        self.handle = _Handle(borrowed)
        self._is_own = borrowed is None
        if self._is_own:
            activate()
            _call("cuStreamCreate", ctypes.byref(self.handle), _NON_BLOCKING)

    def __del__(self) -> None:
        if self._is_own and self.handle.value:
            with suppress(CudaError, AttributeError, TypeError):
                _call("cuStreamDestroy_v2", self.handle)

    def synchronize(self) -> None:
        _call("cuStreamSynchronize", self.handle)

    @contextmanager
    def used(self) -> Iterator[None]:
        """TVM's kernels of this thread are launched here."""
        import tvm_ffi

        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), self.handle.value or 0):
            yield

    def capture(self, work: Any) -> Graph:
        """What `work()` launches, as a graph; it is not run. Work that allocates or waits cannot be captured."""
        with self.used():
            _call("cuStreamBeginCapture_v2", self.handle, _THREAD_LOCAL_CAPTURE)
            graph = _Handle()
            try:
                work()
            except BaseException:
                with suppress(CudaError):
                    _call("cuStreamEndCapture", self.handle, ctypes.byref(graph))
                raise
            _call("cuStreamEndCapture", self.handle, ctypes.byref(graph))
        return Graph(graph)

    def mark(self) -> Event:
        """What happens when all work so far is done."""
        event = Event()
        event.record(self)
        return event

    def wait(self, event: Event) -> None:
        """What comes after this is begun when the event has happened."""
        _call("cuStreamWaitEvent", self.handle, event.handle, ctypes.c_uint(0))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """`copy_on_device` as work of this stream."""
        if nbytes:
            addresses = ctypes.c_uint64(target), ctypes.c_uint64(source)
            _call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(nbytes), self.handle)

    def fill(self, memory: Memory, value: int) -> None:
        """`Memory.fill` as work of this stream."""
        count = ctypes.c_size_t(memory.nbytes)
        _call("cuMemsetD8Async", ctypes.c_uint64(memory.address), ctypes.c_ubyte(value), count, self.handle)


class Graph:
    """Captured work, ready to be launched again and again."""

    def __init__(self, graph: _Handle) -> None:
        self._exec = _Handle()
        try:
            _call("cuGraphInstantiateWithFlags", ctypes.byref(self._exec), graph, ctypes.c_ulonglong(0))
        finally:
            _call("cuGraphDestroy", graph)

    def __del__(self) -> None:
        if self._exec.value:
            with suppress(CudaError, AttributeError, TypeError):
                _call("cuGraphExecDestroy", self._exec)

    def launch(self, stream: Stream) -> None:
        _call("cuGraphLaunch", self._exec, stream.handle)


class Event:
    """A point in a stream's time."""

    def __init__(self) -> None:
        self.handle = _Handle()
        _call("cuEventCreate", ctypes.byref(self.handle), 0)

    def __del__(self) -> None:
        if self.handle.value:
            with suppress(CudaError, AttributeError, TypeError):
                _call("cuEventDestroy_v2", self.handle)

    def record(self, stream: Stream) -> None:
        _call("cuEventRecord", self.handle, stream.handle)

    def synchronize(self) -> None:
        """Wait until it has happened."""
        _call("cuEventSynchronize", self.handle)

    def seconds_since(self, earlier: Event) -> float:
        """Waits for this event; resolution about half a microsecond."""
        self.synchronize()
        milliseconds = ctypes.c_float()
        _call("cuEventElapsedTime", ctypes.byref(milliseconds), earlier.handle, self.handle)
        return milliseconds.value * 1e-3


class Binary:
    """Machine code (a cubin) and its kernels."""

    def __init__(self, code: bytes) -> None:
        activate()
        self._code = code
        self._module = _Handle()
        _call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(code))

    def kernel(self, name: str, shared_bytes: int = 0) -> CudaKernel:
        function = _Handle()
        _call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        if shared_bytes > _FREE_SHARED:
            _call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared_bytes)
        return CudaKernel(self, function, shared_bytes)


class CudaKernel:
    """One kernel; its arguments are ctypes values."""

    def __init__(self, owner: Binary, function: _Handle, shared_bytes: int) -> None:
        self._owner, self._function, self._shared_bytes = owner, function, shared_bytes

    def __call__(self, stream: Stream, grid: int, block: int, *args: Any, is_early: bool = False) -> None:
        """Launch it on so many blocks of so many threads.

        Args:
            is_early: it may start before the kernel in front of it has ended, for which it waits itself.
        """
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in args))
        dims = (grid, 1, 1, block, 1, 1, self._shared_bytes)
        if not is_early:
            _call("cuLaunchKernel", self._function, *map(ctypes.c_uint, dims), stream.handle, pointers, None)
            return
        attribute = _LaunchAttribute(_MAY_START_EARLY, b"", 1)
        config = _LaunchConfig(*dims, stream.handle, ctypes.addressof(attribute), 1)
        _call("cuLaunchKernelEx", ctypes.byref(config), self._function, pointers, None)


class _LaunchAttribute(ctypes.Structure):
    """CUDA's CUlaunchAttribute, of a value that is one number."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _LaunchConfig(ctypes.Structure):
    """CUDA's CUlaunchConfig."""

    _fields_ = (
        *((f"{of}_{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("number_of_attributes", ctypes.c_uint),
    )


class _Managed(ctypes.Structure):
    """DLPack's DLManagedTensor over a tensor of one dim of uint8."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_CUDA, _UINT = 2, 1
_given_away: list[Any] = []
"""DLPack has no moment at which these could be freed without a callback; they are some hundred bytes each."""


class _Bytes:
    def __init__(self, address: int, nbytes: int) -> None:
        extent = (ctypes.c_int64 * 1)(nbytes)
        stride = (ctypes.c_int64 * 1)(1)
        self._managed = _Managed(address, _CUDA, 0, 1, _UINT, 8, 1, extent, stride, 0, None, None)
        _given_away.append((self._managed, extent, stride))

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self._managed), b"dltensor", None)


def tensor_at(address: int, shape: tuple[int, ...], dtype: str, nbytes: int) -> Any:
    """TVM's tensor over memory of the GPU, which must outlive it."""
    import tvm_ffi

    from subtune import runtime

    return runtime.retyped(tvm_ffi.from_dlpack(_Bytes(address, max(nbytes, 1))), shape, dtype)
