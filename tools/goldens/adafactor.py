"""Trajectories of transformers' and PyTorch's Adafactor, and a state, for tests/optim/adafactor_test.cpp.

    python -m venv venv && venv/bin/pip install torch==2.11.0 numpy transformers==5.23.0
    venv/bin/python tools/goldens/adafactor.py
"""

import json
import math
import pathlib

import numpy as np
import torch
import transformers

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "optim"
shapes = [(), (17,), (5, 3), (2, 3, 2, 2)]
marks = (1, 50)


def formula(index, shape, step):
    """What element i of tensor `index` is: step 0 gives the parameter, others the gradients (as in optim.py)."""
    i = np.arange(max(1, math.prod(shape)), dtype=np.float64)
    return torch.from_numpy(np.sin(0.7 * i + 1.3 * index + 2.1 * step) * (1 + 0.5 * np.cos(0.9 * step))).reshape(shape)


fixed = {"lr": 0.01, "relative_step": False}
cases = {
    "default": (transformers.Adafactor, {}),
    "warmup": (transformers.Adafactor, {"warmup_init": True}),
    "fixed": (transformers.Adafactor, fixed | {"scale_parameter": False}),
    "all": (
        transformers.Adafactor,
        fixed | {"eps": [1e-20, 1e-2], "clip_threshold": 0.5, "decay_rate": -0.6, "beta1": 0.9, "weight_decay": 0.1},
    ),
    # PyTorch's own clamps where transformers' adds: equal where no square is that small.
    "torch": (torch.optim.Adafactor, {}),
}


def make(kind, options, parameters):
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return kind(parameters, **options)


def steps(optimizer, parameters, numbers, values=None):
    for step in numbers:
        for index, p in enumerate(parameters):
            p.grad = formula(index, p.shape, step).to(p.dtype)
        optimizer.step()
        if values is not None and step in marks:
            values[str(step)] = flat(parameters)


def flat(parameters):
    return [x for p in parameters for x in p.detach().double().flatten().tolist()]


def start(dtype):
    return [formula(index, shape, 0).to(dtype).requires_grad_() for index, shape in enumerate(shapes)]


if __name__ == "__main__":
    golden = {"versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "cases": {}}
    for name, (kind, options) in cases.items():
        parameters, values = start(torch.float64), {}
        steps(make(kind, options, parameters), parameters, range(1, marks[-1] + 1), values)
        golden["cases"][name] = {"options": options, "float64": values}
    parameters = start(torch.float32)
    optimizer = make(*cases["all"], parameters)
    steps(optimizer, parameters, range(1, 4))
    torch.save({"optimizer": optimizer.state_dict(), "parameters": [p.detach() for p in parameters]}, out / "adafactor.pt")
    steps(optimizer, parameters, range(4, 6))
    golden["after"] = flat(parameters)
    text = json.dumps(golden, separators=(",", ":"))
    (out / "adafactor.json").write_text(text.replace('"},', '"},\n').replace("]},", "]},\n") + "\n")
