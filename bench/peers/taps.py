"""The time that Python's hooks add to an operator and to a training step: the peer of bench/taps/bench_taps.cpp."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from protocol import serve


def pattern(*sizes):
    count = 1
    for size in sizes:
        count *= size
    return torch.arange(count, dtype=torch.float32).mul_(0.37).sin_().view(sizes)


def add(n):
    x, y = pattern(4), pattern(4)
    for _ in range(n):
        z = torch.add(x, y)
    return z.sum().item()


def add_in_place(n):
    x, y = pattern(4), torch.zeros(4)
    for _ in range(n):
        x.add_(y)
    return x.sum().item()


def add_with_gradient(n):
    x, y = pattern(4).requires_grad_(), pattern(4)
    for _ in range(n):
        z = torch.add(x, y)
    return z.sum().item()


def training_step(n):
    x = pattern(2, 4, 8, 8)
    weights = [pattern(8, 4, 3, 3), pattern(8, 8, 3, 3), pattern(10, 8 * 16)]
    for w in weights:
        w.requires_grad_()
    for _ in range(n):
        for w in weights:
            w.grad = None
        h = torch.relu(torch.conv2d(x, weights[0], None, 1, 1))
        h = torch.max_pool2d(torch.relu(torch.conv2d(h, weights[1], None, 1, 1)), 2).flatten(1)
        torch.tanh(torch.mm(h, weights[2].t())).pow(2).mean().backward()
    return sum(w.grad.abs().sum().item() for w in weights)


class PassThroughDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class PassThroughFunction(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


KERNELS = {"add": add, "add_": add_in_place, "add_grad": add_with_gradient, "step": training_step}
HOOKS = {
    "none": contextlib.nullcontext,
    "dispatch_mode": PassThroughDispatch,
    "function_mode": PassThroughFunction,
    "profiler": lambda: torch.autograd.profiler.profile(use_kineto=True),
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
}


def main():
    chosen = []

    def use(kernel, hook):
        chosen[:] = [KERNELS[kernel], HOOKS[hook]]
        return ["ok"]

    def run(n):
        kernel, hook = chosen
        with hook():
            result = kernel(n)
        return result

    serve(run, {"use": use, "value": lambda n: [run(int(n))]}, threads=1)


if __name__ == "__main__":
    main()
