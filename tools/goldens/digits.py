"""Writes data/digits: scikit-learn's handwritten digits as PNGs in WebDataset shards.

Run: python tools/goldens/digits.py [FOLDER]. The bytes depend on nothing but scikit-learn's data: same input, same files.
"""
import io
import json
import os
import struct
import sys
import tarfile
import zlib

import numpy as np
from sklearn.datasets import load_digits

SEED = 20240501
TEST_SHARE = 0.2
TRAIN_SHARDS = 4


def png(gray):
    """An 8-bit gray PNG: one IDAT, filter 0; written here so that no encoder's version changes the bytes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width = gray.shape
    rows = b"".join(b"\0" + row.tobytes() for row in gray)
    stored = b"\x78\x01" + b"\x01" + struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF) + rows + struct.pack(">I", zlib.adler32(rows))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", stored) + chunk(b"IEND", b"")


def split(labels):
    """Stratified: of each class the same share, drawn by a seed; both parts shuffled once."""
    random = np.random.RandomState(SEED)
    train, test = [], []
    for digit in range(10):
        members = random.permutation(np.flatnonzero(labels == digit))
        cut = round(len(members) * TEST_SHARE)
        test += members[:cut].tolist()
        train += members[cut:].tolist()
    return random.permutation(train), random.permutation(test)


def write_shard(path, samples):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for key, image, label in samples:
            for suffix, data in (("cls", str(label).encode()), ("png", image)):
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size, member.mode, member.mtime = len(data), 0o444, 0
                member.uname = member.gname = "bigdata"
                tar.addfile(member, io.BytesIO(data))


def main(folder):
    digits = load_digits()
    images = np.round(digits.images * 255 / 16).astype(np.uint8)
    train, test = split(digits.target)
    def sample(i):
        return f"{i:04d}", png(images[i]), int(digits.target[i])
    os.makedirs(folder, exist_ok=True)
    for number, part in enumerate(np.array_split(train, TRAIN_SHARDS)):
        write_shard(f"{folder}/train-{number:03d}.tar", [sample(i) for i in part])
    write_shard(f"{folder}/test-000.tar", [sample(i) for i in test])
    values = images[train] / 255.0
    info = {
        "name": "digits",
        "splits": {"train": "train-{000..%03d}.tar" % (TRAIN_SHARDS - 1), "test": "test-000.tar"},
        "samples": {"train": len(train), "test": len(test)},
        "classes": [str(digit) for digit in range(10)],
        "image_size": [8, 8, 1],
        "mean": [round(float(values.mean()), 4)],
        "std": [round(float(values.std()), 4)],
    }
    with open(f"{folder}/dataset.json", "w") as file:
        json.dump(info, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data/digits")
