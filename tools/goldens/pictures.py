"""The small pictures that augment.py and data.py look at."""
import os

import numpy as np
import torch
from PIL import Image

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
OUT = os.path.join(ROOT, "tests", "goldens", "data")


def ramp_and_noise(random, height, width, channels, ramp=(0, 255), noise=(0, 256), ramps=0.5):
    """Noise on a ramp: sharp edges and smooth parts. `ramps`: the share of pixels that the ramp keeps."""
    smooth = np.linspace(*ramp, height * width).reshape(height, width, 1)
    sharp = random.randint(*noise, (height, width, channels))
    return np.where(random.rand(height, width, 1) < ramps, smooth, sharp).astype(np.uint8)


def pil(image):
    return Image.fromarray(image if image.shape[2] == 3 else image[:, :, 0])


def hwc(image):
    array = torch.from_numpy(np.array(image))
    return array if array.dim() == 3 else array.unsqueeze(-1)
