"""A training step of ResNet-18 in Python PyTorch, in several variants: the peer of bench/train/bench_train.cpp."""

import argparse
import contextlib

import torch
import torch.nn.functional as F
import torchvision

from formula_weights import labels, set_formula_weights, uniform
from protocol import serve


class Step:
    """The variant with this name, which consists of the words eager, channels_last, foreach, fused and bf16."""

    def __init__(self, name, flags):
        self.net = set_formula_weights(torchvision.models.resnet18(num_classes=flags.classes)).train()
        self.x = uniform("input", (flags.batch, 3, flags.size, flags.size)).float()
        self.y = labels("labels", flags.batch, flags.classes)
        self.bf16 = "bf16" in name
        if "channels_last" in name:
            self.net = self.net.to(memory_format=torch.channels_last)
            self.x = self.x.to(memory_format=torch.channels_last)
        kind = {"foreach": True} if "foreach" in name else {"fused": True} if "fused" in name else {}
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=flags.lr, momentum=flags.momentum, **kind)

    def __call__(self):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if self.bf16 else contextlib.nullcontext():
            loss = F.cross_entropy(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    flags = argparse.ArgumentParser()
    for name in ("batch", "size", "classes"):
        flags.add_argument("--" + name, type=int, required=True)
    for name in ("lr", "momentum"):
        flags.add_argument("--" + name, type=float, required=True)
    flags = flags.parse_args()
    steps, chosen = {}, []

    def use(name):
        chosen[:] = [steps[name]]
        return ["ok"]

    def losses(name, count):
        steps[name] = Step(name, flags)
        return [steps[name]().item() for _ in range(int(count))]

    def run(count):
        for _ in range(count):
            chosen[0]()

    serve(run, {"use": use, "losses": losses})


if __name__ == "__main__":
    main()
