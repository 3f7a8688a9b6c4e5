#pragma once

/// What `bellows VERB --help` says below the options.
namespace bellows::cli {

inline constexpr const char* train_footer =
    R"(Trains and evaluates after every epoch. Ctrl-C or SIGTERM saves a
checkpoint, if --out is given, and exits with 130 or 143; a second one ends the
program at once.
Text models (bert-20m, distilbert-base, config.json) read a text and a label of
each sample, with a vocab.txt, a tokenizer.json or as bytes: --set tokenizer=…,
sequence_length=….

Examples:
  bellows train --recipe digits.yaml --out runs/digits
  bellows train --data data/digits --set lr=0.1 --set batch_size=64
  bellows train --out runs/digits --resume
  bellows train --data mails --model bert-20m --set tokenizer=vocab.txt
  bellows train --data data/digits --plugin build/libmynet.so --model mynet
)";

inline constexpr const char* ladder_footer =
    R"(Starts from the plain program and switches on one technique after another, each
over the last one that was kept: alternating timed windows, then training from
scratch to the target. What does not help is dropped, and said.
With --memory-target it finds the recipe that stays under a peak of memory at
the least time a step: predicted by `plan`, then measured. With an accuracy the
choice has to reach it, too. Exit code 1 when there is none.

Examples:
  bellows ladder --data data/digits --target-accuracy 0.97 --html ladder.html
  bellows ladder --data data/digits --model net.pt --memory
  bellows ladder --recipe net.yaml --memory-target 2GB --write-recipe fits.yaml
)";

inline constexpr const char* plan_footer =
    R"(Predicts what a step will need, from a few steps with 2 and 3 samples that are
made up; no data are read, and no step of full size is taken. Prints what the
peak consists of, what each technique would change, and what to do. With --fit
standard output is a recipe that `train` takes.

Examples:
  bellows plan --model bert-base --batch 32 --seq 512
  bellows plan --model resnet50 --batch 64 --memory 8GB --price-per-hour 1.5
  bellows plan --recipe digits.yaml --fit 512MB > fits.yaml
  bellows plan --model gpt2 --batch 8 --html memory.html --json plan.json
)";

inline constexpr const char* doctor_footer =
    R"(What this machine and this libtorch offer, what limits them, what to fix.

Example:
  bellows doctor --json
)";

inline constexpr const char* select_footer =
    R"(Out of samples with labels: the hardest of them, by what a run noted while it
trained (its recipe has sample_stats: true). Out of samples without: those whose
label would tell a run's model most. The result is a small file that the
recipe's `subset` and data sets take.

Rules with labels: forgetting, el2n, loss, margin, entropy, random. To label:
least_confidence, margin, entropy, bald, k_center, random.

Examples:
  bellows select --run runs/all --by forgetting --keep 0.6 --out hard.json
  bellows select --data data/digits --by random --count 100 --out first.json
  bellows select --run runs/first --by margin --add 50 --out second.json
  bellows train --data data/digits --set subset=second.json --out runs/second
)";

inline constexpr const char* pack_footer =
    R"(Reads any data set that training reads, and writes it in any of the formats:
pack (pages with checksums, the default), webdataset, tfrecord, recordio, beton,
mds, folder, arrays, csv, jsonl. DST is one file if its name ends in the
format's suffix, else a folder of shards. Killed or stopped, the same command
goes on where it was. At the end all is read back and compared.

Examples:
  bellows pack data/digits digits --split train
  bellows pack photos photos.pack --resize 256 --encode jpg:90 --verify
  bellows pack "train-{000..015}.tar" train.beton
  bellows pack photos shards --format webdataset --shard-size 256MB
)";

inline constexpr const char* bench_data_footer =
    R"(Loads batches and does nothing with them: how fast that goes, where the time
goes, and what would help most. Ctrl-C ends it with a report. If images differ
in size and you give no --crop, each image is resized to 256 pixels at its
shorter side, then cropped to 224 x 224 at the center.

Examples:
  bellows bench-data data/digits --split train --seconds 5
  bellows bench-data "photos-{000..015}.tar" --crop 224 --shuffle --threads 4
  bellows bench-data photos.pack --crop 224 --epochs 2 --trace load.json
)";

inline constexpr const char* launch_footer =
    R"(Starts N processes of a program, as torchrun does: RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT in their environment, and BELLOWS_TOKEN, the secret of
who may join. Output comes line by line with its rank in front. When a
rank fails, all others end within 5 s, then the command, with the exit code of
the first that failed. Several nodes: the same command on each, with its own
--node-rank and the same BELLOWS_TOKEN. A node that is lost may be started
again, or, with --min-nodes, the others go on without it; node 0 has to stay.

Examples:
  bellows launch -n 4 -- ./train --epochs 3
  bellows launch -n 2 --max-restarts 3 -- ./train --resume
  bellows launch -n 8 --nnodes 2 --node-rank 1 --rdzv node0:29500 -- ./train
)";

inline constexpr const char* checkpoint_footer =
    R"(PATH is a checkpoint, step-…, of one process or of many ranks, or the folder of
a run: then its newest. export writes the weights as one safetensors file, which
Python reads with safetensors.torch.load_file.

Examples:
  bellows checkpoint info runs/digits --verify
  bellows checkpoint export runs/digits model.safetensors
)";

inline constexpr const char* overview = R"(Examples:
  bellows ladder --data data/digits --target-accuracy 0.97 --json ladder.json
  bellows train --recipe digits.yaml --out runs/digits
  bellows doctor
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C,
143 by SIGTERM.
`bellows VERB --help` explains one verb.
)";

}  // namespace bellows::cli
