"""A device behind TVM's RPC: its address, who may be asked, and connections that come back when they were lost.

The server is the one that comes with TVM, `python -m tvm.exec.rpc_server`; nothing of subtune is installed there. Who
can reach it can run code on it, and asks for no password: it belongs behind a firewall or at the end of a tunnel.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subtune.core.errors import SubtuneError, TargetError
from subtune.runtime.host import caches_by

SESSION_S = 240
"""After so many seconds the server ends a session, whatever hangs in it, and takes the next."""
_AGE_S = 120.0
"""A session that is older is exchanged for a new one before a job."""
_PATIENCE_S, _PAUSE_S = 90.0, 1.0
"""How long a device may be away, as it starts again, and between two tries."""
_ANSWERS_S = 10.0
SPREAD_THREADS = 1
"""TVM's affinity mode, for `runtime.config_threadpool`: the fastest cores first."""
_CACHES = "/sys/devices/system/cpu/cpu0/cache"
"""TVM's server hands out files by their names."""
_NUMBER = "/etc/machine-id"
_OPEN = (
    "is a public address, and TVM's RPC lets everybody who reaches it run code; tunnel it (ssh -L), or say --insecure"
)


@dataclass(frozen=True, slots=True)
class Remote:
    """A server at `host` and `port`; with a `key`, a tracker that lends devices of that name."""

    host: str
    port: int
    key: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" + (f"/{self.key}" if self.key else "")


def read_remote(text: str, insecure: bool = False) -> Remote:
    """What `--remote` says: host:port of a server, host:port/key of a tracker.

    Raises:
        TargetError: it is no such address, nobody knows the host, or it is in the open net and not `insecure`.

    >>> read_remote("localhost:9090/pi4")
    Remote(host='localhost', port=9090, key='pi4')
    """
    address, _, key = text.partition("/")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise TargetError(f"remote {text!r} is no address: write host:port, or host:port/key of a tracker")
    try:
        public = _public(host)
    except OSError as e:
        raise TargetError(f"remote {text!r}: {host} is not known ({e.strerror or e})") from e
    if public and not insecure:
        raise TargetError(f"remote {text!r}: {public[0]} {_OPEN}")
    return Remote(host, int(port), key)


def _public(host: str) -> list[str]:
    """Those addresses of a host that are in the open net. Raises OSError where nobody knows it."""
    found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    return sorted(one for one in found if ipaddress.ip_address(one).is_global)


class SessionExpired(TimeoutError):
    """The server has ended a session, as something in it hung."""


class DeviceGone(ConnectionError):
    """It cannot be reached, and has not been for a while."""


class LostInCall(ConnectionError):
    """The connection was lost while a kernel ran: it may have ended its process."""


class Connection:
    """Sessions with a device, one after the other: each is replaced before it is too old, or when it was lost.

    Args:
        begin: called with each new session.
        forget: called before each session's end; lets go of all that is loaded in it.
    """

    def __init__(self, remote: Remote, begin: Callable[[Any], None], forget: Callable[[], None]) -> None:
        self.remote = remote
        self._begin, self._forget = begin, forget
        self._session: Any = None
        self._since = 0.0
        self._patience_s = _PATIENCE_S

    def session(self) -> Any:
        """The session, or a new one.

        Raises:
            ConnectionError: the connection was lost at once.
            DeviceGone: the device cannot be reached.
        """
        if self._session is not None and time.monotonic() - self._since > _AGE_S:
            self.drop()
        if self._session is None:
            self._session = self._patiently()
            self._since = time.monotonic()
            try:
                self._begin(self._session)
            except Exception as e:
                self.drop()
                raise ConnectionError(f"{self.remote} was lost as its session began: {e}") from e
        return self._session

    def _patiently(self) -> Any:
        """Whoever was there may be starting again. Once nobody has come back, nobody is waited for."""
        end = time.monotonic() + self._patience_s
        while True:
            try:
                session = connected(self.remote)
            except ConnectionError as e:
                if time.monotonic() > end:
                    self._patience_s = 0.0
                    raise DeviceGone(str(e)) from e
            else:
                self._patience_s = _PATIENCE_S
                return session
            time.sleep(_PAUSE_S)

    def drop(self) -> None:
        """The server may take the next one."""
        session, self._session = self._session, None
        self._forget()
        if session is not None:
            close(session)

    def is_alive(self) -> bool:
        return answers(self._session)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a device says of itself.

    Attributes:
        target: `mcpu`, `mtriple` and `num-cores`, the threads of the server's pool.
        caches: bytes by their names (`runtime.host.caches`), as far as they are known.
        is_here: it is this machine.
    """

    target: dict[str, Any]
    caches: dict[str, Any]
    is_here: bool

    @property
    def threads(self) -> int:
        return int(self.target["num-cores"])


def facts_of(remote: Remote) -> Facts:
    """Ask the device.

    Raises:
        SubtuneError: it cannot be reached, or its TVM lacks LLVM, which knows the processor.
    """
    try:
        session = connected(remote)
    except ConnectionError as e:
        raise SubtuneError(str(e)) from e
    try:
        return _facts(session)
    except Exception as e:
        said = "has no LLVM to say what its processor is: use a whole TVM there"
        raise SubtuneError(f"the TVM at {remote} {said}") from e
    finally:
        close(session)


def _facts(session: Any) -> Facts:
    threads = int(session.get_function("runtime.NumThreads")())
    name, triple = (str(session.get_function(f"target.llvm_get_system_{what}")()) for what in ("cpu", "triple"))

    def read(path: str) -> str:
        try:
            return bytes(session.download(path)).decode("ascii", "replace").rstrip("\0")
        except Exception as e:  # another system, or one that hides it
            raise OSError(str(e)) from e

    caches = caches_by(lambda path: read(f"{_CACHES}/{path}"), threads)
    return Facts({"mcpu": name, "mtriple": triple, "num-cores": threads}, caches, _is_here(read))


def _is_here(read: Callable[[str], str]) -> bool:
    """Containers of one image have one number: then builds rest in vain while something is timed."""
    try:
        return read(_NUMBER) == Path(_NUMBER).read_text()
    except OSError:
        return False


def devices_of(remote: Remote, insecure: bool = False) -> int:
    """How many the tracker has to lend now, of that key: at least one, for which others may be waited for.

    Raises:
        SubtuneError: the tracker cannot be reached, or knows no device of that key.
        TargetError: one of them is in the open net and not `insecure`: whoever lends it says where it is.
    """
    if not remote.key:
        return 1
    from tvm import rpc

    try:
        socket.create_connection((remote.host, remote.port), _ANSWERS_S).close()  # TVM tries for a minute
        said = rpc.connect_tracker(remote.host, remote.port).summary()
    except Exception as e:
        raise SubtuneError(f"{remote} cannot be reached: {e}") from e
    lent = [server for server in said["server_info"] if server["key"] == f"server:{remote.key}"]
    if not lent:
        known = ", ".join(sorted({server["key"].partition(":")[2] for server in said["server_info"]})) or "none"
        raise SubtuneError(f"the tracker at {remote.host}:{remote.port} has no {remote.key!r}; it has: {known}")
    for host in sorted({str(server["addr"][0]) for server in lent}):
        with contextlib.suppress(OSError):  # nobody knows it: then it is not reached either
            if not insecure and (public := _public(host)):
                raise TargetError(f"remote {remote}: its device {public[0]} {_OPEN}")
    return max(1, int(said["queue_info"].get(remote.key, {}).get("free", 0)))


def loaded(session: Any, library: str | bytearray, name: str) -> Any:
    """A library, from a file here or from bytes, as the session's module; nothing of it stays on the disk there."""
    session.upload(library, name)
    module = session.load_module(name)
    session.remove(name)
    return module


def answers(session: Any) -> bool:
    """Whether the session goes on after a failure."""
    try:
        session.get_function("runtime.GetDeviceAttr")
    except Exception:
        return False
    return True


def is_expired(error: Exception) -> bool:
    """Whether the server has ended the session, as something in it took too long."""
    return "RPCSessionTimeoutError" in str(error)


def close(session: Any) -> None:
    """At once: nobody knows how long something refers to it, and the server has one session at a time."""
    with contextlib.suppress(Exception):  # it was lost
        session.get_function("CloseRPCConnection")()


def connected(remote: Remote, session_s: int = SESSION_S) -> Any:
    """A session of so many seconds at most. Raises ConnectionError."""
    from tvm import rpc

    try:
        if not remote.key:
            _ask(remote)
            return rpc.connect(remote.host, remote.port, session_timeout=session_s)
        tracker = rpc.connect_tracker(remote.host, remote.port)
        return tracker.request(remote.key, session_timeout=session_s)
    except Exception as e:
        reason = str(e).strip().splitlines()[-1:] or [type(e).__name__]
        raise ConnectionError(f"{remote} cannot be reached: {reason[0]}") from e


def _ask(remote: Remote) -> None:
    """Whether the server takes sessions now: TVM's `connect` would wait without end. A wrong key gets an answer.

    Raises:
        OSError: it takes none.
    """
    from tvm.rpc import base

    number, key = struct.Struct("<i"), b"subtune: is somebody there?"
    with socket.create_connection((remote.host, remote.port), _ANSWERS_S) as asked:
        asked.sendall(number.pack(base.RPC_MAGIC) + number.pack(len(key)) + key)
        try:
            is_server = number.unpack(asked.recv(number.size, socket.MSG_WAITALL)) == (base.RPC_CODE_MISMATCH,)
        except TimeoutError as e:
            raise TimeoutError("it is busy with somebody else's session, or has to be started again") from e
        except (OSError, struct.error):
            is_server = False
    if not is_server:
        raise ConnectionError("no server of TVM's RPC is there")
