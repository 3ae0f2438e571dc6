"""What a streamed token costs the router, beside HAProxy and beside a relay that does nothing else: CPU time, in one run.

Streams of 200 tokens and of one, in turns through every way and again: the difference is what a token costs, the short
ones say what a request does. The relay is Python, too, and only receives and sends: no router in Python costs less.
Machines differ, and one machine from minute to minute, so what lasts is the ratio inside a round.

    python -m benchmarks.token_cost [--rounds N]            # from the root of the repository
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import select
import shutil
import socket
from importlib.util import find_spec
from statistics import median

from benchmarks.router_load import STREAMS, TOKENS, RouterUnderTest, free_port, serve, streams

#: Bytes taken from a socket at once.
ROOM = 2**16
#: Names in the table, and for :func:`benchmarks.router_load.command_of`.
WAYS = {
    "relay in Python": "relay",
    "coralopt route, asyncio": "coralopt route without uvloop",
    "coralopt route, uvloop": "coralopt route",
    "HAProxy": "haproxy",
}


def relay_bytes(listening: int, server: int) -> None:
    """Every connection to ``listening`` is one to ``server``: what is received is sent, and nothing is looked at."""
    door = socket.create_server(("127.0.0.1", listening), backlog=4096)
    watched, others = select.epoll(), dict[int, socket.socket]()
    watched.register(door, select.EPOLLIN)
    while True:
        for number, _ in watched.poll():
            if number == door.fileno():
                pair = door.accept()[0], socket.create_connection(("127.0.0.1", server))
                for one, other in (pair, pair[::-1]):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    others[one.fileno()] = other
                    watched.register(one, select.EPOLLIN)
            elif number in others:
                try:
                    data = os.read(number, ROOM)
                    if data:
                        os.write(others[number].fileno(), data)
                        continue
                except ConnectionError:
                    pass
                other = others.pop(number)
                others.pop(other.fileno()).close()
                other.close()


def measure(server: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """By way, of every round: CPU us of a token, and of a request with its first token."""
    names = [name for name in WAYS if name != "HAProxy" or shutil.which("haproxy")]
    names = [name for name in names if "uvloop" not in name or find_spec("uvloop")]
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[:: 1 - 2 * (number % 2)]:
            router = RouterUnderTest(4096, server, WAYS[name])
            router.run(lambda port: streams(port, STREAMS, 1))
            first = router.cpu_of(lambda port: streams(port, STREAMS, 1))
            whole = router.cpu_of(lambda port: streams(port, STREAMS, TOKENS))
            router.stop()
            costs[name].append(((whole - first) / (STREAMS * (TOKENS - 1)) * 1e6, first / STREAMS * 1e6))
    return costs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--relay", type=int, nargs=2, metavar=("PORT", "SERVER"), help="only be the relay")
    arguments = parser.parse_args()
    if arguments.relay:
        relay_bytes(*arguments.relay)
    port = free_port()
    backend = multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True)
    backend.start()
    before = os.getloadavg()[0]
    costs = measure(port, arguments.rounds)
    backend.kill()
    print(f"{STREAMS} streams of {TOKENS} tokens, {os.cpu_count()} cores, load {before:.1f} before")
    print("| way | a token, median | least | times HAProxy | times the relay | a request | a token with its share |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, rounds in costs.items():
        tokens, requests = ([pair[i] for pair in rounds] for i in (0, 1))
        shares = [token + request / TOKENS for token, request in rounds]
        ratios = [
            f"{median(token / other for token, (other, _) in zip(tokens, costs[way], strict=True)):.2f}"
            if way in costs
            else "-"
            for way in ("HAProxy", "relay in Python")
        ]
        figures = [f"{median(tokens):.1f} us", f"{min(tokens):.1f} us", *ratios]
        figures += [f"{median(requests):.0f} us", f"{median(shares):.1f} us"]
        print(f"| {name} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
