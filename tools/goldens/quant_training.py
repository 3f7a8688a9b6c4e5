"""Writes tests/goldens/quant/training.safetensors from torch.ao: python tools/goldens/quant_training.py

Two nets are trained for ten steps with SGD after torch.ao.quantization.prepare_qat: "plain" has a convolution and two linears, "norms" has two
convolutions with batch norms (ConvBnReLU2d of torch.ao, whose batch norms are frozen after the sixth step) and a linear. NET.PARAMETER is an
initial weight, NET.losses are the losses, and NET.step is the last scale of each input. x and target are the batches. The options of torch.ao
are those of bellows::quant::FakeQuantizer: uint8 inputs with a moving average, and int8 weights with one scale per output.
"""

import pathlib

import safetensors.torch
import torch
from torch import nn
from torch.ao import quantization as tq

out = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "quant"

activation = tq.FakeQuantize.with_args(
    observer=tq.MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8, qscheme=torch.per_tensor_affine, reduce_range=False
)

class CurrentRange(tq.PerChannelMinMaxObserver):
    """The range of the present weight, not of all earlier ones."""

    def forward(self, x):
        self.reset_min_max_vals()
        return super().forward(x)


weight = tq.FakeQuantize.with_args(
    observer=CurrentRange, quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=torch.per_channel_symmetric, reduce_range=False, ch_axis=0
)


class Net(nn.Module):
    def __init__(self, norms):
        super().__init__()
        self.quant = tq.QuantStub()
        if norms:
            self.conv = nn.Conv2d(3, 8, 3, bias=False)
            self.norm = nn.BatchNorm2d(8)
        else:
            self.conv = nn.Conv2d(3, 8, 3)
            self.norm = nn.Identity()
        self.relu = nn.ReLU()
        if norms:
            self.other = nn.Conv2d(8, 12, 3, stride=2, bias=False)
            self.other_norm = nn.BatchNorm2d(12)
            self.other_relu = nn.ReLU()
            self.fc = nn.Linear(12 * 4, 5)
        else:
            self.inner = nn.Linear(8 * 36, 16)
            self.again = tq.QuantStub()
            self.fc = nn.Linear(16, 5)
        self.norms = norms

    def forward(self, x):
        x = self.relu(self.norm(self.conv(self.quant(x))))
        if self.norms:
            return self.fc(self.other_relu(self.other_norm(self.other(x))).flatten(1))
        # The module Tanh would have its own fake quantizer in torch.ao.
        return self.fc(self.again(torch.tanh(self.inner(x.flatten(1)))))


def trained(norms, x, target, tensors):
    name = "norms" if norms else "plain"
    torch.manual_seed(3)
    net = Net(norms)
    for key, value in net.state_dict().items():
        if "num_batches" not in key:
            tensors[f"{name}.{key}"] = value.clone()
    net.qconfig = tq.QConfig(activation=activation, weight=weight)
    net.fc.qconfig = tq.QConfig(activation=nn.Identity, weight=weight)  # the result is not quantized
    if not norms:
        net.inner.qconfig = tq.QConfig(activation=nn.Identity, weight=weight)
    net.train()
    groups = [["conv", "norm", "relu"], ["other", "other_norm", "other_relu"]] if norms else [["conv", "relu"]]
    tq.fuse_modules_qat(net, groups, inplace=True)
    tq.prepare_qat(net, inplace=True)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(len(x)):
        if norms and step == 6:
            net.apply(torch.ao.nn.intrinsic.qat.freeze_bn_stats)
        loss = nn.functional.cross_entropy(net(x[step]), target[step])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.detach())
    tensors[f"{name}.losses"] = torch.stack(losses)
    inputs = [net.quant, net.conv, net.other] if norms else [net.quant, net.conv, net.again]
    tensors[f"{name}.step"] = torch.cat([one.activation_post_process.scale for one in inputs])


torch.set_num_threads(1)
torch.manual_seed(2)
x = torch.rand(10, 16, 3, 8, 8)
tensors = {"x": x, "target": (x - 0.5).flatten(2).matmul(torch.randn(192, 5)).argmax(2)}
for norms in (False, True):
    trained(norms, tensors["x"], tensors["target"], tensors)
safetensors.torch.save_file(tensors, out / "training.safetensors", metadata={"torch": torch.__version__, "seed": "2"})
print({name: value for name, value in tensors.items() if "losses" in name or ".step" in name})
