"""Writes tests/goldens/quant/formats.safetensors: python tools/goldens/quant_formats.py

Linear layers as AutoGPTQ, AutoAWQ and compressed-tensors store them, and their dequantized weights. Needs the packages auto-gptq 0.7.1,
autoawq 0.2.9 and compressed-tensors 0.20; `pip install --no-deps` is sufficient. Only their modules that pack weights are loaded. Each case
NAME has NAME.values, NAME.scale and NAME.zero_point as inputs, the tensors of the layer NAME.file.*, and NAME.config, the bytes of
quantization_config.
"""

import importlib
import importlib.util
import json
import os
import pathlib
import sys
import types

import safetensors.torch
import torch

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "quant"


def load(package, module):
    """Imports a module without the __init__ of its package, which imports much more."""
    stub = types.ModuleType(package)
    stub.__path__ = [os.path.dirname(importlib.util.find_spec(package).origin)]
    for name in [package] + [f"{package}.{'.'.join(module.split('.')[:i])}" for i in range(1, module.count(".") + 1)]:
        inner = types.ModuleType(name)
        inner.__path__ = [os.path.join(stub.__path__[0], *name.split(".")[1:])]
        sys.modules[name] = inner
    return importlib.import_module(f"{package}.{module}")


def text(config):
    return torch.frombuffer(bytearray(json.dumps(config).encode()), dtype=torch.uint8)


def integers(bits, outputs, inputs, groups, symmetric):
    """Unsigned integers, fp16 scales and zero points."""
    values = torch.randint(0, 2**bits, (outputs, inputs))
    scale = (torch.rand(outputs, groups) * 0.02 + 0.01).half().float()
    zero = torch.full((outputs, groups), 2 ** (bits - 1)) if symmetric else torch.randint(1, 2**bits, (outputs, groups))
    return values, scale, zero


def dequantized(values, scale, zero, index):
    return (values - zero[:, index]) * scale[:, index]


def linear_of(weight):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float16)
    linear.weight.data = weight.half()
    return linear


def gptq(tensors):
    module = load("auto_gptq", "nn_modules.qlinear.qlinear_cuda")
    for bits, group, symmetric, order in ((2, 16, True, False), (3, 32, False, False), (4, 16, False, True), (8, -1, True, False)):
        name, outputs, inputs = f"gptq{bits}", 32, 64
        groups = 1 if group < 0 else inputs // group
        values, scale, zero = integers(bits, outputs, inputs, groups, symmetric)
        index = torch.arange(inputs) // (inputs // groups)
        if order:
            index = index[torch.randperm(inputs)]
        layer = module.QuantLinear(bits, group, inputs, outputs, False, weight_dtype=torch.float16)
        layer.pack(linear_of(dequantized(values, scale, zero, index)), scale.clone(), zero.clone(), index.int())
        tensors |= {f"{name}.file.{key}": value for key, value in layer.state_dict().items()}
        tensors |= {f"{name}.values": values.byte(), f"{name}.scale": scale, f"{name}.zero_point": zero.int(), f"{name}.index": index}
        config = {"bits": bits, "group_size": group, "damp_percent": 0.01, "desc_act": order, "sym": symmetric}
        config |= {"true_sequential": True, "model_name_or_path": None, "quant_method": "gptq", "checkpoint_format": "gptq"}
        tensors[f"{name}.config"] = text(config)


def awq(tensors):
    sys.modules.setdefault("accelerate", types.ModuleType("accelerate"))  # imported, but not used to pack
    module = load("awq", "modules.linear.gemm")
    for group in (16, -1):
        name, outputs, inputs = "awq.group" if group > 0 else "awq.channel", 32, 64
        groups = 1 if group < 0 else inputs // group
        values, scale, zero = integers(4, outputs, inputs, groups, symmetric=False)
        index = torch.arange(inputs) // (inputs // groups)
        linear = linear_of(dequantized(values, scale, zero, index))
        layer = module.WQLinear_GEMM.from_linear(linear, 4, inputs // groups, False, scale.half().t(), zero.half().t())
        tensors |= {f"{name}.file.{key}": value for key, value in layer.state_dict().items()}
        tensors |= {f"{name}.values": values.byte(), f"{name}.scale": scale, f"{name}.zero_point": zero.int(), f"{name}.index": index}
        config = {"quant_method": "awq", "zero_point": True, "group_size": group, "bits": 4, "version": "gemm"}
        tensors[f"{name}.config"] = text(config | {"modules_to_not_convert": ["lm_head"]})


def compressed(tensors):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme

    cases = {
        "pack2": ("pack-quantized", dict(num_bits=2, symmetric=True, strategy="group", group_size=16), None),
        "pack4": ("pack-quantized", dict(num_bits=4, symmetric=False, strategy="group", group_size=16), None),
        "pack8": ("pack-quantized", dict(num_bits=8, symmetric=False, strategy="channel"), None),
        "int8": ("int-quantized", dict(num_bits=8, symmetric=True, strategy="channel"), dict(num_bits=8, strategy="token", dynamic=True)),
        "naive4": ("naive-quantized", dict(num_bits=4, symmetric=False, strategy="group", group_size=32), None),
        "float8": ("float-quantized", dict(num_bits=8, type="float", strategy="channel"), dict(num_bits=8, type="float", strategy="tensor")),
    }
    for name, (form, weights, inputs) in cases.items():
        args = QuantizationArgs(**weights)
        scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=QuantizationArgs(**inputs) if inputs else None)
        outputs, features, bits = 20, 96, args.num_bits
        groups = features // args.group_size if args.group_size else 1
        scale = (torch.rand(outputs, groups) * 0.02 + 0.01).half().float()
        zero = torch.zeros(outputs, groups, dtype=torch.int8)
        if args.type == "float":
            weight = torch.randn(outputs, features)
        else:
            values = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (outputs, features))
            if not args.symmetric:
                zero = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (outputs, groups)).to(torch.int8)
            weight = dequantized(values, scale, zero.int(), torch.arange(features) // (features // groups))
            tensors[f"{name}.values"], tensors[f"{name}.zero_point"] = values.to(torch.int8), zero.int()
        state = {"weight": weight, "weight_scale": scale}
        if not args.symmetric:
            state["weight_zero_point"] = zero
        compressor = BaseCompressor.get_value_from_registry(form)
        stored = compressor.compress(state, scheme)
        tensors |= {f"{name}.file.{key}": value for key, value in stored.items()}
        tensors[f"{name}.scale"] = scale
        tensors[f"{name}.dequantized"] = compressor.decompress(stored, scheme)["weight"]
        config = QuantizationConfig(config_groups={"group_0": scheme}, format=form, ignore=["lm_head"]).model_dump(mode="json")
        tensors[f"{name}.config"] = text(config | {"quant_method": "compressed-tensors"})


torch.manual_seed(0)
everything = {}
for write in (gptq, awq, compressed):
    write(everything)
metadata = {"torch": torch.__version__, "seed": "0"}
safetensors.torch.save_file({k: v.contiguous().clone() for k, v in everything.items()}, out / "formats.safetensors", metadata)
