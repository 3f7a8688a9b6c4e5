"""Trajectories of bitsandbytes' 8-bit optimizers and torchao's 4-bit AdamW, for tests/optim/low_bit_test.cpp.

    python -m venv venv && venv/bin/pip install torch==2.11.0 numpy bitsandbytes==0.50.2 torchao==0.18.0
    TORCHDYNAMO_DISABLE=1 venv/bin/python tools/goldens/low_bit.py

bitsandbytes runs on the CPU with its own maps, rules and blocks. Its CPU kernel finds codes by way of a coarse table and misses
the nearest for a tenth of all numbers; its published algorithm and its CUDA kernels take the nearest, and so does this.
"""

import json
import pathlib

import bitsandbytes
import bitsandbytes.backends.cpu.ops
import numpy as np
import torch
import torchao
import torchao.optim

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "optim"
shape = (40, 130)  # 5200 elements: 20 blocks and a part of one
whole_shape = (40, 128)  # torchao takes whole blocks only
marks = (1, 25)
every = 41


def formula(step, shape):
    """Step 0 gives the parameter, others the gradients."""
    i = np.arange(shape[0] * shape[1], dtype=np.float64)
    values = np.sin(0.7 * i + 2.1 * step) * np.exp(np.sin(0.013 * i))
    return torch.from_numpy(values).float().reshape(shape)


def quantize_to_nearest(values, code, absmax_out, codes_out, block):
    padded = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % block)).view(-1, block)
    absmax = padded.abs().amax(1)
    middles = (code[1:].double() + code[:-1].double()) / 2
    codes = torch.searchsorted(middles, (padded / absmax[:, None].clip(1e-38)).double())
    codes_out.copy_(codes.flatten()[: values.numel()].view_as(codes_out))
    absmax_out.copy_(absmax)


bitsandbytes.backends.cpu.ops._quant_blockwise_fp32_direct = quantize_to_nearest


cases = {
    "adamw": (bitsandbytes.optim.AdamW8bit, {"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1}),
    "adam": (bitsandbytes.optim.Adam8bit, {"lr": 0.01, "betas": [0.8, 0.999], "eps": 1e-6}),
    "sgd": (bitsandbytes.optim.SGD8bit, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "lion": (bitsandbytes.optim.Lion8bit, {"lr": 0.01, "betas": [0.95, 0.98], "weight_decay": 0.1}),
    "adamw4": (torchao.optim.AdamW4bit, {"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1}),
}


def trajectory(kind, options):
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    sizes = whole_shape if "torchao" in kind.__module__ else shape
    parameter = formula(0, sizes).requires_grad_()
    optimizer = kind([parameter], **options)
    result = {}
    for step in range(1, marks[-1] + 1):
        parameter.grad = formula(step, sizes)
        optimizer.step()
        if step in marks:
            result[str(step)] = parameter.detach().flatten()[::every].tolist()
    return result


if __name__ == "__main__":
    golden = {"versions": {"torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__, "torchao": torchao.__version__}, "cases": {}}
    for name, (kind, options) in cases.items():
        golden["cases"][name] = {"class": kind.__name__[:-4], "bits": int(kind.__name__[-4]), "options": options, "values": trajectory(kind, options)}
    text = json.dumps(golden, separators=(",", ":"))
    (out / "low_bit.json").write_text(text.replace('"},', '"},\n').replace("]},", "]},\n") + "\n")
