#pragma once

/// The texts that `bellows COMMAND --help` prints below the options. help_format.h wraps their paragraphs to the width
/// of the terminal.
namespace bellows::cli {

inline constexpr const char* train_footer =
    R"(Trains the model and evaluates it after every epoch. If you set neither --out nor the recipe key `run_folder`,
nothing is saved. If you use --resume without --recipe, the command reads the recipe from the folder given by --out.

Ctrl-C or SIGTERM stops the command with exit code 130 or 143. If there is a run folder, the command saves a checkpoint
first. A second signal terminates the command immediately.

Text models (bert-20m, distilbert-base, or a model described by a config.json) read the text and the label of each
sample. For text models, set the recipe keys `tokenizer` (the path of a vocab.txt or a tokenizer.json file, or the word
`bytes`) and `max_length`.

Examples:
  bellows train --recipe digits.yaml --out runs/digits
  bellows train --data data/digits --set lr=0.1 --set batch_size=64
  bellows train --out runs/digits --resume
  bellows train --data mails --model bert-20m --set tokenizer=vocab.txt
  bellows train --data data/digits --plugin build/libmynet.so --model mynet
  bellows train --keys
)";

inline constexpr const char* ladder_footer =
    R"(Starts with a plain program in which all speed and memory techniques are off, and adds one technique after
another. The command measures each new configuration in alternation with the last configuration that was kept. Training
with the new technique must also reach the target accuracy. The command drops techniques that do not help, and states
the reason in the report.

With --memory-target, the command predicts the memory of many recipes. It then measures the recipes that may fit, in
order of expected speed, starting with the fastest. If you also set --target-accuracy, the chosen recipe must reach this
accuracy. The exit code is 1 if no recipe fits.

With --inference, the command measures how fast a trained model runs: eager, in inference mode, channels-last, in bf16,
compiled, and in static int8. It keeps a technique only if the model is faster and the accuracy on held-out data falls
by at most --max-drop. Without --run and --weights, the model has random weights, and the command compares outputs
instead of the accuracy. If the recipe has no dataset either, inputs are synthetic.

With --ranks, the command compares techniques for several ranks with one process. The ranks run on this machine and
share its threads. All configurations use the same number of cores if the number of ranks divides the number of threads.
With --compare, it compares --recipe with other recipe files, each in one process or on several ranks.

Examples:
  bellows ladder --data data/digits --target-accuracy 0.97 --html ladder.html
  bellows ladder --data data/digits --model net.pt --memory
  bellows ladder --recipe net.yaml --memory-target 2GB --write-recipe fits.yaml
  bellows ladder --recipe net.yaml --ranks 2
  bellows ladder --recipe net.yaml --compare compile.yaml ddp.yaml:4
  bellows ladder --inference runs/digits --max-drop 0.2 --html inference.html
  bellows ladder --inference bert-base --batch-size 1
)";

inline constexpr const char* plan_footer =
    R"(Predicts the peak memory of a training step by running it on synthetic batches of 2 and 3 samples. The command
reads no data and never runs a full-size step. The output shows what the peak memory consists of, the predicted effect
of each technique, and a recommendation. With --ranks, it also compares DDP, the stages of ZeRO and tensor
parallelism. With --fit, the command writes a recipe for `bellows train` to standard output. With --device-map, it instead
shows where the weights are in inference, if they do not all fit into memory. With --prices, it also compares the
predicted time and cost on other machines.

Examples:
  bellows plan --model bert-base --batch 32 --seq 512
  bellows plan --model gpt2 --batch 8 --device-map --memory 1GB
  bellows plan --model resnet50 --batch 64 --memory 8GB --price-per-hour 1.5
  bellows plan --model bert-base --batch 8 --ranks 4 --memory 4GB --link-gbps 25
  bellows plan --recipe digits.yaml --step-ms 120 --prices prices.yaml
  bellows plan --recipe digits.yaml --fit 512MB > fits.yaml
  bellows plan --model gpt2 --batch 8 --html memory.html --json plan.json
)";

inline constexpr const char* profile_footer =
    R"(Trains for a few steps without saving anything, and shows what limits a step: data loading, host overhead, memory
bandwidth or compute. It then lists findings. Each finding states its measured numbers, the recipe settings that help,
and the expected speedup. The tables below show each operator with its share of the machine's measured peak, implicit
synchronizations, copies, and memory.

Operators are timed on the host, so the recipe needs device: cpu. Use the machine for nothing else meanwhile.

Under bellows launch or another launcher, all ranks are profiled together. The findings then also name a slow rank, and
communication that is not hidden behind backward. The tables of operators are those of rank 0.

Examples:
  bellows profile --recipe digits.yaml
  bellows launch -n 2 -- bellows profile --recipe digits.yaml --trace ranks.json
  bellows profile --data data/digits --set num_workers=0 --html profile.html
  bellows profile --recipe digits.yaml --trace step.json --json profile.json
)";

inline constexpr const char* doctor_footer =
    R"(Shows what this machine and this libtorch support, which settings make training slower, and how to fix them. The list of
inference back ends states what to install for those that are missing.

Examples:
  bellows doctor
  bellows doctor --json
)";

inline constexpr const char* schedule_footer =
    R"(Shows when each rank of a pipeline runs which action, if all stages take the same time. The bubble share is the share
of the ranks' time in which they wait. A rank keeps the activations of a micro-batch in a stage from forward to the end of
backward. The table shows the largest number of them at the same time.

SCHEDULE is a name, or a file from --out. Edit the file to design your own schedule. The command refuses tables in which a
rank would wait forever. In C++, parallel::read_schedule() reads the file for PipelineOptions::schedule.

Examples:
  bellows schedule 1f1b --ranks 4 --micro-batches 8 --html 1f1b.html
  bellows schedule zero_bubble --forward-ms 3 --backward-ms 6 --transfer-ms 0.2
  bellows schedule interleaved --out own.txt
  bellows schedule own.txt --json
)";

inline constexpr const char* import_footer =
    R"(Writes the recipe keys that differ from their defaults to standard output. Settings without a recipe key are
listed on standard error with the reason and a workaround, and in the JSON. So are keys with the value "auto", which
the Hugging Face Trainer replaces. The exit code is 0 in these cases, too.

A configuration of DeepSpeed does not contain the model, the data, the number of epochs and the device. Set the recipe
keys model, data, epochs and device.

Examples:
  bellows import ds_config.json --ranks 8 --out recipe.yaml
  bellows import ds_config.json --json
  bellows train --recipe recipe.yaml --data data/digits --set epochs=3
)";

inline constexpr const char* select_footer =
    R"(With --keep or --count, the command chooses labeled samples to train on: the hardest samples, or random samples
with --by random. The difficulty of a sample comes from the statistics of a run whose recipe sets `sample_stats` to
`true`. With --add, the command chooses unlabeled samples to label next: the samples that are most informative for the
model of a run, or random samples with --by random. The command writes the chosen samples to a small file. Pass this
file to the recipe key `subset`, or to `bellows pack --select`.

Rules (--by) with --keep or --count: forgetting, el2n, loss, margin, entropy, random.

Rules (--by) with --add: least_confidence, margin, entropy, bald, k_center, random.

Examples:
  bellows select --run runs/all --by forgetting --keep 0.6 --out hard.json
  bellows select --data data/digits --by random --count 100 --out first.json
  bellows select --run runs/first --by margin --add 50 --out second.json
  bellows train --data data/digits --set subset=second.json --out runs/second
)";

inline constexpr const char* evaluate_footer =
    R"(Loads a trained model and evaluates it with the loss and the metrics of its recipe. The table shows the metrics, the
number of samples, the throughput, the latency and the size of the weights. Without options for samples and speed, the
accuracy is the one that the training run reported for the same checkpoint.

The throughput includes data loading and, with --compile, the time of the compiler. The latency is the time of the
forward pass of one batch. The first batch is not included if there are several.

Examples:
  bellows evaluate --run runs/digits
  bellows evaluate --run runs/digits --data new_photos --split val --json
  bellows evaluate --run runs/digits --dtype bf16 --compile --batch-size 1
  bellows evaluate --recipe digits.yaml --weights model.safetensors
  bellows evaluate --run runs/digits --weight-memory 250KB --offload-folder off
)";

inline constexpr const char* quantize_footer =
    R"(Quantizes the convolutions and linears of a trained model, and evaluates the model before and after. Training samples
are the calibration data. Both models run compiled, because quantized models are fast only then.

Methods:
  static       int8 weights and activations, with ranges from calibration
  dynamic      int8 weights and activations of linears, with a range per row
  weight-only  weights of 2 to 8 bits. Activations stay in floating point

The table has one line per layer. "result" is the signal-to-noise ratio of the layer's result if only this layer is
quantized, in decibels: higher is better, and 6 dB correspond to one bit. With --max-drop, the layers with the lowest ratio stay in
floating point until the accuracy is high enough.

`bellows evaluate` and `bellows predict` read the file from --out as --weights.

Examples:
  bellows quantize --run runs/digits --out digits-int8.safetensors
  bellows quantize --run runs/digits --max-drop 0.2 --html layers.html
  bellows quantize --run runs/mails --method weight-only --bits 4 --group 128
  bellows evaluate --recipe digits.yaml --weights digits-int8.safetensors
)";

inline constexpr const char* export_footer =
    R"(Records the operators of a forward pass with several sizes of the inputs, and writes them in one of these formats:
  onnx         an ONNX graph (opset 17), which is checked by ONNX's checker
  pt2          an exported program of PyTorch; torch.export.load() in Python opens it
  torchscript  a TorchScript module; torch.jit.load() in Python and torch::jit::load() in C++ open it
  bellows      a compiled program with weights and kernels

bw::load_program() runs a compiled program without the model's code and without a compiler.

The results of pt2, torchscript and bellows files are compared with those of the model, for several sizes, before the file
appears under its name. The report states the largest difference.

Axes that were not varied have a fixed size, and the report lists them.

A model with weights from `bellows quantize` is written to ONNX with QuantizeLinear and DequantizeLinear nodes, and to pt2 and
torchscript as arithmetic on int8 weights.
docs/export.md lists the operators that ONNX files can have. The other formats have all operators of libtorch.

Examples:
  bellows export runs/digits --output digits.onnx
  bellows export runs/mails --dynamic 0=batch --dynamic 1=tokens --output mails.onnx
  bellows export runs/digits --format pt2 --output digits.pt2
  bellows export runs/digits --format bellows --output digits.program
  bellows export --recipe digits.yaml --weights digits-int8.safetensors --output digits-int8.onnx
)";

inline constexpr const char* simulate_footer =
    R"(Predicts the time and memory of a training step of a transformer on a cluster, without running it. The cluster is
described by a YAML file with the rates of devices and links. Without --cluster, the command measures this machine.

With --mesh, the output divides the time of a step into computation, exchanges that no computation hides, and the bubble
of the pipeline. With --ranks instead, the command compares all meshes of this many ranks, and states which one is
fastest and why.

Examples:
  bellows simulate gpt2 --ranks 4 --batch 16 --dtype fp32
  bellows simulate --measure > here.yaml
  bellows simulate llama.json --cluster h100.yaml --batch 512 --seq 8192 \
    --mesh "{shard: 32, tensor: 8}" --zero 3 --recompute blocks
  bellows simulate llama.json --cluster h100.yaml --batch 512 --ranks 64 --json
)";

inline constexpr const char* tune_footer =
    R"(Searches for the best values of recipe keys. STUDY is a YAML file with the recipe, the values of each key (`space`),
the objective, and constraints that the result must satisfy. docs/tune.md describes all its keys.

Each trial is a training run in its own process, on its own cores. Trials that crash, or that exceed the limits
trial_time and trial_memory, are counted and excluded. The best recipe is in best.yaml in --out.

A stopped or killed search continues with --resume. Finished trials are not repeated, and interrupted ones run again.
To run trials on several machines, start the command with `bellows launch` on each of them.

With --lr-range, the command trains for 100 steps with learning rates from 1e-6 to 10, and suggests a tenth of the rate
with the smallest loss.

With --batch-size, the command searches for the largest batch size that fits into memory, and for the fastest one. Memory
is predicted first, and then verified in processes with a memory limit.

Examples:
  bellows tune digits-study.yaml
  bellows tune digits-study.yaml --jobs 4 --trials 200 --html study.html
  bellows tune digits-study.yaml --resume
  bellows tune digits.yaml --lr-range
  bellows tune digits.yaml --batch-size --memory 4GB --write-recipe fast.yaml
)";

inline constexpr const char* distill_footer =
    R"(Trains a small model, the student, with the outputs of a trained model, the teacher, and with the targets. The training
uses the teacher's recipe with another model, unless you pass --recipe. Options and --set change it. At the end, a table
compares the accuracy, latency and size of both models.

TEACHER is the run folder of `bellows train`. The command saves the teacher's weights as teacher.safetensors in --out.
`bellows evaluate`, `bellows predict` and `bellows quantize` accept the folder from --out as --run. With --compare, the run
without the teacher is in the subfolder "alone".

The student does not inherit the teacher's keys of quantization-aware training. To train a student that is quantized later,
pass --set quantize=int8.

To resume a stopped command, run it again with --resume. The teacher and the settings are then those of the run in --out,
so you can leave out TEACHER and --student. You can move or copy the folder before.

Examples:
  bellows distill runs/resnet --student mlp --out runs/small
  bellows distill runs/resnet --student mlp --out runs/small --compare
  bellows distill runs/resnet --student mlp --out runs/small --temperature 4
  bellows distill runs/bert --student small.json --out runs/bert-small
  bellows distill --out runs/small --resume
)";

inline constexpr const char* predict_footer =
    R"(Writes one JSON object per input to standard output, in the order of the inputs. FILES are images or folders of
images for image models, and text files (one text per line), CSV or JSON Lines files for text models. All other models
read CSV, JSON Lines and other dataset files. Images pass through the same transforms as in the evaluations of training.

Each object has "file" and, for files with several samples and datasets, "index" (the position of the sample, starting
at 0). Predicted classes are in "prediction" and "probability". If a sample has several labels, they are in "prediction"
and "probabilities". Predicted numbers are in "values". If an input cannot be read, its object has "error" instead, the other inputs are predicted, and
the exit code is 1.

Examples:
  bellows predict --run runs/digits photo.png scans/ --top 3
  bellows predict --run runs/mails mails.txt --output labels.jsonl
  bellows predict --run runs/digits --data data/digits --split test
  bellows predict --recipe digits.yaml --weights model.safetensors photo.png
)";

inline constexpr const char* pack_footer =
    R"(Reads any dataset that `bellows train` reads, and writes it in one of these formats: pack (pages with checksums,
the default), webdataset, tfrecord, recordio, beton, mds, folder, arrays, csv, jsonl.

If the name of DST ends in the suffix of the format, DST is one file. Otherwise DST is a folder of shards. After an
interruption, run the same command again to resume the conversion. At the end, the command reads back all written
samples and compares some of them with SRC. With --verify, it compares all of them.

Examples:
  bellows pack data/digits digits --split train
  bellows pack photos photos.pack --resize 256 --encode jpg:90 --verify
  bellows pack "train-{000..015}.tar" train.beton
  bellows pack photos shards --format webdataset --shard-size 256MB
)";

inline constexpr const char* make_data_footer =
    R"(Draws a synthetic dataset for measurements without downloaded data: 10 shapes and 10 textures in random colors,
positions and sizes, with noise. It replaces no dataset of photos. The same options always give the same pixels. DST
gets the splits train and test, and can be passed to `bellows train --data`. `bellows pack` converts a split to other
formats. After an interruption, run the same command again to resume.

Examples:
  bellows make-data shapes
  bellows make-data shapes --train 50000 --seed 7 --format webdataset
  bellows train --data shapes --model resnet18
)";

inline constexpr const char* bench_data_footer =
    R"(Loads batches without training on them. The report shows the throughput, the time of each stage of loading, and
the change that would help most. Ctrl-C stops the measurement and prints the report.

If images differ in size and you do not set --crop, each image is resized so that its shorter side has 256 pixels, and
is then center-cropped to 224 x 224 pixels.

Examples:
  bellows bench-data data/digits --split train --seconds 5
  bellows bench-data "photos-{000..015}.tar" --crop 224 --shuffle --threads 4
  bellows bench-data photos.pack --crop 224 --epochs 2 --trace load.json
)";

inline constexpr const char* bench_model_footer =
    R"(Loads each file in each back end that reads it, compares the results, and measures the time of calls. The models run in
turns, so that changes of the machine's speed affect all of them equally.

Back ends: libtorch and compiled (TorchScript files), program (compiled programs from `bellows export --format bellows`),
aotinductor (.pt2 packages of AOTInductor), onnxruntime (.onnx), openvino (.onnx, .xml), tensorrt (.onnx). The libraries of
ONNX Runtime and OpenVINO are searched when the command runs. `bellows doctor` lists the back ends.

The results of libtorch are the expected ones, or those of the first model without a TorchScript file. If a result
differs by more than the tolerance, its row is marked with *, and the exit code is 1.

Examples:
  bellows bench-model digits.onnx --batch-size 8
  bellows bench-model net.pt net.program net.onnx net.pt2 --input x=1x3x224x224
  bellows bench-model bert.onnx --size tokens=14 --vocabulary 30000 --json
)";

inline constexpr const char* serve_footer =
    R"(Answers inference requests over HTTP and gRPC, as Triton Inference Server does: Open Inference Protocol (KServe v2) with
JSON and binary tensors, model repository, statistics, shared memory, and Prometheus metrics at /metrics. Requests are
combined to batches if the model's config.pbtxt has dynamic_batching.

The page at / shows the models and their load, and sends requests to them.

SIGINT or SIGTERM stops the server after it has answered the requests that it has received. SIGHUP makes it read the
certificate, the key and the tokens again.

Examples:
  bellows serve --model-repository models
  bellows serve --model-repository models --port 0 --grpc-port 0 --access-log
  bellows serve --model-repository models --address 0.0.0.0 \
    --token-file tokens --tls-certificate c.pem --tls-key k.pem
  curl localhost:8000/v2/models/digits
)";

inline constexpr const char* deploy_footer =
    R"(Writes the model in fp32 (TorchScript, ONNX, compiled program), bf16 and int8, checks the results of all back ends on this
machine, and measures them in turns. The fastest one within the limits becomes a model repository for `bellows serve`. The
report also states the size of the files to ship, for fp32 and int8.

With held-out data, the limit is the loss of accuracy (--max-drop). Otherwise, outputs are compared with those of the model
(--tolerance). int8 needs the training data for calibration.

The folder from --target appears when it is complete and the server has answered requests for it. If no back end is within
the limits, nothing is written, and the message states the reason of each. The report is also in DIR/deploy.json.

Examples:
  bellows deploy runs/digits --target models
  bellows deploy runs/digits --target models --triton --max-drop 0.2
  bellows deploy digits.onnx --target models --name digits
)";

inline constexpr const char* perf_footer =
    R"(Sends requests to a server for the Open Inference Protocol over HTTP, such as `bellows serve` or Triton Inference Server,
and measures latency and throughput. A level is measured in windows until three of them are stable, and the result is that
of these three.

With --concurrency, a new request starts when another one is answered. With --rate, requests start at fixed times, and the
latency counts from these times: if the server stops for a moment, the latencies of all requests of this moment include it.

If the server has statistics, the table also contains its mean times in the queue and in the model.

Examples:
  bellows perf digits --concurrency 1:16
  bellows perf bert --shape ids:1,14 --rate 10:50:10 --arrivals poisson \
    --chart bert.svg
  bellows perf digits --input-data digits.json --url 192.168.1.5:8000 --json
)";

inline constexpr const char* launch_footer =
    R"(Starts N processes of a program and sets the same environment variables as torchrun: RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR, MASTER_PORT. In addition, BELLOWS_TOKEN holds the secret that a process needs to join the job.
Each line of output starts with the rank of the process that wrote it.

If a rank fails, the command stops all other ranks within 5 s. With --max-restarts, it then restarts all ranks. If no
restarts are left, the command exits with the exit code of the first rank that failed. With --replace-lost, the other
replicas of the model continue instead, and a new process takes the place of the failed one.

To start a job on several nodes (machines), run the same command on each node with a different --node-rank. Set
BELLOWS_TOKEN to the same value on all nodes. If a node is lost, you can start it again, or let the other nodes continue
without it (--min-nodes). Both require --max-restarts. Node 0 must keep running.

Examples:
  bellows launch -n 4 -- ./train --epochs 3
  bellows launch -n 2 --max-restarts 3 -- ./train --resume
  bellows launch -n 4 --max-restarts 9 --replace-lost -- bellows train job.yaml
  bellows launch -n 8 --nnodes 2 --node-rank 1 --rdzv node0:29500 -- ./train
)";

inline constexpr const char* checkpoint_footer =
    R"(A checkpoint is a file or folder named step-…, written by one or several ranks. If you pass a run folder, the
command uses the newest checkpoint in this folder.

Examples:
  bellows checkpoint info runs/digits --verify
  bellows checkpoint export runs/digits model.safetensors
)";

inline constexpr const char* checkpoint_info_footer =
    R"(PATH is a run folder, or a checkpoint (step-…) written by one or several ranks.

Example:
  bellows checkpoint info runs/digits --verify
)";

inline constexpr const char* checkpoint_export_footer =
    R"(PATH is a run folder, or a checkpoint (step-…) written by one or several ranks. In Python, read the exported file
with safetensors.torch.load_file.

Example:
  bellows checkpoint export runs/digits model.safetensors
)";

inline constexpr const char* cache_footer =
    R"(The kernel cache contains the machine code of compiled functions. A bundle is one signed file with kernels for
machines with the same processor and compiler.

Examples:
  bellows cache list
  bellows cache keygen publisher.key
  bellows cache export kernels.bundle --key publisher.key
  bellows cache import kernels.bundle --key publisher.key.pub
)";

inline constexpr const char* cache_list_footer =
    R"(The list shows the name, size and last use of each entry, and whether this machine can use it. Entries are not used
if they are damaged, belong to another user, or can be written by other users.

Example:
  bellows cache list --json
)";

inline constexpr const char* cache_clear_footer =
    R"(Programs that are running keep the kernels that they have loaded.

Example:
  bellows cache clear
)";

inline constexpr const char* cache_keygen_footer =
    R"(KEYFILE receives the private key, which only you can read. KEYFILE.pub receives the public key. Give the public key
to the users of your bundles. Anyone who has the private key can sign code that runs on their machines.

Example:
  bellows cache keygen publisher.key
)";

inline constexpr const char* cache_export_footer =
    R"(The bundle contains all kernels in the cache that this machine can use.

Example:
  bellows cache export kernels.bundle --key publisher.key
)";

inline constexpr const char* cache_import_footer =
    R"(The bundle contains machine code that runs in your programs. Use only public keys that you received from the
publisher directly. The command refuses bundles that are damaged, are signed with another key, or were made for another
processor or compiler. The cache does not change then. If you omit --key, the command reads the trusted public keys from
the file that BELLOWS_TRUSTED_KEYS names.

Example:
  bellows cache import kernels.bundle --key publisher.key.pub
)";

inline constexpr const char* overview = R"(Examples:
  bellows ladder --data data/digits --target-accuracy 0.97 --json ladder.json
  bellows train --recipe digits.yaml --out runs/digits
  bellows predict --run runs/digits photo.png
  bellows doctor

Exit codes: 0 success, 1 failure, 2 usage error, 130 stopped by Ctrl-C, 143 stopped by SIGTERM. If a rank fails,
`launch` returns the exit code of the first failed rank.

For help on a command, run `bellows COMMAND --help`.
)";

}  // namespace bellows::cli
