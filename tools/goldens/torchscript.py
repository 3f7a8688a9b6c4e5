"""Writes TorchScript programs: python tools/goldens/torchscript.py

tests/goldens/models/digits_resnet_w2_script.pt: the network of digits_resnet_w2.pt with the same weights (models.py).
examples/03_own_model/net.pt: a network of the example's own, with the weights that seed 1 gives.
"""

import io
import pathlib
import sys

import torch
from torch import nn

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "bench" / "peers"))
from digits_model import digits_resnet  # noqa: E402


class Net(nn.Module):
    def __init__(self, num_classes: int = 10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True),
            nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(24, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))


def save(module, path):
    """torch.jit.save, without the records that name the Python sources' folders."""
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    reader = torch._C.PyTorchFileReader(io.BytesIO(buffer.getvalue()))
    writer = torch._C.PyTorchFileWriter(str(path))
    for name in reader.get_all_records():
        if name.endswith(".debug_pkl") or name in ("version", "byteorder", ".data/serialization_id", ".format_version", ".storage_alignment"):
            continue
        record = reader.get_record(name)
        writer.write_record(name, record, len(record))
    writer.write_end_of_file()
    torch.jit.load(str(path))


if __name__ == "__main__":
    goldens = root / "tests" / "goldens" / "models"
    net = digits_resnet(width=2)
    net.load_state_dict(torch.load(goldens / "digits_resnet_w2.pt", weights_only=True))
    save(net.train(), goldens / "digits_resnet_w2_script.pt")
    torch.manual_seed(1)
    save(Net(), root / "examples" / "03_own_model" / "net.pt")
