"""The time that Python's tools add to a training step: the peer of bench/inspect/bench_inspect.cpp."""

import contextlib

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from digits_model import digits_resnet
from formula_weights import labels, set_formula_weights, uniform
from protocol import serve


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


TOOLS = {
    "none": contextlib.nullcontext,
    "profiler": torch.profiler.profile,
    "profiler_memory": lambda: torch.profiler.profile(profile_memory=True),
    "flop_counter": lambda: FlopCounterMode(display=False),
    "detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
    "deterministic": deterministic,
}


def main():
    net = set_formula_weights(digits_resnet()).train()
    x, y = uniform("input", (8, 1, 8, 8)).float(), labels("labels", 8, 10)
    chosen = []

    def step():
        net.zero_grad()
        value = F.cross_entropy(net(x), y)
        value.backward()
        return value.item()

    def run(count):
        with chosen[0]():
            for _ in range(count):
                step()

    def use(name):
        chosen[:] = [TOOLS[name]]
        return ["ok"]

    def loss():
        with chosen[0]():
            return [step()]

    serve(run, {"use": use, "loss": loss}, threads=1)


if __name__ == "__main__":
    main()
