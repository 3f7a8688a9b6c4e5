"""Optimizer steps of Python PyTorch over many tensors: the peer of bench/optim/bench_optim.cpp."""

import bitsandbytes
import lion_pytorch
import torch
import transformers

from protocol import serve

CLASSES = {
    "SGD": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-3}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-3}),
    "Lion": (lion_pytorch.Lion, {"lr": 1e-3}),
    "Adafactor": (transformers.Adafactor, {}),
    "AdamW8bit": (bitsandbytes.optim.AdamW8bit, {"lr": 1e-3}),
    "SGD8bit": (bitsandbytes.optim.SGD8bit, {"lr": 1e-3, "momentum": 0.9}),
}
IMPLEMENTATIONS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


def values(tensors, size, what):
    """Parameter or gradient of tensor i, by the same formula as in the C++ program."""
    base = torch.arange(size, dtype=torch.float32)
    factor, scale = (0.37, 1.0) if what == "parameter" else (0.11, 0.01)
    return [base.add(i).mul_(factor).sin_().mul_(scale).view(-1, 250) for i in range(tensors)]


class Work:
    def __init__(self, name, tensors, total):
        kind, options = CLASSES[name]
        self.parameters = values(tensors, total // tensors, "parameter")
        for p, g in zip(self.parameters, values(tensors, total // tensors, "gradient")):
            p.requires_grad_()
            p.grad = g
        self.optimizer = kind(self.parameters, **options)
        self.known = self.optimizer.param_groups[0].keys() & {"foreach", "fused"}

    def use(self, implementation):
        for key, value in IMPLEMENTATIONS[implementation].items():
            if key in self.known:
                self.optimizer.param_groups[0][key] = value

    def samples(self):
        with torch.no_grad():
            return [x for p in self.parameters[:: max(1, len(self.parameters) // 4)] for x in p.flatten()[::7919][:8].tolist()]


def main():
    work = [None]

    def make(name, tensors, total):
        work[0] = None
        work[0] = Work(name, int(tensors), int(total))
        return ["ok"]

    def use(implementation):
        work[0].use(implementation)
        return ["ok"]

    def samples(implementation, steps):
        work[0].use(implementation)
        run(int(steps))
        return work[0].samples()

    def drop():
        work[0] = None
        return ["ok"]

    def run(count):
        for _ in range(count):
            work[0].optimizer.step()

    serve(run, {"make": make, "use": use, "samples": samples, "drop": drop})


if __name__ == "__main__":
    main()
