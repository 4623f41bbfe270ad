"""A network that fails, as a program: what connects to it is led to a server, and cut off at random moments.

`python unsteady_network.py SERVER_PORT CUTS SEED` prints the port at which it listens, and a line for every cut.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter

SHORTEST_S, LONGEST_S = 0.03, 0.6
SPARED_BYTES = 24 << 10
"""Of a connection, before it is cut: TVM's server takes no more sessions if one breaks off before its beginning, a
library of 17 KB, is loaded (docs/remote.md)."""
RESET = struct.pack("ii", 1, 0)
"""Of SO_LINGER: what is under way is lost."""


class Network:
    def __init__(self, server: int) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._carried: Counter[socket.socket] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()
        print(f"bind to 127.0.0.1:{self._listener.getsockname()[1]}", flush=True)

    def cut(self) -> int:
        """How many connections there were."""
        pairs = [pair for pair in self._pairs if sum(self._carried[one] for one in pair) > SPARED_BYTES]
        for pair in pairs:
            self._pairs.remove(pair)
            for one in pair:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end(one)
                one.close()
        return len(pairs)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._server))
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
                self._carried[source] += len(data)
        end(source)
        end(sink)


def end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def main() -> None:
    server, cuts, seed = map(int, sys.argv[1:])
    network, draw = Network(server), random.Random(seed)
    begin = time.monotonic()
    while cuts:
        time.sleep(draw.uniform(SHORTEST_S, LONGEST_S))
        if network.cut():
            cuts -= 1
            print(f"cut after {time.monotonic() - begin:.2f} s", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
