"""Writes tests/goldens/interop/webdataset: shards as the webdataset package writes them, and what it reads out of them.

Run:    python tools/goldens/wds.py [WDS2IDX]     with the path of NVIDIA/DALI's tools/wds2idx.py: its indexes, too
        python tools/goldens/wds.py --verify FOLDER     reads with webdataset what interop_webdataset_test wrote there
"""
import io
import json
import os
import subprocess
import sys
import tarfile

import webdataset as wds

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OUT = os.path.join(ROOT, "tests", "goldens", "interop", "webdataset")


def content(i, bytes):
    return b"".join(b"%d " % (i * 1000 + j) for j in range(bytes))[:bytes]


def samples():
    for i in range(7):
        sample = {"__key__": f"train/{i:04d}", "jpg": content(i, 40 * i), "cls": b"%d" % (i % 3)}
        if i % 2:
            sample["seg.png"] = content(i, 700)
        if i == 4:
            sample["json"] = json.dumps({"label": 4, "text": "é"}).encode()
        yield sample


def read(paths):
    """Samples as webdataset yields them, bytes in hexadecimal."""
    return [{k: (v if k == "__key__" else v.hex()) for k, v in sample.items() if k == "__key__" or not k.startswith("__")}
            for sample in wds.WebDataset(paths, shardshuffle=False)]


def shards():
    pattern = os.path.join(OUT, "train-%06d.tar")
    with wds.ShardWriter(pattern, maxcount=3, mtime=0, verbose=0) as writer:
        for sample in samples():
            writer.write(sample)
    sizes = os.path.join(OUT, "sizes-%02d.tar")
    with wds.ShardWriter(sizes, maxsize=1000, mtime=0, verbose=0) as writer:
        for i in range(5):
            writer.write({"__key__": f"{i}", "bin": content(i, 600)})
    return {"train": [pattern % i for i in range(3)], "sizes": [sizes % i for i in range(3)]}


def compressed():
    paths = []
    for suffix in ("gz", "bz2", "xz"):
        path = os.path.join(OUT, f"packed.tar.{suffix}")
        paths.append(path)
        with wds.TarWriter(path, mtime=0, compress=suffix) as writer:
            for sample in samples():
                writer.write(sample)
    plain = os.path.join(OUT, "packed.tar")
    with wds.TarWriter(plain, mtime=0) as writer:
        for sample in samples():
            writer.write(sample)
    subprocess.run(["zstd", "-q", "-f", plain, "-o", plain + ".zst"], check=True)
    subprocess.run(["lz4", "-q", "-f", plain, plain + ".lz4"], check=True)
    os.remove(plain)
    return paths


def traps(format, name):
    """Names on which readers differ. None is a duplicate, which is an error."""
    path = os.path.join(OUT, name)
    with tarfile.open(path, "w", format=format) as tar:
        def add(name, data=b"", type=tarfile.REGTYPE, link=""):
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = (len(data) if type == tarfile.REGTYPE else 0), type, link
            tar.addfile(info, io.BytesIO(data))
        add("folder", type=tarfile.DIRTYPE)
        add("d/a.b0", b"one")
        add("d/a.b1", b"two")
        add("d/a.x.y", b"first dot")
        add("d.e/a.PNG", b"a dot in the folder, capitals")
        add("README", b"no suffix")
        add("d.e/a.txt", b"the same sample goes on")
        add("link.txt", type=tarfile.SYMTYPE, link="d/a.b0")
        add(".hidden.txt", b"hidden")
        add("d/.hidden", b"hidden")
        add("__meta__", b"meta")
        add("__meta__/x.txt", b"meta")
        add("__key.txt", b"no meta")
        add("d/a.b0", b"the same key again, later")
        add("e.", b"empty suffix")
        add("empty.bin", b"")
        if format != tarfile.USTAR_FORMAT:
            add("long/" + "n" * 120 + ".bin", b"a long name")
            add("ä/ö.txt", "ü".encode())
    return path


def indexes(wds2idx, paths):
    for path in paths:
        index = path[: path.find(".", path.rfind("/") + 2)] + ".idx"
        subprocess.run([sys.executable, wds2idx, path, index], check=True, stdout=subprocess.DEVNULL)
        os.rename(index, path + ".idx")  # beside no shard: readers would take it


def verify(folder):
    with open(os.path.join(OUT, "expected.json")) as file:
        expected = json.load(file)
    for name in ("train", "sizes"):
        paths = sorted(os.path.join(folder, p) for p in os.listdir(folder) if p.startswith(name) and p.endswith(".tar"))
        found = read(paths)
        assert found == expected[name], f"{name}: webdataset reads other samples than it wrote: {found}"
    print(f"webdataset {wds.__version__} reads {sum(len(expected[n]) for n in ('train', 'sizes'))} samples as it wrote them")


def main():
    os.makedirs(OUT, exist_ok=True)
    groups = shards()
    expected = {name: read(paths) for name, paths in groups.items()}
    packed = compressed()
    expected["packed"] = read(packed[0])
    assert all(read(path) == expected["packed"] for path in packed)
    for format, name in ((tarfile.USTAR_FORMAT, "traps_ustar.tar"), (tarfile.GNU_FORMAT, "traps_gnu.tar"),
                         (tarfile.PAX_FORMAT, "traps_pax.tar")):
        expected[name] = read(traps(format, name))
    expected["versions"] = {"webdataset": wds.__version__}
    with open(os.path.join(OUT, "expected.json"), "w") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")
    if len(sys.argv) > 1:
        indexes(sys.argv[1], groups["train"] + groups["sizes"])


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--verify":
        verify(sys.argv[2])
    else:
        main()
