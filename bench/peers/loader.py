"""Loads photographs into batches in Python: the peers of bench/loader/bench_loader.cpp. Each peer runs in its own process.

python loader.py KIND FOLDER THREADS: bench/loader/photographs.h writes FOLDER. The steps are a random resized crop to 224, a
flip, conversion to float32 and normalization, with batches of 64 and one worker per core. The commands are `run N` (epochs),
`usage` and `check FILE COUNT SIDE`, which bench/loader/side.h documents, and `close`.
"""

import atexit
import gc
import os
import resource
import sys
import threading

import numpy as np
import torch

from protocol import serve

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BATCH, SIZE = 64, 224


def tree():
    """This process and all its descendants."""
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    waiting += map(int, file.read().split())
        except FileNotFoundError:
            pass
    return found


def usage():
    """CPU time of the process tree (s), its proportional set size (MB), and the part of that size without files (MB)."""
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)  # of this process only: the workers have no children
    cpu, memory = gone.ru_utime + gone.ru_stime, {"Pss": 0, "Pss_Anon": 0, "Pss_Shmem": 0}
    for pid in tree():
        try:
            with open(f"/proc/{pid}/stat") as file:
                words = file.read().rsplit(")", 1)[1].split()
            cpu += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
            with open(f"/proc/{pid}/smaps_rollup") as file:
                for line in file:
                    key = line.split(":")[0]
                    if key in memory:
                        memory[key] += int(line.split()[1]) / 1024
        except FileNotFoundError:
            pass
    return [cpu, memory["Pss"], memory["Pss_Anon"] + memory["Pss_Shmem"]]


def train_pillow():
    from torchvision import transforms as T

    return T.Compose([T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])


def middle_pillow(side):
    from torchvision import transforms as T

    return T.Compose([T.CenterCrop(side), T.ToTensor(), T.Normalize(MEAN, STD)])


def batches_of(dataset, threads, **options):
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=threads, persistent_workers=True, **options)


class Side:
    """`loader` is iterated once per epoch. `middles(count, side)` returns the normalized centers of the first images."""

    def run(self, epochs):
        for _ in range(epochs):
            for batch in self.loader:
                assert batch[0].shape[1:] == (3, SIZE, SIZE)


class Pillow(Side):
    """The unchanged ImageFolder of torchvision, which decodes with Pillow."""

    def __init__(self, folder, threads):
        from torchvision.datasets import ImageFolder

        self.folder = folder + "/jpg"
        self.loader = batches_of(ImageFolder(self.folder, train_pillow()), threads, shuffle=True)

    def middles(self, count, side):
        from PIL import Image

        paths = (f"{self.folder}/{i % 10}/{i:04d}.jpg" for i in range(count))
        return torch.stack([middle_pillow(side)(Image.open(path).convert("RGB")) for path in paths])


class Torchvision(Side):
    """The same with the decoder of torchvision and with transforms of tensors."""

    def __init__(self, folder, threads):
        from torchvision.datasets import ImageFolder
        from torchvision.io import ImageReadMode, decode_image
        from torchvision.transforms import v2 as T

        self.folder = folder + "/jpg"
        self.decode = lambda path: decode_image(path, ImageReadMode.RGB)
        transform = T.Compose([T.RandomResizedCrop(SIZE, antialias=True), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True),
                               T.Normalize(MEAN, STD)])
        self.loader = batches_of(ImageFolder(self.folder, transform, loader=self.decode), threads, shuffle=True)

    def middles(self, count, side):
        from torchvision.transforms import v2 as T

        transform = T.Compose([T.CenterCrop(side), T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)])
        return torch.stack([transform(self.decode(f"{self.folder}/{i % 10}/{i:04d}.jpg")) for i in range(count)])


class Webdataset(Side):
    def __init__(self, folder, threads):
        import webdataset as wds

        self.shards = folder + "/photos-{0..3}.tar"
        train = train_pillow()
        dataset = (wds.WebDataset(self.shards, shardshuffle=4, nodesplitter=None).shuffle(256).decode("pil").to_tuple("jpg", "cls")
                   .map_tuple(train, lambda label: label).batched(BATCH))
        self.loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=threads, persistent_workers=True)

    def middles(self, count, side):
        import webdataset as wds

        dataset = wds.WebDataset(self.shards, shardshuffle=False).decode("pil").to_tuple("jpg")
        return torch.stack([middle_pillow(side)(image) for (image,), _ in zip(dataset, range(count))])


class Streaming(Side):
    def __init__(self, folder, threads):
        from streaming import MDSWriter, StreamingDataset

        path = folder + "/mds"
        if not os.path.exists(path):
            self.write(folder + "/jpg", path, MDSWriter)
        transform = train_pillow()

        class Photographs(StreamingDataset):
            def __getitem__(self, i):
                sample = super().__getitem__(i)
                return transform(sample["image"]), sample["label"]

        self.plain = StreamingDataset(local=path, shuffle=False, batch_size=1)
        self.loader = batches_of(Photographs(local=path, shuffle=True, batch_size=BATCH), threads)

    @staticmethod
    def write(source, path, writer):
        from PIL import Image

        with writer(out=path, columns={"image": "jpeg", "label": "int"}) as out:
            for name in sorted(os.listdir(f"{source}/0") + [n for k in range(1, 10) for n in os.listdir(f"{source}/{k}")]):
                label = int(name[:4]) % 10
                out.write({"image": Image.open(f"{source}/{label}/{name}"), "label": label})  # not encoded again

    def middles(self, count, side):
        return torch.stack([middle_pillow(side)(self.plain[i]["image"]) for i in range(count)])


class Ffcv(Side):
    """FFCV on the CPU. Its authors normalize on the GPU; here, the compiled lookup table of FFCV normalizes."""

    def __init__(self, path, threads):
        from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

        self.path = path
        image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip(), self.normalize(NormalizeImage), ToTensor(),
                 ToTorchImage(convert_back_int16=False)]
        self.loader = Loader(path, batch_size=BATCH, num_workers=threads, os_cache=True, order=OrderOption.RANDOM, drop_last=False,
                             pipelines={"image": image, "label": [IntDecoder(), ToTensor()]})

    @staticmethod
    def normalize(operation):
        return operation(np.array(MEAN) * 255, np.array(STD) * 255, np.float32)

    def middles(self, count, side):
        from ffcv.libffcv import imdecode
        from ffcv.memory_managers import OSCacheManager
        from ffcv.reader import Reader

        # The decoder and reader of FFCV, without the minute to compile a second pipeline.
        reader = Reader(self.path)
        manager = OSCacheManager(reader)
        fetch = manager.compile_reader()
        with manager.schedule_epoch([]):
            state = manager.context.state
        result = []
        for row in reader.metadata[:count]["f0"]:
            height, width = int(row["height"]), int(row["width"])
            image = np.array(fetch(row["data_ptr"], state))
            if row["mode"] == 0:
                image, jpeg = np.empty(height * width * 3, dtype=np.uint8), image
                imdecode(jpeg, image, height, width, height, width, 0, 0, 1, 1, False, False)
            y, x = (height - side) // 2, (width - side) // 2
            part = image.reshape(height, width, 3)[y : y + side, x : x + side]
            result.append(((part / 255 - MEAN) / STD).transpose(2, 0, 1))
        return torch.from_numpy(np.stack(result))


def make(kind, folder, threads):
    if kind in ("ffcv_jpg", "ffcv_raw"):
        return Ffcv(folder + ("/photos.beton" if kind == "ffcv_jpg" else "/raw.beton"), threads)
    return {"pillow": Pillow, "torchvision": Torchvision, "webdataset": Webdataset, "streaming": Streaming}[kind](folder, threads)


class Later:
    """A side that is created at its first command. The sides of FFCV are created in the background, so that compilation overlaps
    with other work. The other sides fork processes. A process that is forked while another thread waits for input hangs when
    it closes its own input."""

    def __init__(self, kind, folder, threads):
        self.side, self.arguments = None, (kind, folder, threads)
        self.thread = threading.Thread(target=self.make, daemon=True)
        if kind.startswith("ffcv"):
            self.thread.start()

    def make(self):
        side = make(*self.arguments)
        side.run(1)
        self.side = side

    def get(self):
        if self.thread.is_alive():
            self.thread.join()
        if self.side is None:
            self.make()
        return self.side


def main():
    kind, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    later = Later(kind, folder, threads)

    def check(file, count, size):
        later.get().middles(int(count), int(size)).float().contiguous().numpy().tofile(file)
        return ["ok"]

    def close():
        """Ends the loader's workers. Python's exit handlers run here, because the caller does not wait for the end of this process."""
        if not kind.startswith("ffcv"):
            later.get().loader = None
            gc.collect()
        if kind == "streaming":
            atexit._run_exitfuncs()  # frees its shared memory
        return ["ok"]

    serve(lambda epochs: later.get().run(epochs), {"usage": usage, "check": check, "close": close}, threads)


if __name__ == "__main__":
    main()
