"""The peers' side of bench/support/peer_process.h: "ready", then an answer a line."""

import os
import sys
import time

import torch


def serve(run, commands=(), threads=None):
    """Params: run(n) does n units; commands: name → function of the words behind it that returns numbers; threads: of an
    operator, OMP_NUM_THREADS if not given."""
    commands = dict(commands)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = sys.stderr  # whatever libraries print must not look like an answer
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
