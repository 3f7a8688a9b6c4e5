"""Writes tests/goldens/quant from PyTorch: python tools/goldens/quant.py

parameters.safetensors holds, for each case NAME, the observed tensor NAME.x (NAME.x0, NAME.x1, … for several batches) and torch.ao's
NAME.scale and NAME.zero_point. integers.safetensors holds tensors, parameters, and what torch.quantize_per_tensor,
torch.quantize_per_channel and the fake-quantize operators make of them. The options of a case stand here and, under the same name, in
tests/quant/affine_test.cpp.
"""

import pathlib

import safetensors.torch
import torch
from torch.ao.quantization import observer

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "quant"
metadata = {"torch": torch.__version__, "seed": "0"}


def quantized_range(bits, signed, narrow=False):
    low = -(2 ** (bits - 1)) if signed else 0
    return low + narrow, (2 ** (bits - 1) if signed else 2**bits) - 1


def parameters():
    torch.manual_seed(0)
    tensors = {}
    data = {
        "normal": torch.randn(16, 24) * 3,
        "positive": torch.rand(16, 24) * 5 + 1,
        "negative": -torch.rand(16, 24) - 0.5,
        "zero": torch.zeros(16, 24),
        "outlier": torch.cat([torch.randn(15, 24), torch.full((1, 24), 1e4)]),
    }
    for kind, x in data.items():
        tensors[f"{kind}.x"] = x
        for bits in range(1, 9):
            for signed in (False, True):
                for symmetric in (False, True):
                    low, high = quantized_range(bits, signed)
                    dtype = torch.qint8 if signed else torch.quint8
                    custom = {} if bits == 8 else {"quant_min": low, "quant_max": high}
                    for channel in (False, True):
                        scheme = {
                            (False, False): torch.per_tensor_affine,
                            (False, True): torch.per_tensor_symmetric,
                            (True, False): torch.per_channel_affine,
                            (True, True): torch.per_channel_symmetric,
                        }[channel, symmetric]
                        make = observer.PerChannelMinMaxObserver if channel else observer.MinMaxObserver
                        one = make(dtype=dtype, qscheme=scheme, **custom)
                        one(x)
                        scale, zero_point = one.calculate_qparams()
                        name = f"{kind}.{'int' if signed else 'uint'}{bits}.{'symmetric' if symmetric else 'affine'}"
                        name += ".channel" if channel else ".tensor"
                        tensors[f"{name}.scale"] = scale.float()
                        tensors[f"{name}.zero_point"] = zero_point.int()
    average = observer.MovingAverageMinMaxObserver(averaging_constant=0.1)
    for i in range(5):
        x = torch.randn(8, 8) * (i + 1)
        average(x)
        tensors[f"average.x{i}"] = x
    scale, zero_point = average.calculate_qparams()
    tensors["average.scale"], tensors["average.zero_point"] = scale, zero_point.int()
    return tensors


def integers():
    torch.manual_seed(1)
    tensors = {}
    x = torch.randn(12, 40) * 4
    x[0] = torch.arange(40) * 0.25 - 5  # ties
    x[1, :3] = torch.tensor([1e6, -1e6, 0.0])  # PyTorch saturates these; larger values overflow
    tensors["x"] = x
    for name, scale, zero_point in (("half", 0.5, 12), ("odd", 0.0690003922, 132), ("coarse", 1.7, 0)):
        tensors[f"{name}.uint8"] = torch.quantize_per_tensor(x, scale, zero_point, torch.quint8).int_repr()
        tensors[f"{name}.fake"] = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, 255)
        tensors[f"{name}.int8"] = torch.quantize_per_tensor(x, scale, 3, torch.qint8).int_repr()
    scales, zeros = torch.rand(12) + 0.01, torch.randint(-20, 20, (12,))
    tensors["channel.scale"], tensors["channel.zero_point"] = scales, zeros.int()
    channels = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
    tensors["channel.int8"] = channels.int_repr()
    tensors["channel.dequantized"] = channels.dequantize()

    leaf, step = x.clone().requires_grad_(), scales.clone().requires_grad_()
    weight = torch.randn_like(x)
    tensors["weight"] = weight
    fake = torch.fake_quantize_per_channel_affine(leaf, scales, zeros.int(), 0, -128, 127)
    (fake * weight).sum().backward()
    tensors["channel.fake_grad"] = leaf.grad
    leaf = x.clone().requires_grad_()
    learned = torch._fake_quantize_learnable_per_channel_affine(leaf, step, zeros.float(), 0, -128, 127, 0.25)
    (learned * weight).sum().backward()
    tensors["learned.y"], tensors["learned.x_grad"], tensors["learned.scale_grad"] = learned.detach(), leaf.grad, step.grad

    tensors["e4m3"] = x[2:].clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    return tensors


out.mkdir(parents=True, exist_ok=True)
for file, make in (("parameters", parameters), ("integers", integers)):
    safetensors.torch.save_file({k: v.contiguous() for k, v in make().items()}, out / f"{file}.safetensors", metadata)
