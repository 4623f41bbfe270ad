"""How many devices one driver can keep busy: a simulation, of durations that a real run on this machine had.

    python benchmarks/simulate_fleet.py record benchmarks/fleet-durations.json
    python benchmarks/simulate_fleet.py simulate benchmarks/fleet-durations.json benchmarks/fleet.json
    python benchmarks/simulate_fleet.py queue

The first takes a few minutes of a machine with nothing else to do, the second half an hour. The third prints what the
builders' own queue, which the simulation replaces, takes of the driver's CPU: it has a thread for each builder.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import onnx

from subtune import models
from subtune.backends import device_of
from subtune.bench.stored import stamped
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.driver import compile_model
from subtune.fleet import Fleet, FleetModel
from subtune.fleet.pooled import Pool, pooled
from subtune.fleet.simulation.durations import Durations
from subtune.fleet.simulation.recorded import recorded
from subtune.fleet.simulation.study import Found, Outcome, Plant, TargetWork, simulated
from subtune.measure.pool import Build, Builders
from subtune.options import Options
from subtune.pipeline import prepare
from subtune.runtime.host import usable_cores
from subtune.tuning.alternatives import Plan
from subtune.tuning.job import Single

SAMPLE = 60
"""Workloads of the zoo that are recorded."""
SEED = 20
COUNTS = (1, 8, 64, 512)
THREADS = BUILDERS = 4
"""Of each device, which is a machine of four cores."""
TOPK = 20
TARGETS = (
    "haswell broadwell skylake skylake-avx512 cascadelake icelake-client icelake-server tigerlake rocketlake alderlake "
    "sapphirerapids graniterapids znver1 znver2 znver3 znver4 znver5 neoverse-n1 neoverse-v1 cortex-a76"
).split()


def sample() -> list[Workload]:
    found = {}
    for name in models.names():
        for subgraph in prepare(models.reduced(name)).subgraphs:
            found[subgraph.workload.key] = subgraph.workload
    return [found[key] for key in random.Random(SEED).sample(sorted(found), SAMPLE)]


def record(output: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, Database(Path(folder) / "recorded.db") as database:
        durations = recorded(sample(), device_of("auto", 1), database, print)
        begin = time.perf_counter()
        for name in models.names():
            compile_model(models.reduced(name), Path(folder) / name, threads=1, tune=False, database=database)
        artifacts_s = time.perf_counter() - begin
    report = {"suite": "fleet-durations", "workloads": SAMPLE, "seed": SEED, "artifacts_s": artifacts_s}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(stamped(json.dumps({**report, "durations": asdict(durations)})) + "\n")


def zoo(folder: Path) -> Fleet:
    """All float models of the zoo in their reduced sizes."""
    paths = {name: folder / f"{name}.onnx" for name in models.names()}
    for name, path in paths.items():
        onnx.save(models.reduced(name), path)
    found = tuple(FleetModel(str(path), name) for name, path in paths.items())
    return Fleet(found, (), ".", "")


def work_of(names: Sequence[str], folder: Path, artifacts_s: float) -> list[TargetWork]:
    fleet, found = zoo(folder), []
    with Database(folder / "empty.db") as database:
        for name in names:
            begin = time.process_time()
            pools = pooled(fleet, device_of(name, THREADS, is_measured=False), Options(), database)
            prepare_s = time.process_time() - begin
            found.append(TargetWork(name, tuple(pools), prepare_s, artifacts_s))
            keys = {key for pool in pools for key in pool.users}
            print(f"{name}: {len(pools)} pools, {len(keys)} workloads, {prepare_s:.1f} s to prepare", flush=True)
    return found


def as_recorded(durations: Durations, folder: Path) -> tuple[Outcome, float]:
    """The recorded run simulated: how well durations are met, and seconds of the driver for what is not simulated."""
    device = device_of("auto", 1)
    plan = Plan(tuple(map(Single, sample())), (), ())
    work = [TargetWork("recorded", (Pool(device, (FleetModel("sample", "sample"),), (plan,)),))]
    here = Plant(1, usable_cores())
    outcome, _ = simulated(work, here, durations, TOPK, Found(), folder / "recorded.db")
    left_s = durations.driver_s * outcome.candidates - outcome.cpu_s
    return outcome, max(0.0, left_s / (outcome.calls + outcome.candidates))


def simulate(recording: Path, output: Path, counts: Sequence[int], names: Sequence[str]) -> None:
    given = json.loads(recording.read_text())
    durations = Durations.from_json(given["durations"])
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check, message_s = as_recorded(durations, folder)
        print(f"recorded {durations.wall_s:.0f} s, simulated {check.seconds:.0f} s; {1000 * message_s:.2f} ms per call")
        work, found = work_of(names, folder, given["artifacts_s"]), Found()
        plants = [Plant(count, BUILDERS, False, message_s) for count in counts]
        plants += [Plant(count, BUILDERS, True, message_s) for count in counts if count >= len(names)]
        plants += [Plant(count, BUILDERS, counts_cpu=False) for count in counts if count >= len(names)]
        for plant in plants:
            begin = time.perf_counter()
            outcome, _ = simulated(work, plant, durations, TOPK, found, folder / f"{len(rows)}.db")
            rows.append({**asdict(outcome), "idle": outcome.idle, "idle_builders": outcome.idle_builders})
            print(json.dumps(rows[-1]), f"{time.perf_counter() - begin:.0f} s", flush=True)
    report = {
        "suite": "fleet",
        "targets": list(names),
        "models": len(models.names()),
        "workloads": sum(len({key for pool in one.pools for key in pool.users}) for one in work),
        "prepare_s": sum(one.prepare_s for one in work),
        "artifacts_s": sum(one.artifacts_s for one in work),
        "message_s": message_s,
        "recorded_s": durations.wall_s,
        "simulated_s": check.seconds,
        "recording": given["run"],
        "sample": given["workloads"],
        "rows": rows,
    }
    output.write_text(stamped(json.dumps(report)) + "\n")


class Sleeper:
    """A builder of which every build takes a fifth of a second, and no CPU."""

    def __init__(self, host: str) -> None:
        self.host = host

    def start(self) -> None:
        """There is nothing to start."""

    def answer(self, job: object, limit_s: float, is_given_up: Callable[[], bool]) -> str:
        time.sleep(0.2)
        return "built"

    def close(self) -> None:
        """Nothing was started."""


def queue(sessions: int = 8, turns: int = 8) -> None:
    """Sessions that have four candidates built, and then time them in silence, again and again."""
    for count in (BUILDERS, 64, 512, 512 * BUILDERS):
        builders = Builders([Sleeper(str(number // BUILDERS)) for number in range(count)], 1.0)
        builders.start()

        def session(number: int, builders: Builders = builders) -> None:
            for _ in range(turns):
                builds = [Build(None, math.inf) for _ in range(BUILDERS)]
                builders.submit(builds)
                builders.wait(builds, math.inf, math.inf)
                with builders.silence(str(number)):
                    time.sleep(0.02)

        begin_s = time.process_time()
        with ThreadPoolExecutor(sessions) as threads:
            list(threads.map(session, range(sessions)))
        spent_s = time.process_time() - begin_s
        print(
            f"{count} builders: {1000 * spent_s / (sessions * turns * BUILDERS):.2f} ms of CPU for a build", flush=True
        )
        builders.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("output", type=Path)
    command = commands.add_parser("simulate")
    command.add_argument("recording", type=Path)
    command.add_argument("output", type=Path)
    command.add_argument("--devices", type=int, nargs="+", default=COUNTS)
    command.add_argument("--targets", nargs="+", default=TARGETS)
    commands.add_parser("queue")
    arguments = parser.parse_args()
    logging.getLogger("subtune").setLevel(logging.ERROR)
    if arguments.command == "record":
        record(arguments.output)
    elif arguments.command == "queue":
        queue()
    else:
        simulate(arguments.recording, arguments.output, arguments.devices, arguments.targets)


if __name__ == "__main__":
    main()
