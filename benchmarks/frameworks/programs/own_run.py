"""This package's federated averaging: own_run.py FOLDER SITES ROUNDS STEPS OUT [THREADS of FLARE's simulator]."""

import sys

import own_network

import grandrounds as gr

folder, (sites, rounds, steps), out, threads = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5], sys.argv[6:]

run = gr.run(
    "fedavg",
    gr.Sites.from_manifest(f"{folder}/manifest.csv", folder, f"{out}/sites", sites=sites),
    rounds=rounds,
    image_size=32,
    backbone=own_network.NAME,
    workspace=f"{out}/run",
    reference=False,
    options={
        "executor.steps": steps,
        "executor.learning_rate": 0.0003,
        "executor.weak_augmentation": False,
        "executor.class_weights": "none",
        "controller.validate_every": 0,
    },
    **({"engine": "flare", "threads": int(threads[0])} if threads else {}),
)
print("accuracy", run.scores().loc["pooled", "accuracy"])
