"""Writes tests/goldens/parallel/hooks.safetensors from PyTorch: python tools/goldens/parallel.py

Two ranks under Gloo, twelve steps over two buckets. Gradients come from a formula that the test knows, too. Stored are the means that
PyTorch's communication hooks return: "<case>.<dtype>.<step>.<bucket>". Where a case compresses, PowerSGD's errors and projections of one
step make the next one's, so that the last steps hold the whole trajectory.
"""

import math
import os
import pathlib
import tempfile

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "parallel"
WORLD, STEPS, MARKS = 2, 12, (2, 11)
BUCKETS = [[(12, 10), (17,), (16, 3, 2, 2)], [(12, 10), (9, 15), (12, 10)]]
POWER = {
    "rank1": {"matrix_approximation_rank": 1},
    "rank2_cold": {"matrix_approximation_rank": 2, "warm_start": False, "min_compression_rate": 1},
    "rank2_batched": {"matrix_approximation_rank": 2, "batch_tensors_with_same_shape": True, "min_compression_rate": 1},
    "rank3": {"matrix_approximation_rank": 3, "min_compression_rate": 1},
    "no_feedback": {"use_error_feedback": False, "orthogonalization_epsilon": 1e-3, "random_seed": 7},
}


class Bucket:
    def __init__(self, index, rank, step, dtype):
        self.number = index
        parts = [formula(10 * index + i, shape, step, rank) for i, shape in enumerate(BUCKETS[index])]
        self.flat = torch.cat([p.flatten() for p in parts]).to(dtype)

    def index(self):
        return self.number

    def buffer(self):
        return self.flat

    def is_last(self):
        return self.number == len(BUCKETS) - 1

    def gradients(self):
        shapes = BUCKETS[self.number]
        return [p.view(s) for p, s in zip(self.flat.split([math.prod(s) for s in shapes]), shapes)]


def formula(tensor, shape, step, rank):
    i = np.arange(math.prod(shape), dtype=np.float64)
    return torch.from_numpy(np.sin(0.37 * i * i + 1.3 * tensor + 0.2 * step + 0.3 * rank) + 0.5 * np.cos(0.11 * i + tensor)).reshape(shape)


def run(rank, path, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=WORLD)
    results = {}
    for dtype in (torch.float64, torch.float32):
        cases = {"fp16": (None, default_hooks.fp16_compress_hook), "bf16": (None, default_hooks.bf16_compress_hook)}
        for name, options in POWER.items():
            state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2, **options)
            cases[name] = (state, powerSGD_hook.powerSGD_hook)
        for name, (state, hook) in cases.items():
            for step in range(STEPS):
                for index in range(len(BUCKETS)):
                    mean = hook(state, Bucket(index, rank, step, dtype)).wait()
                    mean = mean[0] if isinstance(mean, list) else mean
                    if step in MARKS:
                        results[f"{name}.{str(dtype)[6:]}.{step}.{index}"] = mean.clone()
    if rank == 0:
        safetensors.torch.save_file(results, file, {"torch": torch.__version__, "ranks": str(WORLD), "backend": "gloo"})
    dist.destroy_process_group()


if __name__ == "__main__":
    out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(folder + "/store", str(out / "hooks.safetensors")), nprocs=WORLD)
