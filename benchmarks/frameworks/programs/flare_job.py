"""FLARE's recipe for federated averaging in its simulator: flare_job.py FOLDER SITES ROUNDS STEPS OUT THREADS."""

import sys
from pathlib import Path

import torch
from network import Network
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv
from training import accuracy

folder, (sites, rounds, steps), out, threads = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5], int(sys.argv[6])
torch.manual_seed(1)
network = Network()
recipe = FedAvgRecipe(
    name="fedavg",
    model=network,
    min_clients=sites,
    num_rounds=rounds,
    train_script=str(Path(__file__).with_name("flare_client.py")),
    train_args=f"{folder} {steps}",
    server_expected_format=ExchangeFormat.PYTORCH,
)
recipe.execute(SimEnv(num_clients=sites, num_threads=threads, workspace_root=out))
saved = torch.load(f"{out}/fedavg/server/simulate_job/app_server/FL_global_model.pt", weights_only=True)
network.load_state_dict(saved["model"])
print("accuracy", accuracy(network, folder, range(1, sites + 1)))
