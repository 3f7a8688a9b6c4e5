"""LayerNorm and RMSNorm, forward and backward, in Python PyTorch: the peer of bench/norm/bench_norm.cpp."""

import argparse

import torch
import torch.nn.functional as F

from protocol import serve

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def make_step(norm, dtype, rows, columns):
    torch.manual_seed(1)
    x, weight, bias = (torch.randn(*size).to(dtype).requires_grad_() for size in ((rows, columns), (columns,), (columns,)))
    dy = torch.randn(rows, columns).to(dtype)
    if norm == "layer_norm":
        return lambda: torch.autograd.grad(F.layer_norm(x, (columns,), weight, bias, 1e-5), (x, weight, bias), dy)
    return lambda: torch.autograd.grad(F.rms_norm(x, (columns,), weight, 1e-5), (x, weight), dy)


def main():
    flags = argparse.ArgumentParser()
    for name in ("rows", "columns"):
        flags.add_argument("--" + name, type=int, required=True)
    flags = flags.parse_args()
    steps, chosen = {}, []

    def use(norm, dtype):
        key = (norm, dtype)
        if key not in steps:
            steps[key] = make_step(norm, DTYPES[dtype], flags.rows, flags.columns)
        chosen[:] = [steps[key]]
        return ["ok"]

    def run(count):
        for _ in range(count):
            chosen[0]()

    serve(run, {"use": use})


if __name__ == "__main__":
    main()
