"""Weights and inputs from a formula: the same values as bellows/models/formula_weights.cpp, exact in every dtype."""

import numpy as np
import torch


def hashes(name, count, start=0):
    """splitmix64 of (FNV-1a of the name) + index, for `count` indices."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    z = np.arange(start, start + count, dtype=np.uint64) + np.uint64(seed)
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(name, shape):
    """Multiples of 2^-15 in [-1, 1)."""
    count = int(np.prod(shape, dtype=np.int64))
    top = (hashes(name, count) >> np.uint64(48)).astype(np.float64)
    return torch.from_numpy(((top - 32768) / 32768).reshape(shape))


def parameter(name, shape):
    if len(shape) >= 2:
        fan_in, scale = int(np.prod(shape[1:])), 2.0
        while scale * scale * fan_in > 6:
            scale /= 2
        return uniform(name, shape) * scale
    return 1 + uniform(name, shape) / 4 if name.endswith("weight") else uniform(name, shape) / 8


def labels(name, count, classes):
    return torch.from_numpy((hashes(name, count) >> np.uint64(32)).astype(np.int64) % classes)


def set_formula_weights(module):
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            tensor.copy_(parameter(name, tuple(tensor.shape)))
    return module


def positions(name, numel, count=16):
    """Positions of the elements that are compared if a tensor is too large to be stored."""
    return [int(h) % numel for h in hashes(name + "/sample", count)]
