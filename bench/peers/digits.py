"""The digits in plain Python PyTorch: the same data, model and loop as bellows/ladder/plain_libtorch.cpp."""

import argparse
import io
import pathlib
import tarfile

import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from digits_model import digits_resnet
from formula_weights import set_formula_weights
from protocol import serve


class Digits(Dataset):
    def __init__(self, folder, split):
        samples = {}
        for shard in sorted(pathlib.Path(folder).glob(f"{split}-*.tar")):
            with tarfile.open(shard) as tar:
                for member in tar:
                    key, suffix = member.name.split(".", 1)
                    samples.setdefault(key, {})[suffix] = tar.extractfile(member).read()
        self.samples = [(sample["png"], int(sample["cls"])) for sample in samples.values()]
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.3053,), (0.376,))])

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        png, label = self.samples[index]
        return self.transform(Image.open(io.BytesIO(png))), label


def endless(loader):
    while True:
        yield from loader


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--data", default="data/digits")
    flags.add_argument("--batch", type=int, default=64)
    flags = flags.parse_args()
    torch.manual_seed(1)
    data = Digits(flags.data, "train")
    batches = endless(DataLoader(data, batch_size=flags.batch, shuffle=True))
    net = set_formula_weights(digits_resnet())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def run(steps):
        net.train()
        running_loss, running_right = 0.0, 0
        for _ in range(steps):
            x, y = next(batches)
            optimizer.zero_grad()
            output = net(x)
            loss = F.cross_entropy(output, y)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            running_right += (output.argmax(1) == y).sum().item()

    def first_batch_loss():
        net.eval()
        x, y = next(iter(DataLoader(data, batch_size=flags.batch)))
        with torch.no_grad():
            return [F.cross_entropy(net(x), y).item()]

    serve(run, {"first_batch_loss": first_batch_loss})


if __name__ == "__main__":
    main()
