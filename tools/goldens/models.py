"""Writes tests/goldens/models from PyTorch and torchvision: python tools/goldens/models.py

Weights and inputs come from a formula (bench/peers/formula_weights.py), so that only results are stored; large tensors are kept
as their sum, their sum of absolute values and 16 samples.
"""

import collections
import json
import pathlib
import sys

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "bench" / "peers"))
import formula_weights as formula  # noqa: E402
from digits_model import digits_resnet  # noqa: E402

out = root / "tests" / "goldens" / "models"
versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "numpy": np.__version__}


def digest(name, tensor):
    flat = tensor.detach().to(torch.float64).flatten()
    samples = [flat[i].item() for i in formula.positions(name, flat.numel())]
    return {"sum": flat.sum().item(), "abs": flat.abs().sum().item(), "samples": samples}


def digests(items):
    return {name: digest(name, tensor) for name, tensor in items}


def write(name, content):
    text = json.dumps({"versions": versions, **content}, separators=(",", ":"))
    (out / name).write_text(text.replace('},"', '},\n"') + "\n")


def state_dicts():
    nets = {}
    for name in ("resnet18", "resnet34", "resnet50"):
        state = getattr(torchvision.models, name)().state_dict()
        nets[name] = [[key, list(tensor.shape)] for key, tensor in state.items()]
    write("state_dicts.json", {"models": nets})


def initial_weights():
    """What torch.manual_seed(0) gives: the modules draw in a certain order."""
    torch.manual_seed(0)
    net = torchvision.models.resnet18(num_classes=10)
    write("initial_weights.json", {"seed": 0, "num_classes": 10, "parameters": digests(net.named_parameters())})


def training(dtype, name, steps=20, batch=4, size=64, classes=10, batches=2, lr=0.001, momentum=0.9):
    net = formula.set_formula_weights(torchvision.models.resnet18(num_classes=classes)).to(dtype).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    golden = {"batch": batch, "batches": batches, "size": size, "classes": classes, "lr": lr, "momentum": momentum, "losses": []}
    for step in range(steps):
        x = formula.uniform(f"input{step % batches}", (batch, 3, size, size)).to(dtype)
        y = formula.labels(f"labels{step % batches}", batch, classes)
        optimizer.zero_grad()
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        golden["losses"].append(loss.item())
        if step == 0:
            golden["logits"] = logits.flatten().tolist()
            golden["gradients"] = digests((n, p.grad) for n, p in net.named_parameters())
            golden["buffers_after_1"] = digests((n, b) for n, b in net.named_buffers())
        optimizer.step()
    golden["parameters_after_all"] = digests(net.named_parameters())
    golden["buffers_after_all"] = digests(net.named_buffers())
    net.eval()
    with torch.no_grad():
        golden["eval_logits"] = net(formula.uniform("input0", (batch, 3, size, size)).to(dtype)).flatten().tolist()
    write(name, golden)


def small_files():
    """A digits ResNet of width 2 in both kinds of file, as Python writes them, and what it answers."""
    net = formula.set_formula_weights(digits_resnet(width=2)).train()
    with torch.no_grad():
        for i in range(3):  # gives the running statistics values
            net(formula.uniform(f"input{i}", (16, 1, 8, 8)).float())
    torch.save(net.state_dict(), out / "digits_resnet_w2.pt")
    safetensors.torch.save_file(net.state_dict(), out / "digits_resnet_w2.safetensors", metadata={"format": "pt"})
    net.eval()
    with torch.no_grad():
        logits = net(formula.uniform("input0", (16, 1, 8, 8)).float())
    layers = [nn.Linear(64, 32), nn.Linear(32, 16), nn.Linear(16, 10)]
    mlp = nn.Module()
    mlp.layers = nn.ModuleList(layers)
    formula.set_formula_weights(mlp)
    x = formula.uniform("input0", (16, 1, 8, 8)).float().flatten(1)
    answer = layers[2](F.relu(layers[1](F.relu(layers[0](x)))))
    write("small_models.json", {"digits_resnet_w2": logits.flatten().tolist(), "mlp_64_32_16_10": answer.flatten().tolist()})


def old_file():
    """The same weights in the format before PyTorch 1.6, without the counters that batch norms have since PyTorch 0.4.1."""
    state = torch.load(out / "digits_resnet_w2.pt")
    old = collections.OrderedDict((name, tensor) for name, tensor in state.items() if not name.endswith("num_batches_tracked"))
    torch.save(old, out / "digits_resnet_w2_old.pt", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    out.mkdir(parents=True, exist_ok=True)
    state_dicts()
    initial_weights()
    training(torch.float64, "resnet18_float64.json")
    training(torch.float32, "resnet18_float32.json")
    small_files()
    old_file()
