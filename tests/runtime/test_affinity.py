"""Threads: a model runs on as many as it was told to, and caller and workers sit on different cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from subtune.driver import compile_model
from subtune.runtime.affinity import worker_cores

linux_with_two_cores = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("affinity") / "mlp.subtune"
    compile_model("zoo:mlp?image=64&batch=64", path, tune=False, threads=2, verify=False)
    return path


def in_a_new_process(code: str, *args: object) -> str:
    """Without the variables by which TVM could learn the number of threads from outside."""
    hidden = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "TVM_BIND_THREADS", "SUBTUNE_PIN_THREADS")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-c", code, *map(str, args)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


_BUSY_WORKERS = """
import os, sys, numpy as np
from subtune.artifact import load
artifact = load(sys.argv[1], threads=int(sys.argv[2]))
inputs = {i.name: np.zeros(i.shape, i.dtype) for i in artifact.inputs}
before = set(os.listdir("/proc/self/task"))
artifact.run(inputs)
workers = set(os.listdir("/proc/self/task")) - before
def ticks(task):
    fields = open(f"/proc/self/task/{task}/stat").read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
caller = str(os.getpid())
start = {task: ticks(task) for task in (*workers, caller)}
def used(task):
    return ticks(task) - start[task]
while used(caller) < 100 and not (workers and all(used(task) >= 5 for task in workers)):
    artifact.run(inputs)
print(sum(used(task) >= 5 for task in workers))
"""


@linux_with_two_cores
@pytest.mark.parametrize(("threads", "workers"), [(1, 0), (2, 1)])
def test_all_threads_compute_without_help_from_the_environment(artifact, threads, workers):
    """TVM forgets the number of threads of a pool unless it is told the cores: the second one then has no work."""
    assert in_a_new_process(_BUSY_WORKERS, artifact, threads) == str(workers)


_PLACES = """
import os, sys, time, numpy as np
from subtune.runtime import affinity
from subtune.artifact import load
mine = set(sorted(os.sched_getaffinity(0))[:2])
os.sched_setaffinity(0, mine)
artifact = load(sys.argv[1], threads=2)
inputs = {i.name: np.zeros(i.shape, i.dtype) for i in artifact.inputs}
before = set(os.listdir("/proc/self/task"))
artifact.run(inputs)
(worker,) = set(os.listdir("/proc/self/task")) - before
(core,) = os.sched_getaffinity(int(worker))
affinity.step_aside()
bind, moves = os.sched_setaffinity, []
os.sched_setaffinity = lambda pid, cores: (bind(pid, cores), moves.append((set(cores), affinity._current_core())))
for _ in range(1000):
    bind(0, {core})  # onto the worker's core ...
    while time.perf_counter() < affinity._local.looks_again:
        pass  # it looks once in a while
    bind(0, mine)
    affinity.step_aside()  # ... and off it again, as every run begins
    if moves:  # else Linux was faster
        break
(free, there), (after, _) = moves
print(free == mine - {core} == {there}, after == mine == os.sched_getaffinity(0))
"""


@linux_with_two_cores
def test_the_caller_leaves_its_workers_core_and_stays_free(artifact):
    assert in_a_new_process(_PLACES, artifact) == "True True"


@pytest.mark.parametrize(
    ("allowed", "caller", "pairs", "expected"),
    [
        ({0, 1}, 1, False, [0]),
        ({0, 1}, 0, True, [1]),  # one core with two hardware threads
        ({0, 1, 2, 3}, 1, True, [2]),
        ({1, 2, 3, 5}, 3, True, [1, 5]),
        ({4}, 4, False, []),
    ],
)
def test_workers_get_cores_of_their_own(allowed, caller, pairs, expected):
    def siblings(cpu):
        return frozenset({cpu, cpu ^ 1}) if pairs else frozenset({cpu})

    assert worker_cores(allowed, caller, siblings) == expected
