"""bf16 autocast in Python PyTorch: steps of ResNet-18 and of a transformer encoder, and matrix products by dtype. This is
the peer of bench/amp/bench_amp.cpp."""

import argparse

import torch
import torch.nn.functional as F
import torchvision

from formula_weights import labels, set_formula_weights, uniform
from protocol import serve

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Step:
    def __init__(self, name, flags):
        if name == "resnet":
            net = torchvision.models.resnet18(num_classes=flags.classes)
            x = uniform("input", (flags.images, 3, flags.size, flags.size)).float()
            y = labels("labels", flags.images, flags.classes)
            self.net, self.x = (t.to(memory_format=torch.channels_last) for t in (set_formula_weights(net), x))
            self.loss = lambda output: F.cross_entropy(output, y)
        else:
            layer = torch.nn.TransformerEncoderLayer(
                flags.hidden, flags.heads, flags.feed_forward, dropout=0.0, batch_first=True
            )
            net = torch.nn.TransformerEncoder(layer, flags.layers, enable_nested_tensor=False)
            shape = (flags.sequences, flags.length, flags.hidden)
            y = uniform("target", shape).float()
            self.net, self.x = set_formula_weights(net), uniform("input", shape).float()
            self.loss = lambda output: F.mse_loss(output, y)
        self.net.train()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=flags.lr, momentum=flags.momentum)

    def __call__(self):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss(self.net(self.x))
        loss.backward()
        self.optimizer.step()
        return loss


class Product:
    """Product of two N × N matrices; the name is gemm-DTYPE-N."""

    def __init__(self, name):
        _, dtype, n = name.split("-")
        self.a, self.b = (uniform(k, (int(n), int(n))).to(DTYPES[dtype]) for k in "ab")

    def __call__(self):
        return self.a @ self.b


def main():
    flags = argparse.ArgumentParser()
    for name in ("images", "size", "classes", "layers", "hidden", "heads", "feed-forward", "sequences", "length"):
        flags.add_argument("--" + name, type=int, required=True)
    for name in ("lr", "momentum"):
        flags.add_argument("--" + name, type=float, required=True)
    flags = flags.parse_args()
    work, chosen = {}, []

    def use(name):
        chosen[:] = [work[name]]
        return ["ok"]

    def losses(name, count):
        work[name] = Step(name, flags)
        return [work[name]().item() for _ in range(int(count))]

    def product(name):
        work[name] = Product(name)
        c = work[name]().double()
        return [c.abs().sum().item(), c[0, 0].item()]

    def run(count):
        for _ in range(count):
            chosen[0]()

    serve(run, {"use": use, "losses": losses, "product": product})


if __name__ == "__main__":
    main()
