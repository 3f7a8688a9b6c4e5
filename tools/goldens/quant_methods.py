"""Writes tests/goldens/quant/methods.safetensors: python tools/goldens/quant_methods.py

GPTQ and AWQ for one layer, in the order of operations of the original repositories: fasterquant() of IST-DASLab/gptq, and
auto_scale.py and auto_clip.py of mit-han-lab/llm-awq. The integers are stored with their scales and zero points. x is stored in fp16;
all computation is in fp32. The names of the cases are also in tests/quant/methods_test.cpp.
"""

import pathlib

import safetensors.torch
import torch

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "quant"


def layer():
    """A weight, and correlated inputs in batches. Some features are large, and one is always 0."""
    torch.manual_seed(0)
    tokens, features, outputs = 384, 192, 40
    x = torch.randn(tokens, 24) @ torch.randn(24, features) * 0.4 + 0.5 * torch.randn(tokens, features)
    x = x * (torch.rand(features) * 2).exp()
    x[:, 17] = 0
    weight = torch.randn(outputs, features) * 0.05 * (torch.rand(outputs, 1) + 0.5)
    return weight, x.half()


# GPTQ: a grid per row.
def grid_of(rows, bits, symmetric):
    levels = 2**bits - 1
    low = torch.minimum(rows.min(1)[0], torch.zeros(rows.shape[0]))
    high = torch.maximum(rows.max(1)[0], torch.zeros(rows.shape[0]))
    if symmetric:
        high = torch.maximum(low.abs(), high)
        low = torch.where(low < 0, -high, low)
    empty = (low == 0) & (high == 0)
    low[empty], high[empty] = -1, 1
    scale = (high - low) / levels
    zero = torch.full_like(scale, (levels + 1) / 2) if symmetric else torch.round(-low / scale)
    return scale, zero


def on_grid(column, grid, bits):
    scale, zero = grid
    return torch.clamp(torch.round(column / scale) + zero, 0, 2**bits - 1)


def hessian_of(batches):
    hessian, seen = torch.zeros(batches[0].shape[-1], batches[0].shape[-1]), 0
    for batch in batches:
        rows = batch.float()
        hessian *= seen / (seen + rows.shape[0])
        seen += rows.shape[0]
        rows = rows.t() * (2 / seen) ** 0.5
        hessian += rows @ rows.t()
    return hessian


def gptq(weight, batches, bits, symmetric, group=None, by_activation=False, block=128, damping=0.01):
    weight, hessian = weight.clone(), hessian_of(batches)
    columns = weight.shape[1]
    dead = torch.diag(hessian) == 0
    hessian[dead, dead] = 1
    weight[:, dead] = 0
    grid = grid_of(weight, bits, symmetric)
    fixed = [grid_of(weight[:, i : i + group], bits, symmetric) for i in range(0, columns, group)] if group else [grid]
    order = torch.arange(columns)
    if by_activation:
        order = torch.argsort(torch.diag(hessian), descending=True)
        weight, hessian = weight[:, order], hessian[order][:, order]
    hessian.diagonal().add_(damping * torch.mean(torch.diag(hessian)))
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)

    integers, grids = torch.zeros_like(weight), [grid]
    if group:
        grids = fixed if by_activation else []
    for begin in range(0, columns, block):
        end = min(begin + block, columns)
        part, errors = weight[:, begin:end].clone(), torch.zeros(weight.shape[0], end - begin)
        corner = inverse[begin:end, begin:end]
        for i in range(end - begin):
            if group and by_activation:
                grid = fixed[order[begin + i] // group]
            elif group and (begin + i) % group == 0:
                grid = grid_of(weight[:, begin + i : begin + i + group], bits, symmetric)
                grids.append(grid)
            q = on_grid(part[:, i], grid, bits)
            integers[:, begin + i] = q
            errors[:, i] = (part[:, i] - (q - grid[1]) * grid[0]) / corner[i, i]
            part[:, i:] -= errors[:, i : i + 1] @ corner[i : i + 1, i:]
        weight[:, end:] -= errors @ inverse[begin:end, end:]
    integers = integers[:, torch.argsort(order)]
    return integers, torch.stack([g[0] for g in grids], 1), torch.stack([g[1] for g in grids], 1)


# AWQ: an affine grid per group.
def awq_quantized(weight, bits, group):
    parts = weight.reshape(-1, group)
    low, high = parts.amin(1, keepdim=True), parts.amax(1, keepdim=True)
    scale = (high - low).clamp(min=1e-5) / (2**bits - 1)
    zero = (-torch.round(low / scale)).clamp(0, 2**bits - 1)
    integers = torch.clamp(torch.round(parts / scale) + zero, 0, 2**bits - 1)
    shape = (weight.shape[0], -1)
    return ((integers - zero) * scale).reshape(weight.shape), integers.reshape(weight.shape), scale.view(shape), zero.view(shape)


def awq_scales(weight, x, bits, group, steps=20):
    expected, magnitudes = x @ weight.t(), x.abs().mean(0)
    best, best_scales = float("inf"), None
    for i in range(steps):
        scales = magnitudes.pow(i / steps).clamp(min=1e-4)
        scales = scales / (scales.max() * scales.min()).sqrt()
        approximation = awq_quantized(weight * scales, bits, group)[0] / scales
        loss = (expected - x @ approximation.t()).pow(2).mean().item()
        if loss < best:
            best, best_scales = loss, scales
    return best_scales


def awq_clipped(weight, x, bits, group, steps=20, shrink=0.5):
    outputs = weight.shape[0]
    inputs, parts = x.view(1, x.shape[0], -1, group), weight.view(outputs, 1, -1, group)
    largest = parts.abs().amax(-1, keepdim=True)
    best, smallest = largest.clone(), torch.full_like(largest, float("inf"))
    expected = (inputs * parts).sum(-1)
    for i in range(int(shrink * steps)):
        limit = largest * (1 - i / steps)
        approximation = awq_quantized(torch.clamp(parts, -limit, limit), bits, group)[0].view_as(parts)
        error = ((inputs * approximation).sum(-1) - expected).pow(2).mean(1).view_as(smallest)
        better = error < smallest
        smallest[better], best[better] = error[better], limit[better]
    return torch.clamp(parts, -best, best).view_as(weight)


def main():
    weight, half = layer()
    x = half.float()
    tensors = {"weight": weight, "x": half}
    cases = {
        "gptq.int4.group": dict(bits=4, symmetric=True, group=64),
        "gptq.uint4.group": dict(bits=4, symmetric=False, group=96),
        "gptq.uint3.channel": dict(bits=3, symmetric=False),
        "gptq.int8.channel": dict(bits=8, symmetric=True),
        "gptq.uint4.order": dict(bits=4, symmetric=False, group=64, by_activation=True),
        "gptq.int2.order": dict(bits=2, symmetric=True, by_activation=True),
    }
    for name, options in cases.items():
        integers, scale, zero = gptq(weight, x.chunk(3), **options)
        tensors |= {f"{name}.integers": integers.byte(), f"{name}.scale": scale, f"{name}.zero_point": zero.int()}
    for bits, group in ((4, 64), (3, 32)):
        name = f"awq.uint{bits}"
        scales = awq_scales(weight, x, bits, group)
        clipped = awq_clipped(weight * scales, x / scales, bits, group)
        _, integers, scale, zero = awq_quantized(clipped, bits, group)
        tensors |= {f"{name}.scales": scales, f"{name}.clipped": clipped, f"{name}.integers": integers.byte()}
        tensors |= {f"{name}.scale": scale, f"{name}.zero_point": zero.int()}
    return {name: value.contiguous() for name, value in tensors.items()}


safetensors.torch.save_file(main(), out / "methods.safetensors", {"torch": torch.__version__, "seed": "0"})
