"""The peers' side of bench/support/peer_process.h: the line "ready", then one answer per line."""

import logging
import os
import sys
import tempfile
import time
import warnings

import torch


def compile_from_nothing(*noisy):
    """Gives torch.compile an empty cache of its own, because code in the cache would hide the compile time. Silences warnings
    and the loggers of these names. Returns the folder, which exists as long as the caller keeps it."""
    own = tempfile.TemporaryDirectory()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = own.name
    warnings.filterwarnings("ignore")
    for name in noisy:
        logging.getLogger(name).setLevel(logging.ERROR)
    return own


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
