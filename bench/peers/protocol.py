"""The peers' side of bench/support/peer_process.h: the line "ready", then one answer per line."""

import os
import sys
import time

import torch


def serve(run, commands=(), threads=None):
    """Params: run(n) runs n units; commands: name → function that takes the remaining words and returns numbers; threads:
    threads of an operator, by default OMP_NUM_THREADS."""
    commands = dict(commands)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = sys.stderr  # output of libraries must not look like an answer
    torch.set_num_threads(threads or int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    print("ready", file=out)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "run":
            start = time.perf_counter()
            run(int(rest[0]))
            print(time.perf_counter() - start, file=out)
        else:
            print(*commands[word](*rest), file=out)
