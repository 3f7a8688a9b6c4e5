"""Writes tests/goldens/models/vision.json from torchvision: python tools/goldens/vision.py

    python -m venv venv && venv/bin/pip install torch==2.11.0 torchvision==0.26.0 numpy
    venv/bin/python tools/goldens/vision.py

AlexNet, VGG, GoogLeNet, Inception-v3, ResNet-101 and ResNet-152 are those of torchvision. torchvision has no Inception-v2: InceptionV2
below is the layer table of the paper (arXiv:1502.03167, figure 5), built from the blocks of torchvision's GoogLeNet.

Weights and inputs come from a formula (bench/peers/formula_weights.py), so that only results are stored. For each parameter, in order,
the file has the sum, the sum of absolute values and two samples of its gradient. AlexNet and VGG have hidden layers of 16 instead of
4096 units here, so that their tests are quick.
"""

import contextlib
import json
import pathlib
import sys
import unittest.mock
import warnings

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torchvision.models.googlenet import BasicConv2d

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "bench" / "peers"))
import formula_weights as formula  # noqa: E402

warnings.simplefilter("ignore", FutureWarning)  # of the initial weights of GoogLeNet and Inception-v3
out = root / "tests" / "goldens" / "models"
versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "numpy": np.__version__}
classes, batch, hidden = 10, 4, 16


class InceptionV2Block(nn.Module):
    """One row of the table. `pool` is 'avg' or 'max'; with `stride` 2, the first branch and the projection are absent."""

    def __init__(self, into, ch1x1, ch3x3red, ch3x3, double3x3red, double3x3, pool, pool_proj, stride=1):
        super().__init__()
        if stride == 1:
            self.branch1 = BasicConv2d(into, ch1x1, kernel_size=1)
        self.branch2 = nn.Sequential(
            BasicConv2d(into, ch3x3red, kernel_size=1), BasicConv2d(ch3x3red, ch3x3, kernel_size=3, padding=1, stride=stride)
        )
        self.branch3 = nn.Sequential(
            BasicConv2d(into, double3x3red, kernel_size=1),
            BasicConv2d(double3x3red, double3x3, kernel_size=3, padding=1),
            BasicConv2d(double3x3, double3x3, kernel_size=3, padding=1, stride=stride),
        )
        pooling = (nn.AvgPool2d if pool == "avg" else nn.MaxPool2d)(3, stride=stride, padding=1)
        projection = [BasicConv2d(into, pool_proj, kernel_size=1)] if stride == 1 else []
        self.branch4 = nn.Sequential(pooling, *projection)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.children()], 1)


class InceptionV2(nn.Module):
    def __init__(self, num_classes=1000, dropout=0.2):
        super().__init__()
        self.conv1 = BasicConv2d(3, 64, kernel_size=7, stride=2, padding=3)
        self.conv2 = BasicConv2d(64, 64, kernel_size=1)
        self.conv3 = BasicConv2d(64, 192, kernel_size=3, padding=1)
        self.inception3a = InceptionV2Block(192, 64, 64, 64, 64, 96, "avg", 32)
        self.inception3b = InceptionV2Block(256, 64, 64, 96, 64, 96, "avg", 64)
        self.inception3c = InceptionV2Block(320, 0, 128, 160, 64, 96, "max", 0, stride=2)
        self.inception4a = InceptionV2Block(576, 224, 64, 96, 96, 128, "avg", 128)
        self.inception4b = InceptionV2Block(576, 192, 96, 128, 96, 128, "avg", 128)
        self.inception4c = InceptionV2Block(576, 160, 128, 160, 128, 160, "avg", 96)
        self.inception4d = InceptionV2Block(576, 96, 128, 192, 160, 192, "avg", 96)
        self.inception4e = InceptionV2Block(576, 0, 128, 192, 192, 256, "max", 0, stride=2)
        self.inception5a = InceptionV2Block(1024, 352, 192, 320, 160, 224, "avg", 128)
        self.inception5b = InceptionV2Block(1024, 352, 192, 320, 192, 224, "max", 128)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(1024, num_classes)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(m.weight, mean=0.0, std=0.01, a=-2, b=2)

    def forward(self, x):
        x = F.max_pool2d(self.conv1(x), 3, 2, padding=1)
        x = F.max_pool2d(self.conv3(self.conv2(x)), 3, 2, padding=1)
        for name, block in self.named_children():
            if name.startswith("inception"):
                x = block(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)
        return self.fc(self.dropout(x))


@contextlib.contextmanager
def narrow():
    """Replaces 4096 by `hidden` in linear layers. The order in which the modules draw random numbers does not change."""

    class Narrow(nn.Linear):
        def __init__(self, into, out_features):
            super().__init__(hidden if into == 4096 else into, hidden if out_features == 4096 else out_features)

    with unittest.mock.patch.object(nn, "Linear", Narrow):
        yield


vggs = [f"vgg{depth}{suffix}" for depth in (11, 13, 16, 19) for suffix in ("", "_bn")]
# The image size of each model, and the weight of its auxiliary outputs in the loss.
models = {
    "alexnet": (64, 0),
    **{name: (32, 0) for name in vggs},
    "googlenet": (64, 0.3),
    "inception_v2": (64, 0),
    "inception_v3": (299, 0.4),
    "resnet101": (64, 0),
    "resnet152": (64, 0),
}


def make(name, **options):
    with narrow() if name.startswith(("alexnet", "vgg")) else contextlib.nullcontext():
        return InceptionV2(**options) if name == "inception_v2" else getattr(torchvision.models, name)(**options)


def rounded(value):
    return float(f"{value:.12g}")


def digest(name, tensor):
    flat = tensor.detach().to(torch.float64).flatten()
    samples = [flat[i].item() for i in formula.positions(name, flat.numel(), 2)]
    return [rounded(value) for value in (flat.sum().item(), flat.abs().sum().item(), *samples)]


def state_dict(net):
    """'name sizes' of each tensor. The five tensors of a batch norm are one entry, 'name batch_norm size'."""
    entries = []
    for name, tensor in net.state_dict().items():
        if name.endswith("running_mean"):
            name = name.removesuffix(".running_mean")
            assert [entry.split()[0] for entry in entries[-2:]] == [name + ".weight", name + ".bias"]
            entries[-2:] = [f"{name} batch_norm {tensor.numel()}"]
        elif not name.endswith(("running_var", "num_batches_tracked")):
            entries.append(f"{name} {'x'.join(str(size) for size in tensor.shape)}")
    return entries


def training_step(name):
    size, weight = models[name]
    dropout = {"dropout": 0.0} if not name.startswith("resnet") else {}
    if name == "googlenet":
        dropout["dropout_aux"] = 0.0
    net = formula.set_formula_weights(make(name, num_classes=classes, **dropout)).double().train()
    x, y = formula.uniform("input", (batch, 3, size, size)), formula.labels("labels", batch, classes)
    outputs = net(x)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    loss = sum((weight if i else 1) * F.cross_entropy(output, y) for i, output in enumerate(outputs))
    loss.backward()
    golden = {"size": size, "loss": loss.item(), "outputs": [[rounded(v) for v in o.flatten().tolist()] for o in outputs]}
    golden["gradients"] = [digest(n, p.grad) for n, p in net.named_parameters()]
    golden["running_statistics"] = [digest(n, b) for n, b in net.named_buffers() if "running" in n]
    net.eval()
    with torch.no_grad():
        golden["eval"] = [rounded(v) for v in net(x).flatten().tolist()]
        if hasattr(net, "transform_input"):
            net.transform_input = True
            golden["eval_transformed"] = [rounded(v) for v in net(x).flatten().tolist()]
    return golden


def initial_weights(name):
    """The sum of absolute values of each parameter after torch.manual_seed(0): the modules draw in a certain order."""
    torch.manual_seed(0)
    return [float(f"{p.abs().double().sum().item():.8g}") for p in make(name, num_classes=classes).parameters()]


def main():
    golden = {"versions": versions, "classes": classes, "batch": batch, "hidden": hidden, "models": {}}
    for name in models:
        print(name, flush=True)
        golden["models"][name] = {
            "state_dict": state_dict(make(name)),
            "initial": initial_weights(name),
            **training_step(name),
        }
    golden["full"] = {name: state_dict(getattr(torchvision.models, name)()) for name in ("alexnet", "vgg16")}
    text = json.dumps(golden, separators=(",", ":")).replace("],[", "],\n[").replace('],"', '],\n"')
    (out / "vision.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
