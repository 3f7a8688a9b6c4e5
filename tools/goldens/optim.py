"""Writes tests/goldens/optim from PyTorch: python tools/goldens/optim.py

Trajectories: 50 steps of every optimizer in several option variants. Parameters and gradients come from a formula that the test
knows too, so that only what comes out is stored: the parameters after steps 1 and 50, as float64.
States: files as torch.save writes them, after 3 steps, and where Python stands after 2 more.
"""

import json
import math
import pathlib

import lion_pytorch
import numpy as np
import torch

root = pathlib.Path(__file__).resolve().parents[2]
out = root / "tests" / "goldens" / "optim"
shapes = [(), (17,), (5, 3), (2, 3, 2, 2)]
marks = (1, 50)


def formula(index, shape, step):
    """What element i of tensor `index` is: step 0 gives the parameter, others the gradients."""
    i = np.arange(max(1, math.prod(shape)), dtype=np.float64)
    return torch.from_numpy(np.sin(0.7 * i + 1.3 * index + 2.1 * step) * (1 + 0.5 * np.cos(0.9 * step))).reshape(shape)


cases = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "sgd_maximize": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.5, "maximize": True, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adam_decay": (torch.optim.Adam, {"lr": 0.01, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1, "amsgrad": True}),
    "adam_maximize": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adamw_amsgrad": (torch.optim.AdamW, {"lr": 0.01, "betas": [0.8, 0.99], "weight_decay": 0.1, "amsgrad": True}),
    "adamw_maximize": (torch.optim.AdamW, {"lr": 0.01, "maximize": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "rmsprop_momentum": (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "momentum": 0.9, "weight_decay": 0.01}),
    "rmsprop_centered": (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "centered": True}),
    "rmsprop_all": (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "centered": True, "momentum": 0.5, "maximize": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
    "adagrad_decay": (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.5}),
    "adagrad_maximize": (torch.optim.Adagrad, {"lr": 0.05, "maximize": True}),
    "lion": (lion_pytorch.Lion, {"lr": 0.01}),
    "lion_decay": (lion_pytorch.Lion, {"lr": 0.01, "betas": [0.95, 0.98], "weight_decay": 0.1}),
}


def make(kind, options, parameters):
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return kind(parameters, **options)


def set_gradients(parameters, step):
    for index, p in enumerate(parameters):
        p.grad = formula(index, p.shape, step).to(p.dtype)


def trajectory(kind, options, dtype):
    parameters = [formula(index, shape, 0).to(dtype).requires_grad_() for index, shape in enumerate(shapes)]
    optimizer = make(kind, options, parameters)
    result = {}
    for step in range(1, 51):
        set_gradients(parameters, step)
        optimizer.step()
        if step in marks:
            result[str(step)] = [x for p in parameters for x in p.detach().double().flatten().tolist()]
    return result


def bfloat16_trajectory(kind, options):
    """Everything stored in bf16, each step computed in float32, as fused kernels do. By way of float32 tensors that are rounded
    after each step: PyTorch 2.11's own fused SGD leaves whole vectors of bf16 as they are on the CPU."""
    parameters = [formula(index, shape, 0).bfloat16().float().requires_grad_() for index, shape in enumerate(shapes)]
    optimizer = make(kind, options, parameters)
    result = {}
    for step in range(1, 51):
        for index, p in enumerate(parameters):
            p.grad = formula(index, p.shape, step).bfloat16().float()
        optimizer.step()
        state = [t for s in optimizer.state.values() for key, t in s.items() if key != "step" and t is not None]
        for tensor in [p.data for p in parameters] + state:
            tensor.copy_(tensor.bfloat16().float())
        if step in marks:
            result[str(step)] = [x for p in parameters for x in p.detach().double().flatten().tolist()]
    return result


def trajectories():
    golden = {"versions": {"torch": torch.__version__, "lion-pytorch": "0.2.3"}, "cases": {}}
    for name, (kind, options) in cases.items():
        entry = {"class": kind.__name__, "options": options, "float64": trajectory(kind, options, torch.float64)}
        entry["bfloat16"] = bfloat16_trajectory(kind, options)
        golden["cases"][name] = entry
    text = json.dumps(golden, separators=(",", ":"))
    (out / "trajectories.json").write_text(text.replace('"},', '"},\n').replace("]},", "]},\n") + "\n")


def state_files():
    """Two groups, so that indices and options are told apart; AdamW's first group has a tensor as learning rate."""
    golden = {}
    for name in ("sgd_momentum", "sgd", "adam_decay", "adamw", "rmsprop_all", "adagrad_decay", "lion_decay"):
        kind, options = cases[name]
        parameters = [formula(index, shape, 0).float().requires_grad_() for index, shape in enumerate(shapes)]
        first = {"params": parameters[:1], "lr": torch.tensor(0.02) if name == "adamw" else 0.02}
        optimizer = make(kind, options, [first, {"params": parameters[1:]}])
        for step in range(1, 4):
            set_gradients(parameters, step)
            optimizer.step()
        torch.save({"optimizer": optimizer.state_dict(), "parameters": [p.detach() for p in parameters]}, out / f"{name}.pt")
        for step in range(4, 6):
            set_gradients(parameters, step)
            optimizer.step()
        golden[name] = {
            "class": kind.__name__,
            "options": options,
            "after": [x for p in parameters for x in p.detach().double().flatten().tolist()],
        }
    (out / "states.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    out.mkdir(parents=True, exist_ok=True)
    trajectories()
    state_files()
