"""Peers that consist of several ranks. Rank 0 answers the benchmark, and the other ranks run the same commands."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

from protocol import serve


def join_ranks():
    """Starts the other ranks, if this is rank 0, and connects all of them. Returns the processes of the others."""
    others = []
    if os.environ["RANK"] == "0":
        for rank in range(1, int(os.environ["WORLD_SIZE"])):
            others.append(subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(rank)}))
    dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return others


def serve_ranks(others, step, commands):
    """Like serve(), with functions that all ranks call; `run n` calls step() n times. The ranks end when the benchmark closes
    its connection."""

    def run(count):
        dist.barrier()
        for _ in range(int(count)):
            step()
        dist.barrier()

    all_commands = {"run": run, **commands}

    def leading(name):
        def call(*words):
            dist.broadcast_object_list([(name, *words)], 0)
            return all_commands[name](*words)

        return call

    if dist.get_rank() == 0:
        serve(leading("run"), {name: leading(name) for name in commands})
        dist.broadcast_object_list([None], 0)
        for other in others:
            other.wait()
    else:
        while True:
            line = [None]
            dist.broadcast_object_list(line, 0)
            if line[0] is None:
                break
            all_commands[line[0][0]](*line[0][1:])
    dist.destroy_process_group()
