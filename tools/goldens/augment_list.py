"""Writes tests/goldens/data/augment_list.safetensors: pictures, and what lists of torchvision.transforms.v2 make of them. The lists have
fixed parameters, and the same text is the list of a recipe. Run: python tools/goldens/augment_list.py
"""

import os

import numpy as np
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torchvision.transforms import v2

from pictures import OUT, hwc, pil, ramp_and_noise

random = np.random.RandomState(29)

LISTS = [
    "Resize((40, 48))",
    "Resize(30)",
    "Resize(size=30), CenterCrop(28)",
    "CenterCrop((20, 30)), RandomHorizontalFlip(p=1)",
    "RandomVerticalFlip(1.0)",
    "RandomVerticalFlip(p=1), RandomHorizontalFlip(p=1), CenterCrop(21)",
    "RandomHorizontalFlip(p=0), RandomVerticalFlip(p=0)",
    "Resize((24, 32)), RandomVerticalFlip(p=1), Resize((48, 40))",
    "RandomResizedCrop(size=(16, 24), scale=(2.0, 2.0), ratio=(0.5, 2.0))",
    "RandomCrop(size=(37, 53), padding=0)",
    "ColorJitter(brightness=(1.3, 1.3))",
    "ColorJitter(contrast=(0.4, 0.4)), RandomVerticalFlip(p=1)",
    "ColorJitter(saturation=(1.7, 1.7))",
    "ColorJitter(hue=(0.2, 0.2))",
    "ColorJitter(hue=(-0.35, -0.35)), ColorJitter(brightness=(0.6, 0.6))",
    "RandomGrayscale(p=1), ColorJitter(contrast=(1.5, 1.5))",
    "ColorJitter(0, 0, 0, 0), RandomGrayscale(p=0.0)",
    "RandAugment(num_ops=0, magnitude=9), Resize((20, 20))",
]


def quantiles(rows):
    return torch.quantile(torch.tensor(rows, dtype=torch.float64), torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64), dim=0)


if __name__ == "__main__":
    tensors, versions = {}, {"torch": torch.__version__, "torchvision": torchvision.__version__, "pillow": Image.__version__}
    for name, channels in (("rgb", 3), ("gray", 1)):
        picture = ramp_and_noise(random, 37, 53, channels, ramp=(20, 220), noise=(10, 240), ramps=0.6)
        tensors[name] = torch.from_numpy(picture)
        for index, text in enumerate(LISTS):
            compose = v2.Compose(list(eval(f"({text},)", vars(v2))))  # names and parameters are those of torchvision
            versions[f"list.{index}"] = text
            tensors[f"{name}.{index}"] = hwc(compose(pil(picture)))
    torch.manual_seed(3)
    jitter = v2.ColorJitter(brightness=0.4, contrast=(0.5, 2.0), saturation=(0.0, 3.0), hue=0.3)
    draws = [jitter.make_params([]) for _ in range(20000)]
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    tensors["jitter.quantiles"] = quantiles([[draw[name] for name in names] for draw in draws])
    tensors["mixup.quantiles"] = quantiles([v2.MixUp(alpha=0.3, num_classes=2)._dist.sample(()).item() for _ in range(20000)])
    save_file({k: v.clone().contiguous() for k, v in tensors.items()}, os.path.join(OUT, "augment_list.safetensors"), versions)
