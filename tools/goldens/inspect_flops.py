"""Writes tests/goldens/inspect/flops.json: FLOPs as torch.utils.flop_counter.FlopCounterMode counts them.

Usage: python tools/goldens/inspect_flops.py     (torch 2.11.0, torchvision 0.26)
"""
import json
import pathlib

import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "inspect" / "flops.json"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, length, width = x.shape

        def split(t):
            return t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        scores = torch.softmax(torch.matmul(q, k.transpose(-2, -1)), -1)
        return self.out(torch.matmul(scores, v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        x = self.norm(x + self.attention(x))
        return x + self.down(torch.relu(self.up(x)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(32, 4), Block(32, 4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def counted(name, work):
    with FlopCounterMode(display=False) as counter:
        work()
    counts = counter.get_flop_counts()
    ops = {str(op).replace(".", "::", 1): int(n) for op, n in counts["Global"].items()}
    modules = {}
    for path, by_op in counts.items():
        if path != "Global" and "." in path:
            modules[path.split(".", 1)[1]] = int(sum(by_op.values()))
    return {"name": name, "total": int(counter.get_total_flops()), "ops": ops, "modules": modules}


def convolutions():
    """(kind, input sizes, weight sizes, arguments), forward and backward with the input's gradient."""
    cases = [
        ("conv1d", [2, 4, 17], [6, 4, 3], dict(stride=2, padding=1)),
        ("conv2d", [2, 4, 15, 9], [8, 2, 3, 3], dict(groups=2, dilation=2)),
        ("conv3d", [1, 3, 5, 6, 7], [4, 3, 2, 2, 2], dict()),
        ("conv_transpose2d", [2, 4, 7, 5], [4, 3, 3, 3], dict(stride=2, padding=1, output_padding=1)),
    ]
    for kind, x, w, args in cases:
        x, w = torch.randn(x, requires_grad=True), torch.randn(w, requires_grad=True)
        yield counted(kind, lambda: getattr(F, kind)(x, w, **args).sum().backward())


def main():
    torch.manual_seed(0)
    resnet = torchvision.models.resnet18(num_classes=10)
    mlp = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    encoder = Encoder()
    image, text, row = torch.randn(2, 3, 64, 64), torch.randn(2, 16, 32), torch.randn(32, 64)

    def inference(model, x):
        with torch.inference_mode():
            model(x)

    cases = [
        counted("resnet18", lambda: resnet(image).sum().backward()),
        counted("resnet18_inference", lambda: inference(resnet.eval(), image)),
        counted("mlp", lambda: mlp(row).sum().backward()),
        counted("encoder", lambda: encoder(text).sum().backward()),
        counted("encoder_inference", lambda: inference(encoder, text)),
        *convolutions(),
    ]
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    report = {"versions": versions, "cases": {case.pop("name"): case for case in cases}}
    OUT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
